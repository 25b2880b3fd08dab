"""From a job to a run folder: the program that will run, proved, and who plays which part."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from ratrain.describe.job import JobSpec, load_job
from ratrain.describe.units import format_bytes
from ratrain.errors import Infeasible, SpecError
from ratrain.models.division import check_divides
from ratrain.plan.case import Case, case_of, case_of_candidate
from ratrain.plan.plan_file import load_plan, to_candidate
from ratrain.program.actions import Kind
from ratrain.program.passes.clipping import clip_global_norm
from ratrain.program.passes.saving import save_states
from ratrain.program.program import Program
from ratrain.program.setup import Recovery
from ratrain.program.verify import Verdict, verify
from ratrain.runtime.run.facts import write_facts
from ratrain.runtime.run_folder import RunFolder, RunSpec
from ratrain.runtime.seats import seats_of


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


@dataclass(frozen=True)
class PreparedRun:
    """A run that is proved and may start."""

    case: Case
    program: Program
    verdict: Verdict
    spec: RunSpec

    @property
    def world_size(self) -> int:
        return self.spec.seats.world_size

    def proof(self) -> list[str]:
        """What was proved about memory, in words."""
        bound = max(one.total_bytes for one in self.verdict.bounds)
        budget = self.program.setup.budget_bytes
        said = f"proved: at most {format_bytes(bound)} a rank on any timing"
        return [said + (f", of {format_bytes(budget)}: fits" if budget else "")]


def prepare_run(request: RunRequest) -> PreparedRun:
    """The `PreparedRun` of a request; an error names what does not fit or cannot be run."""
    job = _job(request)
    case = _case(job, request)
    _require_runnable(case, request)
    program = _complete(case.program, job)
    check_divides(case.job.model.spec, program.setup.tensor)
    seats = seats_of(program.setup, [own.members for own in case.placement.classes])
    verdict = verify(program)
    _require_fit(verdict, program)
    spec = RunSpec(
        job_path=str(request.job_path.resolve()),
        pipeline=seats.pipeline,
        data=seats.data,
        replica_class=seats.replica_class,
        first_rank=seats.first_rank,
        tensor=seats.tensor,
        micro_batch=case.job.batch.micro_batch,
        dtype=job.schedule.dtype,
        threads=request.threads or max(1, (os.cpu_count() or 1) // seats.world_size),
        end_step=request.steps or job.train.steps,
        record_steps=request.record_steps,
        calibrate=request.calibrate,
    )
    return PreparedRun(case, program, verdict, spec)


def write_run(prepared: PreparedRun, folder: RunFolder) -> None:
    """Makes the run's folder; one that holds another run's checkpoints is left alone."""
    if folder.metrics.exists():
        raise SpecError(
            "holds a run already",
            place=str(folder.path),
            fix="continue it with --resume, or name another folder with --run",
        )
    folder.write_spec(prepared.spec, prepared.program)
    write_facts(prepared, folder)
    shutil.copyfile(prepared.spec.job_path, folder.path / "job.toml")


def _job(request: RunRequest) -> JobSpec:
    job = load_job(request.job_path)
    if job.data is None:
        raise SpecError(
            "there is no [data] to train on",
            place=str(request.job_path),
            fix='add [data] with files = ["corpus/*.txt"]',
        )
    schedule = job.schedule
    if request.schedule is not None:
        schedule = replace(schedule, name=request.schedule)
    if request.without:
        schedule = replace(schedule, without=request.without)
    return replace(job, schedule=schedule)


def _case(job: JobSpec, request: RunRequest) -> Case:
    if request.plan_path is None:
        return case_of(job)
    planned = to_candidate(load_plan(request.plan_path), str(request.plan_path))
    trained = replace(planned.job, train=job.train, data=job.data, checkpoint=job.checkpoint)
    case = case_of_candidate(replace(planned, job=trained))
    if case.job.batch.sequences != job.batch.sequences:
        raise SpecError(
            f"the plan is for {case.job.batch.sequences} sequences, the job has "
            f"{job.batch.sequences}",
            place=str(request.plan_path),
            fix="plan again",
        )
    if case.job.model.spec != job.model.spec:
        raise SpecError(
            f"the plan is for {case.job.model.spec.name}, the job trains {job.model.spec.name}",
            place=str(request.plan_path),
            fix="plan again",
        )
    return case


def _require_runnable(case: Case, request: RunRequest) -> None:
    """Refuses what can be planned and simulated, and not run yet."""
    plan, file = request.plan_path, request.job_path
    if case.layout.sequence_parallel:
        raise SpecError(
            "sequence parallelism cannot run yet",
            place=f"{plan or f'{file} [layout]'} sequence_parallel",
            fix="leave it out, or plan again from the job with its [data]",
        )
    if case.choices.recovery and Recovery.SELECTIVE in case.choices.recovery:
        raise SpecError(
            "selective recovery cannot run yet; nor would it free anything, because attention here "
            "keeps no scores",
            place=f"{plan or f'{file} [schedule]'} recovery",
            fix='write "none"' if plan else 'write recovery = "keep-all"',
        )


def _complete(program: Program, job: JobSpec) -> Program:
    """The program with clipping where it is asked for, and with its Saves."""
    kinds = {action.kind for lane in program.lanes.values() for action in lane}
    clips = job.train.clip_norm is not None or job.schedule.dtype == "fp16"
    if clips and Kind.ClipNorm not in kinds:
        program = clip_global_norm(program)
    if Kind.Save not in kinds:
        program = save_states(program)
    return program


def _require_fit(verdict: Verdict, program: Program) -> None:
    if verdict.sound:
        return
    worst = max(verdict.bounds, key=lambda bound: bound.total_bytes, default=None)
    if worst is None:
        raise Infeasible("; ".join(finding.message for finding in verdict.findings[:3]))
    item = max(worst.by_family, key=lambda name: worst.by_family[name])
    budget = program.setup.budget_bytes or 0
    raise Infeasible(
        f"rank {worst.rank} can need {format_bytes(worst.total_bytes)}, "
        f"{format_bytes(worst.total_bytes - budget)} more than the budget; {item} takes "
        f"{format_bytes(worst.by_family[item])} of it",
        fix="leave [layout] out, so that a layout that fits is looked for; "
        "`ratrain plan` says what would fit",
    )
