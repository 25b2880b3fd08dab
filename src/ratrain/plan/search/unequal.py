"""The search for plans whose stages and replicas differ, on clusters of a few unequal devices.

Closed forms rank seeds (after HeteroAuto, arXiv 2505.17548); the best are simulated at the grain of
stages (`draft.clock`) and changed by every move as long as that gains (`search.beam`); the fastest
of all these are built, proved and simulated as whole programs (`search.drafts`). Stages of other
sizes and other compute orders come after that. What `ratrain train` can run is searched for by
itself, beside what can only be simulated.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from ratrain.describe.job import JobSpec
from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.space import of_plan
from ratrain.plan.layout.jobs import strategy_of
from ratrain.plan.layout.plan import Plan
from ratrain.plan.price.kind_speed import least_step_s
from ratrain.plan.search import limits
from ratrain.plan.search.drafts import DraftSearch
from ratrain.plan.search.layouts import Progress
from ratrain.plan.search.limits import effort_of
from ratrain.plan.search.moves import MoveTried
from ratrain.plan.search.plan_moves import LAYER_MAJOR, SPLIT, Reordered, Reordering, improved
from ratrain.plan.search.tried import Timed, Tried, step_of
from ratrain.program.skeletons import SKELETONS

PlanT = TypeVar("PlanT", bound=Tried, covariant=True)


@dataclass(frozen=True)
class UnequalSearch(Generic[PlanT]):
    """What the search found: plans that were simulated and proved, each class with its best first;
    and what no plan of these devices can be faster than."""

    trainable: tuple[PlanT, ...]
    others: tuple[PlanT, ...]  # faster than those that train, and only simulated
    drafts: int
    shared: int  # drafts in which kinds share stages, beside those
    simulated: int
    whole_s: float  # the fastest plan that trains and has backward whole, alike replicas included
    least_s: float
    moves: tuple[MoveTried, ...]  # of the fastest plan
    total_s: float


def searchable(job: JobSpec) -> bool:
    """Whether plans of unlike replicas are searched for: few devices of unequal kinds, one stage on
    a device, every replica with every gradient of a step, and a job that allows them."""
    return job.cluster.devices <= limits.DEVICES and _has_unlike(job)


def has_too_many(job: JobSpec) -> bool:
    """Whether they are not searched for because there are too many devices."""
    return job.cluster.devices > limits.DEVICES and _has_unlike(job)


def _has_unlike(job: JobSpec) -> bool:
    members = job.cluster.members()
    skeleton = SKELETONS[strategy_of(job).skeleton]
    return (
        job.schedule.replicas != "identical"
        and len({device.kind.name for device in members}) > 1
        and skeleton.fixed is None
        and job.schedule.average_every is None
        and job.schedule.recovery in ("auto", "keep-all", "selective", "everywhere")
    )


def unequal_search(
    job: JobSpec,
    known: Sequence[Plan],
    known_s: float,
    progress: Progress | None = None,
    *,
    whole_s: float | None = None,
    quick: bool = False,
) -> UnequalSearch[Timed]:
    """The `UnequalSearch` of a job; `known`: the best plans of alike replicas, the fastest first,
    and its step, infinite where there are none. Plans that are no faster are left out. `whole_s`:
    where that step has backward split, the step of the fastest that has it whole. `quick`: on few
    devices less is tried."""
    began = time.perf_counter()
    whole_s = known_s if whole_s is None else whole_s
    seeker = DraftSearch(job, progress, effort_of(job.cluster.devices, quick=quick))
    starts = [start for plan in known if (start := of_plan(seeker.stages, plan)) is not None]
    trains = job.backend.trains
    alone = seeker.best_of(starts, whole_s, lambda draft: draft.trainable) if trains else []
    alone = _in_other_sizes(seeker, alone)
    trainable = [plan for plan in alone if not plan.refusals]
    whole_s = _least(whole_s, trainable)
    further = list[Timed]()
    if seeker.passed_over or not trains:
        found = seeker.best_of([] if trains else starts, whole_s, lambda _: True)
        further = [plan for plan in found if not (trains and plan.draft.trainable)]
    refused = [plan for plan in alone if plan.refusals]
    others = _fastest([*_in_other_sizes(seeker, further), *refused])
    for order in (LAYER_MAJOR, SPLIT):
        trainable = _in_orders(seeker, order, trainable, starts, whole_s)
        whole_s = _least(whole_s, trainable if order is LAYER_MAJOR else ())
        others = _in_orders(seeker, order, others, [], _least(whole_s, others))
    bar_s = _least(known_s, trainable)
    best = next((plan.draft for plan in (*trainable, *others)), starts[0] if starts else None)
    return UnequalSearch(
        tuple(plan for plan in trainable if plan.step_s < known_s),
        tuple(plan for plan in others if plan.step_s < bar_s),
        seeker.drafts,
        seeker.with_members,
        seeker.simulated,
        whole_s,
        least_step_s(job, job.cluster.members()),
        seeker.moves_of(best) if best is not None else (),
        time.perf_counter() - began,
    )


def _fastest(plans: Sequence[Timed]) -> list[Timed]:
    return sorted(plans, key=step_of)


def _least(known_s: float, plans: Sequence[Timed]) -> float:
    """The shortest step; `plans`: the fastest first."""
    return min([known_s, *(plan.step_s for plan in plans[:1])])


def _in_other_sizes(seeker: DraftSearch, plans: Sequence[Timed]) -> list[Timed]:
    """These plans, and the best of them with stages in micro-batches of their own sizes."""
    alone = [plan for plan in plans if not plan.draft.has_members]
    begun = alone[: limits.RESIZED_PLANS]
    if seeker.is_tight(begun):
        begun += islice(_leaner(alone[limits.RESIZED_PLANS - 1 :]), limits.RESIZED_LEAN)
    better = [faster for plan in begun for faster in improved(plan, seeker.watch)]
    return _fastest([*plans, *better])


def _leaner(plans: Sequence[Timed]) -> Iterator[Timed]:
    """Those that need less memory than every faster one: they have room for larger sizes."""
    least_bytes = plans[0].bound_bytes if plans else 0
    for plan in plans[1:]:
        if plan.bound_bytes < least_bytes:
            least_bytes = plan.bound_bytes
            yield plan


def _in_orders(
    seeker: DraftSearch,
    order: Reordering,
    plans: Sequence[Timed],
    starts: Sequence[Draft],
    known_s: float,
) -> list[Timed]:
    """These plans; and the best of them of each family, and all of these starts, in other compute
    orders where that gains enough."""
    fit = [plan for plan in plans if order.names(plan.plan)]
    families = list({plan.draft.family: plan for plan in reversed(fit)}.values())
    best = _fastest(families)[: limits.REORDERED]
    begun = [plan for draft in starts if (plan := seeker.simulated_as(draft)) is not None]
    begun = [plan for plan in begun if order.names(plan.plan) and plan not in best]
    climbs = not seeker.effort.spares_programs
    search = Reordered(seeker.job, seeker.stages.pools, seeker.near, seeker.watch, climbs)
    return _fastest([*plans, *search.of(order, [*best, *begun], known_s)])
