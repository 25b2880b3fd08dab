"""`ratrain train`: a job's program on real processes."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from ratrain.cli import completion
from ratrain.cli.jobs import set_values
from ratrain.cli.json_output import print_json
from ratrain.cli.mistakes import fitted_to_terminal
from ratrain.cli.options import MOST_STEPS, PATH, Whole

if TYPE_CHECKING:
    from ratrain.corpus.prepare import Prepared
    from ratrain.describe.job import JobSpec
    from ratrain.runtime.run.prepare import RunRequest
    from ratrain.runtime.run.ready import Launcher, ReadyRun

RUNS = Path("runs")
_COMMAND = "ratrain train"


@click.command()
@click.argument("job", type=PATH, required=False)
@click.option(
    "--model",
    metavar="NAME|FOLDER",
    shell_complete=completion.models,
    help="Without JOB: a preset, or a Hugging Face folder.",
)
@click.option("--data", multiple=True, metavar="FILE", help="Without JOB: text to train on.")
@click.option(
    "--run",
    type=PATH,
    metavar="FOLDER",
    help="The run's folder. [default: runs/JOB-SCHEDULE, numbered where that exists; with "
    "--resume: the newest of them]",
)
@click.option(
    "--schedule",
    metavar="NAME",
    shell_complete=completion.schedules,
    help="Use this schedule instead of the job's.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="PASS",
    shell_complete=completion.passes,
    help="Leave out forward-recovery, layerwise-state-pipeline or update-prefetch.",
)
@click.option(
    "--plan",
    type=PATH,
    metavar="PLAN.json",
    help="Use a plan file: one that `ratrain plan` wrote, or your own.",
)
@click.option(
    "--steps",
    type=Whole(1, MOST_STEPS),
    metavar="N",
    help="Train up to this step. [default: the job's]",
)
@click.option(
    "--threads",
    type=Whole(1, 4096),
    metavar="N",
    help="PyTorch threads per rank. [default: processors / ranks]",
)
@click.option(
    "--lab/--no-lab",
    default=None,
    help="Emulate the cluster file's links and limits (needs root). [default: no; with --resume: "
    "as before]",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="What ranks compute on. [default: the job's [train] device, else what its cluster file "
    "says: cpu where it says nothing]",
)
@click.option("--share-gpu", is_flag=True, help="Let several ranks of a host compute on one GPU.")
@click.option("--resume", is_flag=True, help="Resume from the latest checkpoint.")
@click.option(
    "--restarts",
    type=Whole(0, 1_000_000),
    metavar="N",
    default=0,
    show_default=True,
    help="Maximum automatic restarts after a failure.",
)
@click.option("--no-calibrate", is_flag=True, help="Skip timing the ops; no prediction.")
@click.option(
    "--prepare-only",
    is_flag=True,
    help="Only write the run's folder, and print how to start it on one or several machines.",
)
@set_values
@click.option(
    "--json", "as_json", is_flag=True, help="Print the report as JSON; all else goes to stderr."
)
def command(
    job: Path | None,
    model: str | None,
    data: tuple[str, ...],
    run: Path | None,
    schedule: str | None,
    without: tuple[str, ...],
    plan: Path | None,
    steps: int | None,
    threads: int | None,
    lab: bool | None,
    device: str | None,
    share_gpu: bool,
    resume: bool,
    restarts: int,
    no_calibrate: bool,
    prepare_only: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Train JOB (a .toml file) with processes on this machine; for several machines see
    --prepare-only.

    Without JOB, trains --model on --data; the job is then written to the run's folder.

    Plans the job where it has no [layout] (its micro-batch is then chosen too), proves that
    it fits the memory budget, starts one process per rank, times their ops to predict the
    step, trains, saves checkpoints, and reports measurement against prediction.

    Ctrl-C finishes the current step, saves and ends with status 0; --resume then
    continues with exactly the same losses. A second Ctrl-C stops at once.

    Exit status: 2 the job is invalid, 3 it does not fit, 7 a checkpoint cannot be
    read or written, 8 a rank failed, 9 another launch that still runs owns the
    run's folder, 130 stopped by a second Ctrl-C.

    \b
    Examples:
      ratrain train job.toml
      ratrain train job.toml --schedule baseline-1f1b --steps 50
      ratrain train job.toml --lab
      ratrain train job.toml --device cuda
      ratrain train job.toml --resume
      ratrain train --model ~/models/SmolLM-135M --data notes.jsonl --steps 200
    """
    from ratrain.runtime.run.prepare import RunRequest
    from ratrain.runtime.run.ready import Launcher

    overrides += (f"train.device={device}",) if device else ()
    overrides += ("train.share_gpu=true",) if share_gpu else ()
    with ExitStack() as owning:
        written_job = None
        if job is None:
            job = written_job = _written_job(model, data, run, resume, owning)
        elif model or data:
            raise click.UsageError("give either JOB or --model and --data")
        request = RunRequest(
            job,
            schedule,
            without,
            plan,
            steps,
            threads=threads,
            calibrate=not no_calibrate,
            overrides=overrides,
        )
        launcher = Launcher(_COMMAND, _say, _prepare_data, owning)
        if resume:
            ready = _resumed(launcher, request, run)
        else:
            ready = _new(launcher, request, run, written_job.parent if written_job else None)
        if prepare_only:
            _show_command(ready, as_json)
            return
        if ready.step < ready.spec.end_step:
            _train(ready, _lab_wanted(ready, lab, resume), restarts, as_json)
        else:
            _say(f"already finished at step {ready.step}; to train further, give a larger --steps")
        _report(ready, as_json)


