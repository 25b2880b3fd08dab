"""What verbs that plan and predict say of a job that cannot be trained here, or has keys that
change nothing."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratrain.describe.job import JobSpec


def untrainable(job: JobSpec) -> str | None:
    """Why `ratrain train` would refuse the job's model; None where it would not."""
    from ratrain.runtime.run.trainable import why_untrainable

    return why_untrainable(job.model.spec)


def untrainable_lines(why: str | None) -> list[str]:
    """The same in lines of at most 80 columns."""
    from ratrain.describe.lines import wrapped

    return [] if why is None else wrapped(f"note: {why}")


def notes(job: JobSpec, why: str | None) -> list[str]:
    """That, where it cannot be trained, and which keys of its file change nothing."""
    from ratrain.describe.lines import wrapped

    said = [wrapped(f"note: {sentence}") for sentence in job.unused]
    return [*untrainable_lines(why), *chain.from_iterable(said)]
