"""A job or plan file with the command line's choices applied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ratrain.cli.terminal import completion

if TYPE_CHECKING:
    from ratrain.plan import Case

set_values = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    shell_complete=completion.job_keys,
    help="Override a value of the job: --set train.steps=10.",
)
"""The option of every verb that takes a job."""


def refuse_overrides(path: Path, overrides: tuple[str, ...]) -> None:
    """Refuses `--set` where the file is no job."""
    from ratrain.errors import SpecError

    if overrides:
        raise SpecError(
            f"{path} is not a job file, and has no such values",
            place="--set",
            fix="leave --set out",
        )


def case_of_file(
    path: Path,
    schedule: str | None = None,
    without: tuple[str, ...] = (),
    overrides: tuple[str, ...] = (),
) -> Case:
    """The case of a job file (.toml) or a plan file (.json); options replace what a job says."""
    from ratrain.cli.terminal.progress import progress
    from ratrain.errors import SpecError
    from ratrain.plan import case_of_job, case_of_plan, load_job, load_plan

    if path.suffix == ".json":
        refuse_overrides(path, overrides)
        if schedule is not None or without:
            raise SpecError(
                "a plan file sets its own schedule",
                place=str(path),
                fix="edit the plan, or plan again",
            )
        return case_of_plan(load_plan(path), str(path))
    job = load_job(path, overrides)
    chosen = job.schedule
    if schedule is not None:
        chosen = replace(chosen, name=schedule)
    if without:
        chosen = replace(chosen, without=without)
    with progress("planning", "plans") as report:
        return case_of_job(replace(job, schedule=chosen), report)
