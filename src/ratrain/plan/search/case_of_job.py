"""The case of a job. Without a layout it is that of the plan that `ratrain plan` writes.

A layout's stages may join micro-batches: then the case is one of a plan, too. All else is chosen as
for stages that compute one by one. Where memory does not suffice for what stages join, these
recover their activations, and then all stages do, if the schedule has recovery.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ratrain.describe.job import JobSpec
from ratrain.errors import SpecError
from ratrain.plan.case.case import Case, case_of
from ratrain.plan.case.subject import case_of_subject
from ratrain.plan.case.uneven import UnevenCase
from ratrain.plan.file.reading import uneven_plan
from ratrain.plan.file.uneven import UnevenPlan
from ratrain.plan.file.writing import plan_of
from ratrain.plan.layout.candidate import Candidate
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.sizes import layers_of_stages
from ratrain.plan.price.trial import only_over_budget
from ratrain.plan.search.every_plan import beside_words, every_plan, subject_of_simulated
from ratrain.plan.search.layouts import Progress
from ratrain.program.replicas import Recovery
from ratrain.program.setup import Accumulation
from ratrain.program.strategies import recovery_modes


def case_of_job(job: JobSpec, progress: Progress | None = None) -> Case | UnevenCase:
    """The case of a job, planned where it has no layout; a SpecError where no program says it."""
    layout = job.layout
    if layout is None:
        plans = every_plan(job, progress)
        case = case_of_subject(subject_of_simulated(plans.chosen))
        return replace(case, beside=tuple(beside_words(plans)))
    if max(layout.joined, default=1) == 1:
        return case_of(_one_by_one(job))
    cases = map(UnevenCase, _plans(job))
    first = next(cases)
    if first.proved.verdict.sound or not only_over_budget(first.proved.verdict):
        return first
    return next((case for case in cases if case.proved.verdict.sound), first)


def _one_by_one(job: JobSpec) -> JobSpec:
    """The job without what its stages join."""
    assert job.layout is not None
    return replace(job, layout=replace(job.layout, joined=()))


def _plans(job: JobSpec) -> Iterator[UnevenPlan]:
    """The job's plan, and those that recover more."""
    assert job.layout is not None
    joined, candidate = job.layout.joined, _candidate(case_of(_one_by_one(job)))
    usual, mode = candidate.recovery, candidate.strategy.recovery
    on_joined = tuple(
        mode if several > 1 else stage for several, stage in zip(joined, usual, strict=True)
    )
    for recovery in dict.fromkeys((usual, on_joined, (mode,) * len(usual))):
        yield _joining(job, replace(candidate, recovery=recovery), joined)


def _candidate(case: Case) -> Candidate:
    """What a plan file says of a case."""
    layout = replace(case.layout, layers=layers_of_stages(case.job, case.layout))
    choices = case.choices
    return Candidate(
        replace(case.job, layout=layout),
        replace(case.placement, layout=layout),
        case.strategy,
        tuple(map(Recovery, recovery_modes(case.strategy, choices, layout.stages))),
        StateMode(case.strategy.sharding, choices.accumulation is Accumulation.SHARDED),
        case.setup.recovery_buffer,
    )


def _joining(job: JobSpec, candidate: Candidate, joined: tuple[int, ...]) -> UnevenPlan:
    """The plan of a candidate whose stages compute so many micro-batches at once."""
    plan = plan_of(candidate)
    replicas = tuple(
        replace(
            replica,
            stages=tuple(
                replace(stage, micro_batch=stage.micro_batch * several)
                for stage, several in zip(replica.stages, joined, strict=True)
            ),
        )
        for replica in plan.replicas
    )
    file = str(job.path or "job")
    try:
        made = uneven_plan(replace(plan, replicas=replicas), file)
    except SpecError as error:
        raise SpecError(error.what, place=f"{file} [layout] joined", fix=error.fix) from None
    given = {"train": job.train, "data": job.data, "checkpoint": job.checkpoint}
    return replace(made, job=replace(made.job, path=job.path, **given))
