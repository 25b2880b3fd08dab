"""Training on real processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ratrain.api.jobs import Job, job_of, require_file
from ratrain.api.plans import Plan
from ratrain.api.runs import Run, run_of
from ratrain.corpus.of_job import data_of_job
from ratrain.corpus.prepare import Prepared
from ratrain.describe.job import JobSpec
from ratrain.errors import SpecError
from ratrain.extras import require_package
from ratrain.runtime.rank.progress import Progress
from ratrain.runtime.run.machine_check import EMULATED
from ratrain.runtime.run.prepare import RunRequest, is_decided_by_plan, prepare_run
from ratrain.runtime.run.ready import Launcher, ReadyRun
from ratrain.runtime.run.reports.report import write_report
from ratrain.runtime.run.session import lab_if_possible, run_session
from ratrain.runtime.run.source import Source, source_of
from ratrain.runtime.run.working import send_run, working_folder
from ratrain.runtime.run_folder import RunFolder

require_package("torch")  # before a run is made whose ranks import it

_COMMAND = "ratrain.train"
StepProgress = Progress
"""A step's figures: step, loss, tokens per second, step time, memory per rank, time left."""


def train(
    job: Job | str | Path,
    *,
    run: str | Path | None = None,
    steps: int | None = None,
    plan: Plan | str | Path | None = None,
    resume: Run | str | Path | None = None,
    replan: bool = False,
    begin_from: Run | str | Path | None = None,
    restart_data: bool = False,
    threads: int | None = None,
    lab: bool = False,
    emulate: bool = False,
    restarts: int = 0,
    calibrate: bool = True,
    on_step: Callable[[StepProgress], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Trains a job with processes on this machine, as `ratrain train` does, and returns the run.

    Plans the job where it has no layout, proves that it fits, starts one process per rank, times
    their ops to predict the step, trains, saves checkpoints. Interrupting the notebook (or Ctrl-C)
    finishes the current step and saves; the run is returned, and `train(job, resume=run)` continues
    with exactly the same losses. A second interrupt stops at once.

    job: a job with [data], or its file. Ranks read the file: see `Job.using` for what may differ.
    run: the folder to make, or a URL for its checkpoints. Left out: runs/JOB-SCHEDULE, here.
    steps: train up to this step. Left out: the job's.
    plan: one of `ratrain.plan(job)`, or a plan file, in place of the job's layout and schedule.
    resume: a run, or its folder, to continue from its latest checkpoint.
    replan: with `resume`: go on with another program, made from the job as it is now or `plan`.
    begin_from: a run, its folder, or "FOLDER@STEP": the new run has that checkpoint's weights,
        optimizer state and place in the text, in the job's own layout and schedule.
    restart_data: with `begin_from`: read the text anew.
    threads: PyTorch threads per rank. Left out: a host's processors / its ranks.
    lab: emulate the cluster file's links and limits (needs root).
    emulate: run the job's devices as CPU processes, where this machine has no such devices.
    restarts: automatic restarts after a failure, at most.
    calibrate: time ops first; without, there is no prediction.
    on_step: called after every step with its figures. What it raises ends the run.
    progress: called with plans simulated and their number at most, where the job is planned.

    Raises a `RatrainError`: the job is wrong (`SpecError`), it does not fit (`Infeasible`), a
    checkpoint cannot be read or written (`CheckpointError`), a rank failed (`RunFailed`), another
    launch that still runs owns the folder (`RunTaken`).
    """
    if begin_from is not None and resume is not None:
        raise SpecError(
            "begins a new run, and resume continues one", place="begin_from", fix="give one of them"
        )
    if replan and resume is None:
        raise SpecError(
            "goes with resume", place="replan", fix="give a run to resume, or leave it out"
        )
    job = job_of(job)
    path = require_file(job)
    notes: list[str] = []
    with ExitStack() as owning:
        if isinstance(plan, Plan):
            plans = owning.enter_context(TemporaryDirectory())
            plan = plan.save(Path(plans) / "plan.json")
        request = RunRequest(
            path,
            plan_path=Path(plan) if plan is not None else None,
            steps=steps,
            threads=threads,
            calibrate=calibrate,
            overrides=(*job.overrides, *([EMULATED] if emulate else [])),
            replans=replan,
        )
        launcher = Launcher(_COMMAND, _quiet, _tokenised, owning)
        if resume is None:
            folder = None if run is None else working_folder(run)
            ready = _new(
                launcher, job, request, folder, _source(begin_from, restart_data), progress
            )
        else:
            ready = launcher.resumed(
                request, resume.folder if isinstance(resume, Run) else working_folder(resume)
            )
        if ready.step < ready.spec.end_step:
            _launch(ready, lab, restarts, on_step, notes)
        report = write_report(ready.folder)
        send_run(ready.folder)
        return run_of(ready.folder, report, notes)


def prepared_run(job: Job, run: str | Path | None, threads: int, owning: ExitStack) -> RunFolder:
    """A run that others start: planned, proved and tokenised, with nothing of it running."""
    launcher = Launcher("ratrain.ray_trainer", _quiet, _tokenised, owning, starts_here=False)
    request = RunRequest(require_file(job), threads=threads, overrides=job.overrides)
    folder = None if run is None else working_folder(run)
    return _new(launcher, job, request, folder, None, None).folder


def _new(
    launcher: Launcher,
    job: Job,
    request: RunRequest,
    run: Path | None,
    source: Source | None,
    progress: Callable[[int, int], None] | None,
) -> ReadyRun:
    chosen = job.spec.schedule
    if request.plan_path is None:
        request = replace(request, schedule=chosen.name, without=chosen.without)
    else:
        left = tuple(text for text in request.overrides if not is_decided_by_plan(text))
        request = replace(request, overrides=left)
    return launcher.new(prepare_run(request, progress), run, source=source)


def _source(begin_from: Run | str | Path | None, restart_data: bool) -> Source | None:
    if begin_from is None:
        return None
    folder = begin_from.folder if isinstance(begin_from, Run) else begin_from
    return source_of(str(folder), restarts_data=restart_data)


def _tokenised(job: JobSpec) -> Prepared:
    return data_of_job(job).prepared


def _quiet(_line: str) -> None:
    """A notebook shows the run that is returned, not how it was made ready."""


def _launch(
    ready: ReadyRun,
    lab: bool,
    restarts: int,
    on_step: Callable[[StepProgress], None] | None,
    notes: list[str],
) -> None:
    def show(progress: StepProgress | None, _stopping: bool) -> None:
        if progress is not None and on_step is not None:
            on_step(progress)

    with lab_if_possible(ready.job, ready.spec, lab, notes.append) as place:
        run_session(
            ready.folder,
            ready.spec,
            claim=ready.claim,
            lab=place,
            restarts=restarts,
            first_step=ready.step,
            show=show,
            say=notes.append,
        )
