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
from ratrain.plan.case.case import Case
from ratrain.plan.case.of_layout import case_of
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.file.writing import file_of_plan
from ratrain.plan.layout.plan import Plan
from ratrain.plan.price.trial import only_over_budget
from ratrain.plan.search.every_plan import beside_words, every_plan
from ratrain.plan.search.layouts import Progress


def case_of_job(job: JobSpec, progress: Progress | None = None) -> Case:
    """The case of a job, planned where it has no layout; a SpecError where no program says it."""
    layout = job.layout
    if layout is None:
        plans = every_plan(job, progress)
        return Case(plans.chosen.subject(), beside=tuple(beside_words(plans)))
    if max(layout.joined, default=1) == 1:
        return case_of(_one_by_one(job))
    cases = map(Case, _plans(job))
    first = next(cases)
    if first.proved.verdict.sound or not only_over_budget(first.proved.verdict):
        return first
    return next((case for case in cases if case.proved.verdict.sound), first)


def _one_by_one(job: JobSpec) -> JobSpec:
    """The job without what its stages join."""
    assert job.layout is not None
    return replace(job, layout=replace(job.layout, joined=()))


def _plans(job: JobSpec) -> Iterator[Plan]:
    """The job's plan, and those that recover more."""
    assert job.layout is not None
    joined, plan = job.layout.joined, case_of(_one_by_one(job)).plan
    usual, mode = plan.alike.recovery, plan.strategy.recovery
    on_joined = tuple(
        mode if several > 1 else stage for several, stage in zip(joined, usual, strict=True)
    )
    for recovery in dict.fromkeys((usual, on_joined, (mode,) * len(usual))):
        yield _joining(job, plan.recovering(recovery), joined)


def _joining(job: JobSpec, plan: Plan, joined: tuple[int, ...]) -> Plan:
    """The plan whose stages compute so many micro-batches at once."""
    written = file_of_plan(plan)
    replicas = tuple(
        replace(
            replica,
            stages=tuple(
                replace(stage, micro_batch=stage.micro_batch * several)
                for stage, several in zip(replica.stages, joined, strict=True)
            ),
        )
        for replica in written.replicas
    )
    file = str(job.path or "job")
    try:
        made = plan_of_file(replace(written, replicas=replicas), file)
    except SpecError as error:
        raise SpecError(error.what, place=f"{file} [layout] joined", fix=error.fix) from None
    given = {"train": job.train, "data": job.data, "checkpoint": job.checkpoint}
    return replace(made, job=replace(made.job, path=job.path, **given))
