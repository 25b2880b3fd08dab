"""What a plan is judged by: the plans that the planner finds for its job."""

from __future__ import annotations

from dataclasses import replace

from ratrain.describe.job import JobSpec
from ratrain.errors import SpecError
from ratrain.plan.layout.further_orders import with_order_open
from ratrain.plan.layout.plan import Plan
from ratrain.plan.search.effort import ANY_REPLICAS
from ratrain.plan.search.every_plan import EveryPlan, every_plan, with_unequal
from ratrain.plan.search.layouts import Progress, Search, search_layouts


def plan_of_job(job: JobSpec, progress: Progress | None = None) -> tuple[Plan, EveryPlan]:
    """The plan that `ratrain plan` writes, and what it found besides. Raises `Infeasible` where
    nothing fits."""
    plans = every_plan(job, progress)
    subject = plans.chosen.subject()
    return subject, replace(plans, alike=plans.alike or searched(subject))


def plans_beside(subject: Plan, progress: Progress | None = None) -> EveryPlan:
    """What the planner finds for the job of a plan."""
    alike, job = searched(subject, progress), _asked(subject)
    if job.cluster.devices > ANY_REPLICAS:
        return EveryPlan(job, alike, None)
    return with_unequal(job, alike, progress)


def searched(subject: Plan, progress: Progress | None = None) -> Search | None:
    """The planner's own search of the job for identical replicas; None where it knows no layout
    that takes all devices."""
    try:
        return search_layouts(_asked(subject), progress)
    except SpecError:
        if subject.is_layout:
            raise
        return None


def _asked(subject: Plan) -> JobSpec:
    """The plan's job as the planner is asked: without a layout, nor an order that a plan chose."""
    return with_order_open(replace(subject.job, layout=None))
