"""Plans whose stages and replicas differ, in orders that split backward.

`split_orders` says what such an order is, and when a job leaves it to the planner. Here the fastest
plans of a search are tried in it as they are, and the fastest of these is changed as long as that
gains: with fewer waits another cut, share, micro-batch or size of a stage may be the best one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest

from ratrain.describe.job import JobSpec
from ratrain.plan.layer_orders import takes_other_orders
from ratrain.plan.split_orders import SPLIT_ORDERS, WORTH_SPLIT, in_split_order
from ratrain.plan.unequal_build import plans_of
from ratrain.plan.unequal_mixes import Draft
from ratrain.plan.unequal_pools import Pool
from ratrain.plan.unequal_sizes import in_other_sizes
from ratrain.plan.unequal_trial import Drafted, Timed, fastest_of
from ratrain.plan.uneven_setup import UnevenPlan, UnevenReplica
from ratrain.program.replicas import Recovery

ROUNDS, CHANGES = 4, 8
"""Changes of the fastest one after another, and those simulated for each: of the least estimate."""


@dataclass(frozen=True)
class SplitSearch:
    """What a search in these orders has to know. `changes`: the drafts one change away. `begins`
    is called for each plan that is tried."""

    job: JobSpec
    pools: Sequence[Pool]
    changes: Callable[[Draft], Iterable[Draft]]
    begins: Callable[[], None]
    climbs: bool


def in_split_orders(
    search: SplitSearch, plans: Sequence[Timed[Drafted]], whole_s: float
) -> Iterator[Timed[Drafted]]:
    """Plans in these orders that take enough less than `whole_s`, the fastest step with backward
    whole; made of `plans`."""
    bar_s = whole_s * (1 - WORTH_SPLIT)
    for name in SPLIT_ORDERS:
        tried = [
            split
            for plan in plans
            if may_be_split(plan.plan) and (split := _in_order(search, plan, name, bar_s))
        ]
        if tried and search.climbs:
            tried += _changed(search, min(tried, key=_step_of), name)
            tried += in_other_sizes(min(tried, key=_step_of), search.begins)
        yield from tried


def may_be_split(plan: UnevenPlan) -> bool:
    """Whether a plan's order is left to the planner, it keeps all activations, and a replica has
    waits that weight gradients could fill. Not where sequences are divided: see `split_orders`."""
    return (
        takes_other_orders(plan.job, plan.strategy)
        and plan.job.schedule.recovery in ("auto", "keep-all")
        and not plan.sequence_parallel
        and _keeps_all(plan)
        and not any(replica.layout.virtual > 1 for replica in plan.replicas)
        and any(map(_waits, plan.replicas))
    )


def _waits(replica: UnevenReplica) -> bool:
    """Whether its stages wait for each other: there are several, and micro-batches too."""
    return replica.layout.pipeline > 1 and replica.micro_batches > 1


def _in_order(
    search: SplitSearch, plan: Timed[Drafted], name: str, bar_s: float
) -> Timed[Drafted] | None:
    """The same plan in another order, where it is proved to fit and takes less than so long."""
    search.begins()
    split = replace(
        plan.plan,
        job=in_split_order(plan.plan.job, name),
        strategy=replace(plan.plan.strategy, skeleton=name),
    )
    return _below(bar_s, fastest_of([split], plan.draft, bar_s, proved_last=True)[0])


def _changed(search: SplitSearch, start: Timed[Drafted], name: str) -> Iterator[Timed[Drafted]]:
    """Ever faster plans in an order, each of a change of the draft before."""
    here, job, known = start, in_split_order(search.job, name), set[object]()
    for _ in range(ROUNDS):
        if not isinstance(here.draft, Draft):
            return
        new = (draft for draft in search.changes(here.draft) if draft.key not in known)
        near = nsmallest(CHANGES, new, key=lambda draft: draft.estimate_s)
        known.update(draft.key for draft in near)
        best: Timed[Drafted] | None = None
        for draft in near:
            search.begins()
            bar_s = (best or here).step_s
            plans = filter(_keeps_all, plans_of(job, search.pools, draft))
            other = _below(bar_s, fastest_of(plans, draft, bar_s, proved_last=True)[0])
            if other is not None and other.refusals == start.refusals:
                best = other
        if best is None:
            return
        here = best
        yield here


def _keeps_all(plan: UnevenPlan) -> bool:
    modes = (mode for replica in plan.replicas for mode in replica.recovery)
    return all(mode is Recovery.NONE for mode in modes)


def _step_of(plan: Timed[Drafted]) -> float:
    return plan.step_s


def _below(bar_s: float, timed: Timed[Drafted] | None) -> Timed[Drafted] | None:
    """A plan whose step is shorter than so long; None otherwise."""
    return timed if timed is not None and timed.step_s < bar_s else None
