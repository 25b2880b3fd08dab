"""A job or plan file with the command line's own choices in it, made ready."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratrain.plan.case import Case


def case_of_file(path: Path, schedule: str | None = None, without: tuple[str, ...] = ()) -> Case:
    """The case of a job file (.toml) or a plan file (.json); flags replace what a job says."""
    from ratrain.describe.job import load_job
    from ratrain.errors import SpecError
    from ratrain.plan.case import case_of, case_of_candidate
    from ratrain.plan.plan_file import load_plan, to_candidate

    if path.suffix == ".json":
        if schedule is not None or without:
            raise SpecError(
                "a plan has its schedule in it", place=str(path), fix="edit the plan, or plan again"
            )
        return case_of_candidate(to_candidate(load_plan(path), str(path)))
    job = load_job(path)
    chosen = job.schedule
    if schedule is not None:
        chosen = replace(chosen, name=schedule)
    if without:
        chosen = replace(chosen, without=without)
    return case_of(replace(job, schedule=chosen))
