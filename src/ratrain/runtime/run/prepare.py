"""From a job to a run folder: the program that will run, proved, and who plays which part."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ratrain.corpus.prompts import prompts_of
from ratrain.cost.precision import dtype_words
from ratrain.describe.job import JobSpec
from ratrain.describe.lines import wrapped
from ratrain.describe.program_keys import PROGRAM_KEYS
from ratrain.describe.units import format_bytes
from ratrain.errors import Infeasible, ProgramError, SpecError
from ratrain.models.division import check_divides
from ratrain.plan import Case, case_of_job, load_job, load_plan, plan_of_file
from ratrain.plan.search import Progress
from ratrain.plan.words import peaks_in_words
from ratrain.program.bounds import PeakBound
from ratrain.program.passes.forward_only import first_forwards, forward_only
from ratrain.program.program import Program
from ratrain.program.settled import Proved
from ratrain.program.setup import Setup
from ratrain.program.text.family_groups import takes
from ratrain.program.tiers import DISK
from ratrain.program.verify import Rule, Verdict, verify
from ratrain.runtime.attempts import attempts
from ratrain.runtime.device_kinds import device_kinds, require_one_kind
from ratrain.runtime.run.collectives import chosen_collectives
from ratrain.runtime.run.facts import write_facts
from ratrain.runtime.run.own_folder import require_own_folder
from ratrain.runtime.run.trainable import (
    require_gatherable,
    require_trainable,
    require_whole_periods,
)
from ratrain.runtime.run_folder import Check, RunFolder, RunSpec
from ratrain.runtime.seats import Seats, seats_of

_DECIDED_BY_PLAN = ("layout", "batch.micro_batch", "schedule.")
"""Beginnings of the settings that a plan file decides."""
_IN_BOTH = frozenset(f"{key.table}.{key.file_key}" for key in PROGRAM_KEYS if not key.decided)
"""What a plan and a job both say: the two must agree, wherever the job says it."""


@dataclass(frozen=True)
class RunRequest:
    """What the user asks for; None: as the job says."""

    job_path: Path
    schedule: str | None = None
    without: tuple[str, ...] = ()
    plan_path: Path | None = None
    steps: int | None = None
    threads: int | None = None
    calibrate: bool = True
    record_steps: int = 8
    overrides: tuple[str, ...] = ()  # of the job file's values, as `--set` has them
    check: Check = ""  # as `RunSpec.check`
    replans: bool = False  # a run that resumes gets another program: the job's, or the plan's


@dataclass(frozen=True)
class PreparedRun:
    """A run that is proved and may start. `file_job`: the job as its file says it; `case.job` has
    besides what the command line said and a plan chose: schedule, layout, micro-batch."""

    file_job: JobSpec
    case: Case
    proved: Proved
    spec: RunSpec

    @property
    def verdict(self) -> Verdict:
        return self.proved.verdict

    @property
    def program(self) -> Program:
        """The program, written out."""
        return self.case.program

    @property
    def world_size(self) -> int:
        return self.spec.seats.world_size

    @property
    def peak_bytes(self) -> list[int]:
        """Proven of each program rank, in its device's memory and in the host's."""
        every = (*self.verdict.bounds, *self.verdict.lower_bounds)
        bounds = [bound for bound in every if bound.tier != DISK]
        ranks = range(self.proved.program.setup.ranks)
        return [sum(b.total_bytes for b in bounds if b.rank == rank) for rank in ranks]

    def seating(self) -> list[str]:
        """Which rank belongs on which device, where that is not the cluster's order."""
        devices = self.case.job.cluster.members()
        placed = [
            f"{rank} on {number} ({devices[number].kind.name})"
            for rank, number in enumerate(self.spec.devices)
        ]
        if not placed:
            return []
        return wrapped(f"ranks on devices: {', '.join(placed)}")

    def proof(self) -> list[str]:
        """What was proved about memory, in words."""
        setup = self.proved.program.setup
        limited = all(setup.budget_of(bound.rank) for bound in self.verdict.bounds)
        words = peaks_in_words(self.verdict.bounds, setup)
        return wrapped(f"{words}: fits" if limited else words)


