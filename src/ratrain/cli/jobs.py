"""A job file with the command line's own choices in it, made ready."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratrain.plan.case import Case


def case_of_file(path: Path, schedule: str | None = None, without: tuple[str, ...] = ()) -> Case:
    """The case of a job file; flags replace what the file says."""
    from ratrain.describe.job import load_job
    from ratrain.plan.case import case_of

    job = load_job(path)
    chosen = job.schedule
    if schedule is not None:
        chosen = replace(chosen, name=schedule)
    if without:
        chosen = replace(chosen, without=without)
    return case_of(replace(job, schedule=chosen))
