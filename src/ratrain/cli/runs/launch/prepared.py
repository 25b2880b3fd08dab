"""The run that an engine is to start: a folder that holds one, or a job that is prepared now."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratrain.cli.terminal.jobs import set_values
from ratrain.cli.terminal.options import MOST_STEPS, NEW_RUN, PATH, Whole

if TYPE_CHECKING:
    from ratrain.engines.groups import Launchable

_OPTIONS = (
    click.argument("job", type=PATH, metavar="JOB|RUN"),
    click.option("--run", type=NEW_RUN, metavar="FOLDER", help="Of a JOB: the run's folder."),
    click.option("--plan", type=PATH, metavar="PLAN.json", help="Of a JOB: use this plan."),
    click.option("--steps", type=Whole(1, MOST_STEPS), metavar="N", help="Of a JOB: train up to."),
    click.option(
        "--threads",
        type=Whole(1, 4096),
        default=1,
        show_default=True,
        help="Processors and PyTorch threads of a rank. Of a RUN: as it was prepared.",
    ),
    set_values,
    click.option(
        "--python",
        metavar="PATH",
        default=sys.executable,
        help="The hosts' Python that has RATrain. [default: this one's path]",
    ),
)


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments of `Asked`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@dataclass(frozen=True)
class Asked:
    """What the command line says of the run."""

    job: Path
    run: Path | None
    plan: Path | None
    steps: int | None
    threads: int
    overrides: tuple[str, ...]
    python: str


def from_here(path: Path) -> Path:
    """A path as it is typed from the folder that one is in, where it lies below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def launchable(asked: Asked) -> Launchable:
    """The run, prepared where it was none; what is told of that goes to stderr."""
    from ratrain.runtime.run.launchable import launchable_run
    from ratrain.runtime.run_folder import RunFolder

    folder = RunFolder((asked.job if asked.job.is_dir() else _prepared(asked)).resolve())
    return launchable_run(folder, asked.python)


def _prepared(asked: Asked) -> Path:
    from ratrain.cli.runs.train import new_run, prepare_data
    from ratrain.errors import SpecError
    from ratrain.runtime.run.prepare import RunRequest
    from ratrain.runtime.run.ready import Launcher
    from ratrain.runtime.run_folder import RunFolder

    if asked.run is not None and RunFolder(asked.run).holds_run:
        raise SpecError(
            "already holds a run",
            place=str(asked.run),
            fix=f"give it in place of the job, to go on with it: {asked.run}; or another --run",
        )
    request = RunRequest(
        asked.job,
        plan_path=asked.plan,
        steps=asked.steps,
        threads=asked.threads,
        overrides=asked.overrides,
    )
    with ExitStack() as owning:
        launcher = Launcher("ratrain launch", _say, prepare_data, owning, starts_here=False)
        return new_run(launcher, request, asked.run, None, None).folder.path


def _say(line: str) -> None:
    click.echo(line, err=True)