def _say(line: str) -> None:
    """What is not the report goes to stderr."""
    click.echo(line, err=True)


def _written_job(
    model: str | None, data: tuple[str, ...], run: Path | None, resume: bool, owning: ExitStack
) -> Path:
    """The job of a run that resumes, or one that is written for a model and text, for now to a
    folder that does not stay."""
    from ratrain.cli.starting import JobFiles, write_job
    from ratrain.runtime.run_folder import RunFolder

    if resume and run is not None:
        return Path(RunFolder(run).read_spec().job_path)
    if resume or model is None or not data:
        raise click.UsageError("give a JOB, or --model and --data; with --resume, a JOB or --run")
    folder = Path(owning.enter_context(TemporaryDirectory(prefix="ratrain-job-")))
    stem = Path(model).name.removesuffix(".json").removesuffix(".toml") or "model"
    file = folder / f"{stem}.toml"
    write_job(file, JobFiles(model, data), made_by="ratrain train --model --data")
    return file


def _new(
    launcher: Launcher, request: RunRequest, run: Path | None, job_folder: Path | None
) -> ReadyRun:
    """A run that begins; `job_folder`: where a job was written for it."""
    from ratrain.cli.progress import progress
    from ratrain.runtime.run.prepare import prepare_run
    from ratrain.runtime.run.resume import fresh_run

    with progress("planning and proving", "plans") as report:
        prepared = prepare_run(request, report)
    launcher.tokenise(prepared.case.job)
    name = f"{request.job_path.stem}-{prepared.case.job.schedule.name}"
    return launcher.new(prepared, run or fresh_run(RUNS, name), job_folder)


def _resumed(launcher: Launcher, request: RunRequest, run: Path | None) -> ReadyRun:
    from dataclasses import replace

    from ratrain.plan import load_job
    from ratrain.runtime.run.resume import newest_run

    if run is None:
        name = request.schedule or load_job(request.job_path, request.overrides).schedule.name
        run = newest_run(RUNS, f"{request.job_path.stem}-{name}")
        request = replace(request, schedule=None)  # it has named the folder
    return launcher.resumed(request, run)


def _prepare_data(job: JobSpec) -> Prepared:
    """Tokenises once what every rank reads; returns it."""
    from ratrain.cli.progress import progress
    from ratrain.corpus.of_job import data_of_job

    with progress("tokenising", "B") as report:
        return data_of_job(job, progress=report).prepared


def _lab_wanted(ready: ReadyRun, lab: bool | None, resume: bool) -> bool:
    from ratrain.runtime.run.facts import attempts

    before = attempts(ready.folder) if resume else []
    return lab if lab is not None else bool(before and before[-1].lab)


def _train(ready: ReadyRun, lab: bool, restarts: int, as_json: bool) -> None:
    from ratrain.cli.train_view import view
    from ratrain.readers.files import read_text
    from ratrain.runtime.run.session import lab_if_possible, run_session

    with (
        lab_if_possible(ready.job, ready.spec, lab, _say) as place,
        view(to_stderr=as_json) as show,
    ):
        ending = run_session(
            ready.folder,
            ready.spec,
            claim=ready.claim,
            lab=place,
            restarts=restarts,
            first_step=ready.step,
            show=show,
        )
    if ready.folder.notes.exists():
        for line in read_text(ready.folder.notes).splitlines():
            _say(f"note: {line}")
    if ending.stopped:
        _say(f"stopped after step {ending.step}; continue with --resume")


def _report(ready: ReadyRun, as_json: bool) -> None:
    from ratrain.cli.progress import progress
    from ratrain.runtime.run.report import write_report
    from ratrain.runtime.run.report_text import report_text

    with progress("writing the report"):
        report = write_report(ready.folder)
        page = _write_page(ready.folder.path)
    if as_json:
        print_json("train", {**report, "page": str(page) if page else None})
        return
    click.echo("\n".join(["", *report_text(report)]))
    if page is not None:
        click.echo(f"page         {page}")


def _write_page(run: Path) -> Path | None:
    """Writes report.html; a run that has trained is not failed by a page that cannot be made."""
    from ratrain.errors import RatrainError
    from ratrain.report.page import write_page
    from ratrain.report.read import contents_of, page_path

    path = page_path(run)
    try:
        write_page(contents_of(run), path)
    except (RatrainError, OSError) as error:
        _say(f"no page was written: {error}")
        return None
    return path


def _show_command(ready: ReadyRun, as_json: bool) -> None:
    from ratrain.runtime.run.launch import folder_note
    from ratrain.runtime.run.session import torchrun_command

    world_size = ready.spec.seats.world_size
    lines = torchrun_command(ready.folder.path, world_size)
    if as_json:
        body: dict[str, Any] = {
            "run": str(ready.folder.path),
            "world_size": world_size,
            "command": "\n".join(lines[:3]),
        }
        print_json("train", body)
        return
    note = folder_note(ready.folder.path, ready.job.checkpoint.disks)
    click.echo("\n".join([*lines, fitted_to_terminal(note, sys.stdout)]))
