"""`ratrain train`: a job's program on real processes."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from ratrain.cli.runs.prepared_run import show_commands
from ratrain.cli.runs.run_report import show_report
from ratrain.cli.terminal import completion
from ratrain.cli.terminal.jobs import set_values
from ratrain.cli.terminal.options import MOST_STEPS, NEW_RUN, PATH, DeviceName, Whole
from ratrain.errors import SAVED_NOT_FINISHED, RatrainError

if TYPE_CHECKING:
    from ratrain.corpus.prepare import Prepared
    from ratrain.describe.job import JobSpec
    from ratrain.runtime.run.prepare import RunRequest
    from ratrain.runtime.run.ready import Launcher, ReadyRun
    from ratrain.runtime.run.source import Source

_COMMAND = "ratrain train"


@click.command()
@click.argument("job", type=PATH, required=False)
@click.option(
    "--model",
    metavar="NAME|FOLDER",
    shell_complete=completion.models,
    help="Without JOB: a preset, a Hugging Face folder, or a downloaded hub id.",
)
@click.option("--data", multiple=True, metavar="FILE", help="Without JOB: text to train on.")
@click.option(
    "--run",
    type=NEW_RUN,
    metavar="FOLDER|URL",
    help="The run's folder, or the URL that its checkpoints go to: s3://, gs:// or az://. "
    "[default: runs/JOB-SCHEDULE, numbered where that exists; with "
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
    help="PyTorch threads per rank. [default: a host's processors / its ranks]",
)
@click.option(
    "--lab/--no-lab",
    default=None,
    help="Emulate the cluster file's links and limits (needs root). [default: no; with --resume: "
    "as before]",
)
@click.option(
    "--emulate",
    is_flag=True,
    help="Run the job's devices as CPU processes here, within their budgets, where this machine "
    "has no such devices.",
)
@click.option(
    "--from",
    "source",
    metavar="RUN[@STEP]",
    help="Begin a new run from another run's checkpoint: its weights, optimizer state and place in "
    "the text, in the job's own layout and schedule. [default: its latest]",
)
@click.option("--restart-data", is_flag=True, help="With --from: read the text anew.")
@click.option(
    "--device",
    type=DeviceName(),
    help="What ranks compute on; deferred is a CPU that finds missing order, mt3000 one with the "
    "sums of an MT-3000's kernels; or a declared one of your own. [default: the job's "
    "[train] device, else what its cluster file says: cpu where it says nothing]",
)
@click.option("--share-gpu", is_flag=True, help="Let several ranks of a host compute on one GPU.")
@click.option("--resume", is_flag=True, help="Resume from the latest checkpoint.")
@click.option(
    "--replan",
    is_flag=True,
    help="With --resume: go on with another program, made anew from the job (layout, schedule, "
    "cluster, sharding) or from --plan.",
)
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
    emulate: bool,
    source: str | None,
    restart_data: bool,
    device: str | None,
    share_gpu: bool,
    resume: bool,
    replan: bool,
    restarts: int,
    no_calibrate: bool,
    prepare_only: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> int:
    """Train JOB (a .toml file) with processes on this machine; for several machines see
    --prepare-only.

    Without JOB, trains --model on --data; the job is then written to the run's folder.

    Plans the job where it has no [layout] (its micro-batch is then chosen too), proves that
    it fits the memory budget, starts one process per rank, times their ops to predict the
    step, trains, saves checkpoints, and reports measurement against prediction.

    Ctrl-C or SIGTERM finishes the current step, saves and ends with status 75;
    --resume then continues with exactly the same losses. A second one stops at once.

    Exit status: 2 the job is invalid, 3 it does not fit here, 7 a checkpoint cannot be
    read or written, 8 a rank failed, 9 another launch that still runs owns the
    run's folder, 75 stopped and saved, 130 stopped by a second Ctrl-C.

    \b
    Examples:
      ratrain train job.toml
      ratrain train job.toml --schedule baseline-1f1b --steps 50
      ratrain train job.toml --lab
      ratrain train job.toml --device cuda
      ratrain train job.toml --resume
      ratrain train job.toml --run runs/job --resume --replan --plan other.json
      ratrain train other-layout.toml --from runs/job-ratrain@400
      ratrain train --model ~/models/SmolLM-135M --data notes.jsonl --steps 200
    """
    from ratrain.engines.allocation import require_one_host
    from ratrain.extras import require_package
    from ratrain.runtime.run.machine_check import EMULATED
    from ratrain.runtime.run.prepare import RunRequest
    from ratrain.runtime.run.ready import Launcher
    from ratrain.runtime.run.source import source_of
    from ratrain.runtime.run.working import send_run

    require_package("torch")  # before ranks start, which import it
    if source is not None and resume:
        raise click.UsageError("--from begins a new run, --resume continues one: give one of them")
    if restart_data and source is None:
        raise click.UsageError("--restart-data goes with --from")
    if replan and not resume:
        raise click.UsageError("--replan goes with --resume; a new run is planned anyway")
    if emulate and device not in (None, "cpu"):
        raise click.UsageError(f"--emulate is --device cpu, and not --device {device}")
    if not prepare_only:
        require_one_host(os.environ, str(job or "JOB"))
    if device == "cuda" and not prepare_only:
        from ratrain.devices import require_gpu

        require_gpu(0)  # before anything is planned for it
    overrides += (EMULATED,) if emulate else ()
    overrides += (f"train.device={device}",) if device else ()
    overrides += ("train.share_gpu=true",) if share_gpu else ()
    with ExitStack() as owning:
        written_job = None
        if job is None:
            job, overrides = _written_job(model, data, run, resume, overrides, schedule, owning)
            written_job = job
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
            replans=replan,
        )
        launcher = Launcher(_COMMAND, _say, prepare_data, owning, starts_here=not prepare_only)
        if resume:
            ready = _resumed(launcher, request, run)
        else:
            begin = source_of(source, restarts_data=restart_data) if source else None
            job_folder = written_job.parent if written_job else None
            ready = new_run(launcher, request, run, job_folder, begin)
        if prepare_only:
            show_commands(ready, as_json)
            return 0
        stopped = False
        if ready.step < ready.spec.end_step:
            stopped = _train(ready, _lab_wanted(ready, lab, resume), restarts, as_json)
        else:
            _say(f"already finished at step {ready.step}; to train further, give a larger --steps")
        show_report(ready.folder, as_json)
        send_run(ready.folder)
        return SAVED_NOT_FINISHED if stopped else 0


def _say(line: str) -> None:
    """What is not the report goes to stderr."""
    click.echo(line, err=True)


def _written_job(
    model: str | None,
    data: tuple[str, ...],
    run: Path | None,
    resume: bool,
    overrides: tuple[str, ...],
    schedule: str | None,
    owning: ExitStack,
) -> tuple[Path, tuple[str, ...]]:
    """The job of a run that resumes, or one that is written for a model and text, for now to a
    folder that does not stay; and the `overrides` as they are for it."""
    from ratrain.cli.planning.starting import JobFiles, written_job
    from ratrain.runtime.run_folder import RunFolder

    if resume and run is not None:
        return Path(RunFolder(run).read_spec().job_path), overrides
    if resume or model is None or not data:
        raise click.UsageError("give a JOB, or --model and --data; with --resume, a JOB or --run")
    folder = Path(owning.enter_context(TemporaryDirectory(prefix="ratrain-job-")))
    owning.enter_context(_named_by_the_option(folder, model))
    return written_job(
        folder,
        JobFiles(model, data),
        overrides,
        schedule,
        made_by="ratrain train --model --data",
        check=prepare_data,
    )


@contextmanager
def _named_by_the_option(folder: Path, model: str) -> Generator[None]:
    """Errors name a job in `folder`, which its user has not seen, by what they typed."""
    try:
        yield
    except RatrainError as error:
        written = rf"{re.escape(str(folder))}/\S+?\.toml"
        error.place = re.sub(written, lambda _: f"--model {model}", error.place)
        raise


def new_run(
    launcher: Launcher,
    request: RunRequest,
    run: Path | None,
    job_folder: Path | None,
    source: Source | None,
) -> ReadyRun:
    """A run that begins; `job_folder`: where a job was written for it."""
    from ratrain.cli.terminal.progress import progress
    from ratrain.runtime.run.prepare import prepare_run

    with progress("planning and proving", "plans") as report:
        prepared = prepare_run(request, report)
    return launcher.new(prepared, run, job_folder, source)


def _resumed(launcher: Launcher, request: RunRequest, run: Path | None) -> ReadyRun:
    from dataclasses import replace

    from ratrain.plan import load_job
    from ratrain.runtime.run.ready import RUNS
    from ratrain.runtime.run.resume import newest_run

    if run is None:
        name = request.schedule or load_job(request.job_path, request.overrides).schedule.name
        run = newest_run(RUNS, f"{request.job_path.stem}-{name}")
        if not request.replans:
            request = replace(request, schedule=None)  # it has named the folder
    return launcher.resumed(request, run)


def prepare_data(job: JobSpec) -> Prepared:
    """Tokenises once what every rank reads; returns it."""
    from ratrain.cli.terminal.progress import progress
    from ratrain.corpus.of_job import data_of_job

    with progress("tokenising", "B") as report:
        return data_of_job(job, progress=report).prepared


def _lab_wanted(ready: ReadyRun, lab: bool | None, resume: bool) -> bool:
    from ratrain.runtime.attempts import attempts

    before = attempts(ready.folder) if resume else []
    return lab if lab is not None else bool(before and before[-1].lab)


def _train(ready: ReadyRun, lab: bool, restarts: int, as_json: bool) -> bool:
    """Whether the run was stopped before its end."""
    from ratrain.cli.runs.train_view import view
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
            say=_say,
        )
    if ready.folder.notes.exists():
        for line in read_text(ready.folder.notes).splitlines():
            _say(f"note: {line}")
    if ending.stopped:
        _say(f"stopped after step {ending.step}; continue with --resume")
    return ending.stopped