def prepare_run(request: RunRequest, progress: Progress | None = None) -> PreparedRun:
    """The `PreparedRun` of a request; an error names what does not fit or cannot be run.

    `progress` takes plans simulated and their number at most, where the job has no layout.
    """
    file_job = _given(request)
    job = _with_flags(file_job, request)
    case = _case(job, request, progress)
    _require_runnable(case, request)
    proved = case.proved
    setup, verdict = proved.program.setup, proved.verdict
    layout_source = request.plan_path or f"{request.job_path} [layout]"
    for degree in sorted({member.tensor for member in setup.members}):
        check_divides(case.job.model.spec, degree, f"{layout_source} tensor")
    sizes = tuple(replica.micro_batch for replica in case.plan.replicas)
    seats = seats_of(setup, tuple(replica.members for replica in case.plan.replicas))
    _require_fit(verdict, setup, str(layout_source))
    require_whole_periods(case.job, setup.alike_every)
    if job.data is not None and job.data.validation:
        validation = forward_only(case.program)
        _require_fit(verify(validation), validation.setup, str(layout_source))
    _require_sampled(case, str(layout_source))
    require_gatherable(case.job, case.program.setup)
    spec = RunSpec(
        job_path=str(request.job_path.resolve()),
        pipeline=seats.pipeline,
        data=seats.data,
        replica_class=seats.replica_class,
        first_rank=seats.first_rank,
        tensor=seats.tensor,
        micro_batch=sizes[0],
        dtype=case.job.schedule.dtype,
        gradient_dtype=case.job.schedule.gradient_dtype,
        gradient_wire=case.job.schedule.gradient_wire or "",
        boundary_wire=case.job.schedule.boundary_wire or "",
        error_feedback=case.job.schedule.error_feedback,
        attention=case.job.schedule.attention,
        threads=request.threads or 0,
        end_step=request.steps or job.train.steps,
        record_steps=request.record_steps,
        calibrate=request.calibrate and not request.check,
        allocator=not request.check,  # comparing takes memory that no program knows
        check=request.check,
        tls=job.train.tls,
        overrides=request.overrides,
        devices=_devices(case, seats),
        depths=seats.depths,
        degrees=seats.degrees,
        micro_batches=sizes if len(set(sizes)) > 1 else (),
    )
    devices = [case.job.cluster.members()[number] for number in spec.device_numbers]
    chosen = chosen_collectives(case, seats, tuple(device.host for device in devices))
    spec = replace(spec, **vars(chosen))
    if case.job.unlike:
        dtypes = tuple(case.job.dtype_of(device.kind) for device in devices)
        used = {device.kind.name for device in devices}
        others = {kind: dtype for kind, dtype in case.job.dtypes.items() if kind in used}
        words = dtype_words(others, case.job.schedule.dtype)
        spec = replace(spec, dtypes=dtypes, dtype_words=words)
    require_one_kind(case.job, device_kinds(case.job, spec))
    return PreparedRun(file_job, case, proved, spec)


def write_run(prepared: PreparedRun, folder: RunFolder, job_files: Path | None = None) -> None:
    """Makes the run's folder, which must be ours (see ownership.py); one that holds a run is left
    alone, unless that failed before its first step. `job_files`: a folder with the job's own files,
    which move into the run's."""
    require_own_folder(folder, Path(prepared.spec.job_path), job_files)
    if folder.metrics.exists():
        raise SpecError(
            "already holds a run",
            place=str(folder.path),
            fix="continue it with --resume, or choose another folder with --run",
        )
    if folder.holds_run and not attempts(folder):
        raise SpecError(
            "holds a run that was prepared and has not started yet",
            place=str(folder.path),
            fix="start it with --resume or torchrun, remove it, or choose another folder with "
            "--run",
        )
    spec, job_copy = prepared.spec, folder.path / "job.toml"
    if job_files is not None:
        spec = replace(spec, job_path=str(job_copy.resolve()))
    folder.write_spec(spec, prepared.proved.program)
    job = Path(prepared.spec.job_path)
    for path in (job,) if job_files is None else job_files.iterdir():
        shutil.copyfile(path, job_copy if path.name == job.name else folder.path / path.name)
    seats, verdict = prepared.spec.seats, prepared.verdict
    write_facts(folder, prepared.file_job, prepared.case, seats, verdict)


def _devices(case: Case, seats: Seats) -> tuple[int, ...]:
    """The devices that a plan or the planner chose, by world rank; () for the cluster's order."""
    chosen = tuple(
        case.device(seat.data, seat.pipeline, seat.division.rank).index for seat in seats.all()
    )
    return () if chosen == tuple(range(len(chosen))) else chosen


def _given(request: RunRequest) -> JobSpec:
    job = load_job(request.job_path, request.overrides)
    if job.data is None:
        raise SpecError(
            "there is no [data] to train on",
            place=str(request.job_path),
            fix='add [data] with files = ["corpus/*.txt"]',
        )
    require_trainable(job)
    return job


def _with_flags(job: JobSpec, request: RunRequest) -> JobSpec:
    schedule = job.schedule
    if request.schedule is not None:
        schedule = replace(schedule, name=request.schedule)
    if request.without:
        schedule = replace(schedule, without=request.without)
    return replace(job, schedule=schedule)


def _case(job: JobSpec, request: RunRequest, progress: Progress | None) -> Case:
    if request.plan_path is None:
        return case_of_job(job, progress)
    _require_left_to_plan(request)
    plan, file = load_plan(request.plan_path), str(request.plan_path)
    planned = plan_of_file(plan, file)
    # With the job's path: its data is beside the job, wherever the plan is.
    trained = replace(
        planned.job, path=job.path, train=job.train, data=job.data, checkpoint=job.checkpoint
    )
    case = Case(replace(planned, job=trained))
    _require_same_job(planned.job, job, str(request.plan_path))
    return case


