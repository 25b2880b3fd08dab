"""What verbs that plan and predict say of a job that cannot be trained here."""

from __future__ import annotations

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
