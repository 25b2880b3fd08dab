"""`ratrain train`: a job's program on real processes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ratrain.corpus.prepare import Prepared
    from ratrain.describe.job import JobSpec
    from ratrain.runtime.run.prepare import RunRequest
    from ratrain.runtime.run_folder import RunFolder, RunSpec

PATH = click.Path(path_type=Path)
RUNS = Path("runs")


@dataclass(frozen=True)
class _Ready:
    """A run that stands in its folder and may start behind `step`."""

    folder: RunFolder
    job: JobSpec
    spec: RunSpec
    step: int


@click.command()
@click.argument("job", type=PATH)
@click.option("--run", type=PATH, metavar="FOLDER", help="The run's folder. [runs/JOB-SCHEDULE]")
@click.option("--schedule", metavar="NAME", help="Another strategy than the job's, by name.")
@click.option(
    "--without",
    multiple=True,
    metavar="PASS",
    help="Leave a pass out: forward-recovery, layerwise-state-pipeline or update-prefetch.",
)
@click.option("--plan", type=PATH, metavar="PLAN.json", help="Run this plan of `ratrain plan`.")
@click.option("--steps", type=click.IntRange(1), help="Stop behind this step. [the job's]")
@click.option("--threads", type=click.IntRange(1), help="Threads of torch in each rank.")
@click.option(
    "--lab/--no-lab",
    default=None,
    help="Run in the cluster file's slow links and limits (root). [no; with --resume: as before]",
)
@click.option("--resume", is_flag=True, help="Go on behind the newest checkpoint of a run.")
@click.option(
    "--restarts", type=click.IntRange(0), default=0, help="Start over from it so often on failure."
)
@click.option("--no-calibrate", is_flag=True, help="Begin at once; nothing is predicted.")
@click.option("--prepare-only", is_flag=True, help="Make the folder; say how to run it elsewhere.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON; lines to stderr.")
def command(
    job: Path,
    run: Path | None,
    schedule: str | None,
    without: tuple[str, ...],
    plan: Path | None,
    steps: int | None,
    threads: int | None,
    lab: bool | None,
    resume: bool,
    restarts: int,
    no_calibrate: bool,
    prepare_only: bool,
    as_json: bool,
) -> None:
    """Train JOB on processes of this machine.

    Builds the job's program, proves that it fits the memory budget, starts one
    process a rank, times their ops and predicts the step, trains, saves, and
    reports prediction against measurement.

    Ctrl-C saves behind the current step and ends with status 0; --resume goes on
    with the very same numbers. A second Ctrl-C ends at once.

    Exit status: 2 the job is wrong, 3 it does not fit, 7 a checkpoint cannot be
    read or written, 8 a rank failed.

    \b
    Examples:
      ratrain train job.toml
      ratrain train job.toml --schedule baseline-1f1b --steps 50
      ratrain train job.toml --lab
      ratrain train job.toml --resume
    """
    from ratrain.runtime.run.prepare import RunRequest

    request = RunRequest(
        job, schedule, without, plan, steps, threads=threads, calibrate=not no_calibrate
    )
    ready = _resumed(request, run) if resume else _fresh(request, run)
    if prepare_only:
        _show_command(ready, as_json)
        return
    if ready.step < ready.spec.end_step:
        _train(ready, _lab_wanted(ready, lab, resume), restarts, as_json)
    else:
        _say(f"finished at step {ready.step}; --steps with a larger number goes on")
    _report(ready, as_json)


def _say(line: str) -> None:
    """What is not the report goes to stderr."""
    click.echo(line, err=True)


def _fresh(request: RunRequest, run: Path | None) -> _Ready:
    from ratrain.runtime.run.prepare import prepare_run, write_run
    from ratrain.runtime.run.resume import fresh_run
    from ratrain.runtime.run_folder import RunFolder

    prepared = prepare_run(request)
    _prepare_data(prepared.case.job)
    path = run or fresh_run(RUNS, f"{request.job_path.stem}-{prepared.case.job.schedule.name}")
    folder = RunFolder(path)
    write_run(prepared, folder)
    for line in (*prepared.case.headline(), *prepared.proof()):
        _say(line)
    _say(f"run {path}")
    return _Ready(folder, prepared.case.job, prepared.spec, 0)


def _resumed(request: RunRequest, run: Path | None) -> _Ready:
    from dataclasses import replace

    from ratrain.describe.job import load_job
    from ratrain.runtime.run.resume import newest_run, resume_run
    from ratrain.runtime.run_folder import RunFolder

    if run is None:
        name = request.schedule or load_job(request.job_path).schedule.name
        run = newest_run(RUNS, f"{request.job_path.stem}-{name}")
        request = replace(request, schedule=None)  # it has named the folder
    folder = RunFolder(run)
    found = resume_run(request, folder)
    for line in found.headline:
        _say(line)
    for name in found.skipped:
        _say(f"{name} is damaged and passed over")
    for change in found.changes:
        _say(f"changed since the run began: {change}")
    if not found.finished:
        found.require_same_data(_prepare_data(found.job))
        folder.write_spec(found.spec, folder.read_program())
        begins = f"resumes behind step {found.step}" if found.step else "no checkpoint yet: begins"
        _say(f"run {run} {begins}")
    return _Ready(folder, found.job, found.spec, found.step)


def _prepare_data(job: JobSpec) -> Prepared:
    """Tokenises here once, with a bar, what every rank reads; returns it."""
    from ratrain.cli.progress import progress
    from ratrain.corpus.of_job import data_of_job

    with progress("tokenise", "bytes") as report:
        return data_of_job(job, progress=report).prepared


def _lab_wanted(ready: _Ready, lab: bool | None, resume: bool) -> bool:
    from ratrain.runtime.run.facts import attempts

    before = attempts(ready.folder) if resume else []
    return lab if lab is not None else bool(before and before[-1].lab)


def _train(ready: _Ready, lab: bool, restarts: int, as_json: bool) -> None:
    from ratrain.cli.train_view import view
    from ratrain.runtime.run.session import lab_if_possible, run_session

    cluster = ready.job.cluster.spec
    with (
        lab_if_possible(cluster, ready.spec.seats.world_size, lab, _say) as place,
        view(to_stderr=as_json) as show,
    ):
        ending = run_session(
            ready.folder,
            ready.spec,
            lab=place,
            restarts=restarts,
            first_step=ready.step,
            show=show,
        )
    if ready.folder.notes.exists():
        for line in ready.folder.notes.read_text().splitlines():
            _say(f"note: {line}")
    if ending.stopped:
        _say(f"stopped at step {ending.step}, --resume goes on")


def _report(ready: _Ready, as_json: bool) -> None:
    from ratrain.runtime.run.report import write_report
    from ratrain.runtime.run.report_text import report_text

    report = write_report(ready.folder)
    click.echo(json.dumps(report, indent=2) if as_json else "\n".join(["", *report_text(report)]))


def _show_command(ready: _Ready, as_json: bool) -> None:
    from ratrain.runtime.run.launch import shared_folder_note
    from ratrain.runtime.run.session import torchrun_command

    world_size = ready.spec.seats.world_size
    lines = torchrun_command(ready.folder.path, world_size)
    if as_json:
        body: dict[str, Any] = {
            "run": str(ready.folder.path),
            "world_size": world_size,
            "command": "\n".join(lines[:3]),
        }
        click.echo(json.dumps(body, indent=2))
        return
    click.echo("\n".join([*lines, shared_folder_note(ready.folder.path)]))