def is_decided_by_plan(override: str) -> bool:
    """Whether `KEY=VALUE` sets what a plan file decides."""
    key = override.partition("=")[0].strip()
    setting = ".".join(key.split(".")[:2])  # schedule.dtypes.old: of a table in the table
    return key.startswith(_DECIDED_BY_PLAN) and setting not in _IN_BOTH


def _require_left_to_plan(request: RunRequest) -> None:
    """Refuses what a command line says of things that the plan file decides."""
    said = [
        f"--set {text.partition('=')[0].strip()}"
        for text in request.overrides
        if is_decided_by_plan(text)
    ]
    said += ["--schedule"] if request.schedule is not None else []
    said += ["--without"] if request.without else []
    if said:
        raise SpecError(
            f"{request.plan_path} decides this already",
            place=said[0],
            fix="leave it out, or set it in the job and plan again: `ratrain plan JOB -o PLAN`",
        )


def _require_same_job(planned: JobSpec, job: JobSpec, plan: str) -> None:
    """Refuses a plan that was made for another job: what it proves would not be what runs."""
    in_plan, in_job = _decided_in_both(planned), _decided_in_both(job)
    for setting, value in in_plan.items():
        if value != in_job[setting]:
            raise SpecError(
                f"the plan has {setting} = {value!r}, the job has {in_job[setting]!r}",
                place=plan,
                fix="let the job say the same, or plan again: `ratrain plan JOB -o PLAN`",
            )


def _decided_in_both(job: JobSpec) -> dict[str, object]:
    """What a plan file and a job file both say. A model is called otherwise in another folder."""
    model = asdict(job.model.spec)
    del model["name"], model["source"]
    keys = {key.file_key: key.compared(job) for key in PROGRAM_KEYS if not key.decided}
    return {
        "cluster": job.cluster.spec.name,
        "devices": job.cluster.devices,
        "sequences": job.batch.sequences,
        "sequence_length": job.model.sequence_length,
        **keys,
        **model,
    }


def _require_runnable(case: Case, request: RunRequest) -> None:
    """Refuses what can be planned and simulated, and not run."""
    backend, plan = case.job.backend, request.plan_path
    if not backend.trains:
        raise SpecError(
            f"the backend {backend.name} cannot train: it is {backend.doc}",
            place=f"{plan or f'{request.job_path} [schedule]'} backend",
            fix='write backend = "torch" in the job and plan again'
            if plan
            else 'write "torch", or leave it out',
        )
    for what, fix in case.refusals:
        raise SpecError(what, place=f"{plan} replicas" if plan else str(request.job_path), fix=fix)


def _require_sampled(case: Case, source: str) -> None:
    """Where samples are asked for: their prompts, and their program, or a SpecError."""
    job = case.job
    if not prompts_of(job):
        return
    place = f"{job.path or 'job'} [train] sample_every"
    if job.model.spec.own:
        raise SpecError(
            "modules of your own are not sampled from while they are trained",
            place=place,
            fix="leave it out, and use `ratrain sample` on a checkpoint",
        )
    try:
        samples = first_forwards(case.program)
    except ProgramError as error:
        raise SpecError(error.what, place=place, fix=error.fix) from error
    _require_fit(verify(samples), samples.setup, source)


def _require_fit(verdict: Verdict, setup: Setup, place: str) -> None:
    if verdict.sound:
        return
    broken = [f for f in verdict.findings if f.rule is not Rule.OVER_BUDGET]
    if broken:
        raise Infeasible(
            "the program cannot run: " + "; ".join(finding.message for finding in broken[:3]),
            place=place,
            fix="choose another schedule, or leave out passes that it was given; report it where "
            "the schedule is a built-in one as it stands",
        )
    finding = verdict.findings[0]
    bounds = [b for b in (*verdict.bounds, *verdict.lower_bounds) if b.rank == finding.rank]
    worst = next(b for b in bounds if b.total_bytes > (_budget(setup, b) or b.total_bytes))
    item = max(worst.by_family, key=lambda name: worst.by_family[name])
    budget = _budget(setup, worst) or 0
    raise Infeasible(
        f"rank {worst.rank} can need {format_bytes(worst.total_bytes)} of "
        f"{worst.tier or setup.tier}, {format_bytes(worst.total_bytes - budget)} more than "
        f"the budget; {takes(item)} {format_bytes(worst.by_family[item])}",
        place=place,
        fix="remove [layout] to have RATrain find one that fits; `ratrain "
        "plan` shows what would fit",
    )


def _budget(setup: Setup, bound: PeakBound) -> int | None:
    return setup.budget_of(bound.rank, bound.tier)
