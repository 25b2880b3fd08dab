"""What a plan is judged by: the plans that the planner finds for its job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from ratrain.describe.job import JobSpec
from ratrain.errors import SpecError
from ratrain.plan.layout.further_orders import with_order_open
from ratrain.plan.layout.plan import Plan
from ratrain.plan.search.every_plan import STARTS, every_plan, fastest_whole_s
from ratrain.plan.search.layouts import Progress, Search, search_layouts
from ratrain.plan.search.unequal import UnequalSearch, searchable, unequal_search

ANY_REPLICAS = 8
"""Devices up to which a plan file, and a job with another host, are judged by plans of replicas
that differ too: on more that takes several seconds each. A job is always planned with both."""


@dataclass(frozen=True)
class KnownPlans:
    """`alike`: plans of identical replicas, None where no layout takes all devices; `unequal`:
    those that are faster, None where they are not searched for."""

    alike: Search | None
    unequal: UnequalSearch | None = None

    @property
    def fastest_s(self) -> float:
        """The fastest step of a plan that can be trained; infinite where there is none."""
        alike = self.alike.tried[:1] if self.alike is not None else ()
        unequal = self.unequal.trainable[:1] if self.unequal is not None else ()
        return min([inf, *(plan.step_s for plan in (*alike, *unequal))])


def plan_of_job(job: JobSpec, progress: Progress | None = None) -> tuple[Plan, KnownPlans]:
    """The plan that `ratrain plan` writes, and what it found besides. Raises `Infeasible` where
    nothing fits."""
    plans = every_plan(job, progress)
    subject = plans.chosen.subject()
    return subject, KnownPlans(plans.alike or searched(subject), plans.unequal)


def plans_beside(subject: Plan, progress: Progress | None = None) -> KnownPlans:
    """What the planner finds for the job of a plan."""
    alike, job = searched(subject, progress), _asked(subject)
    if not searchable(job) or job.cluster.devices > ANY_REPLICAS:
        return KnownPlans(alike)
    tried = alike.tried if alike is not None else ()
    starts = [plan.plan for plan in tried[:STARTS]]
    best_s = min([inf, *(plan.step_s for plan in tried)])
    whole_s = fastest_whole_s(tried)
    return KnownPlans(alike, unequal_search(job, starts, best_s, progress, whole_s=whole_s))


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
