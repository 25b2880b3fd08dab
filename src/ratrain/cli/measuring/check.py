"""`ratrain check`: a device's operators, units and losses against the CPU's in fp64."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ratrain.cli.terminal.jobs import set_values
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import MOST_STEPS, PATH, DeviceName, Whole

if TYPE_CHECKING:
    from ratrain.check.report import Report

_COMMAND = "ratrain check"
_PATIENT = ("train.timeout=2h", "train.graphs=false")
"""Comparing takes long, and operators that a graph replays are not seen."""


@click.command()
@click.argument("job", type=PATH, required=False)
@click.option(
    "--device",
    type=DeviceName(),
    help="Compare devices of this kind. [default: the job's; of --replay the kept call's]",
)
@click.option(
    "--against",
    type=click.Choice(["cpu"]),
    default="cpu",
    show_default=True,
    help="What is taken for right: the CPU, in fp64.",
)
@click.option(
    "--steps",
    type=Whole(1, MOST_STEPS),
    default=2,
    show_default=True,
    help="Steps of the job that are run and compared.",
)
@click.option(
    "--operators-only",
    is_flag=True,
    help="Do not compare losses, which takes three more runs.",
)
@click.option("--run", type=PATH, help="Put runs here. [default: runs/JOB-check]")
@click.option(
    "--replay",
    type=PATH,
    metavar="FOLDER",
    help="Make a call again that an earlier comparison has kept, in place of JOB.",
)
@set_values
@click.option("--json", "as_json", is_flag=True, help="Print JSON; all else goes to stderr.")
def command(
    job: Path | None,
    device: str | None,
    against: str,  # noqa: ARG001 - there is one
    steps: int,
    operators_only: bool,
    run: Path | None,
    replay: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> int:
    """Compare a device's operators, units and losses with the CPU's in fp64.

    Runs JOB's first steps on the device, with processes as `ratrain train` does. Each
    operator, forward and backward, is computed again in fp64 from the same arguments;
    each unit too, from the same input. Losses are compared with those of exact operators.
    How far off each may be follows from its dtype, the length of its sums and its
    condition. A wrong call is kept in a folder that --replay takes.

    Exit status: 1 something is off by more than rounding allows.

    \b
    Examples:
      ratrain check job.toml --device mt3000
      ratrain check job.toml --device cpu --set schedule.dtype=bf16 --steps 1
      ratrain check --replay kept/aten.mm.default-F-bfloat16 --device cpu
    """
    if (job is None) == (replay is None):
        raise click.UsageError("give either JOB or --replay")
    from ratrain.extras import require_package

    require_package("torch")
    if replay is not None:
        return _replayed(replay, device, as_json)
    assert job is not None
    overrides = (*_PATIENT, *overrides, *((f"train.device={device}",) if device else ()))
    report = _checked(job, steps, run, overrides, losses=not operators_only)
    if as_json:
        print_json("check", {"steps": steps, **report.body()})
    else:
        click.echo("\n".join(report.lines()))
    return int(report.wrong)


def _checked(
    job: Path, steps: int, run: Path | None, overrides: tuple[str, ...], *, losses: bool
) -> Report:
    from ratrain.cli.runs.train import prepare_data
    from ratrain.cli.terminal.progress import progress
    from ratrain.runtime.run.check import checked
    from ratrain.runtime.run.prepare import RunRequest, prepare_run
    from ratrain.runtime.run.ready import RUNS, Launcher
    from ratrain.runtime.run.resume import fresh_run

    request = RunRequest(job, steps=steps, overrides=overrides, check="compare")
    with ExitStack() as owning:
        with progress("planning and proving", "plans") as report:
            prepared = prepare_run(request, report)
        launcher = Launcher(_COMMAND, _quiet, prepare_data, owning)
        folder = run or fresh_run(RUNS, f"{job.stem}-check")
        with progress("comparing", "steps") as report:
            return checked(prepared, folder, launcher, report, losses=losses)


def _quiet(_line: str) -> None:
    """The report says what there is to say."""


def _replayed(folder: Path, device: str | None, as_json: bool) -> int:
    from ratrain.check.replay import replay_folder

    replayed = replay_folder(folder, device)
    if as_json:
        print_json("check", replayed.body())
    else:
        click.echo("\n".join(replayed.lines()))
    return int(replayed.now.wrong)
