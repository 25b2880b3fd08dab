"""Plans whose stages and replicas differ, in layer-major orders and in orders that split backward.

`layout.further_orders` says what such an order is, and when a job leaves it to the planner. Here
the fastest plans of a search are tried in it as they are, and the fastest of these is changed as
long as that gains: with fewer waits another cut, share, micro-batch or size of a stage may be the
best one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from ratrain.describe.job import JobSpec
from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.on_devices import plans_of
from ratrain.plan.draft.pools import Pool
from ratrain.plan.layout.further_orders import (
    MOST_OPS,
    SPLIT_ORDERS,
    WORTH_MEMORY,
    WORTH_SPLIT,
    in_order,
    in_split_order,
    takes_other_orders,
)
from ratrain.plan.layout.plan import Plan, has_members
from ratrain.plan.layout.replica import PlacedReplica
from ratrain.plan.search.sizes import in_other_sizes
from ratrain.plan.search.trial import fastest_of, timed_recovering
from ratrain.plan.search.tried import Timed, climbed, step_of
from ratrain.program.replicas import Recovery
from ratrain.program.skeletons import TOGETHER, layer_major_name


def in_layer_orders(
    plans: Sequence[Timed], best_s: float, begins: Callable[[], None]
) -> Iterator[Timed]:
    """Ever faster plans in these orders, made of `plans`: each takes enough less than `best_s`, the
    fastest step known, and than the one before. `begins` is called for each that is tried."""
    for plan in plans:
        for together in together_tried(plan.plan):
            begins()
            faster = _in_layer_order(plan, layer_major_name(together), best_s * (1 - WORTH_MEMORY))
            if faster is not None:
                best_s = faster.step_s
                yield faster


def together_tried(plan: Plan) -> tuple[int, ...]:
    """How many micro-batches a plan may take together, under the conditions of alike replicas: its
    order is left to the planner, ranks that hold the whole model exchange gradients, and the ends
    of its step count. None where a stage computes several micro-batches at once."""
    counts = [replica.micro_batches for replica in plan.replicas]
    ops = 2 * (plan.job.model.spec.layers + 2) * sum(counts)
    may_be = takes_other_orders(plan.job, plan.strategy) and ops <= MOST_OPS and max(counts) > 1
    one_by_one = not any(replica.joined for replica in plan.replicas)
    if not (may_be and one_by_one and _has_whole_model(plan)):
        return ()
    return tuple(together for together in TOGETHER if together < 2 * max(counts))


def _has_whole_model(plan: Plan) -> bool:
    """Whether a rank holds the whole model, and others hold parts of it too."""
    shared = sum(len(replica.members) for replica in plan.replicas) > 1 or has_members(plan)
    return shared and any(replica.layout.stages == 1 for replica in plan.replicas)


def _in_layer_order(plan: Timed, name: str, bar_s: float) -> Timed | None:
    """The same plan in another order, perhaps with more recovery, where it is proved to fit, takes
    less than so long, and trains if the plan does."""
    ordered = plan.plan.in_order_of(in_order(plan.plan.job, name))
    timed = timed_recovering(plan.draft, ordered, bar_s, proved_last=True)
    if timed is None or timed.step_s >= bar_s or timed.refusals != plan.refusals:
        return None
    return timed


ROUNDS, CHANGES = 4, 16
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


def in_split_orders(search: SplitSearch, plans: Sequence[Timed], whole_s: float) -> Iterator[Timed]:
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
            tried += _changed(search, min(tried, key=step_of), name)
            tried += in_other_sizes(min(tried, key=step_of), search.begins)
        yield from tried


def may_be_split(plan: Plan) -> bool:
    """Whether a plan's order is left to the planner, it keeps all activations, and a replica has
    waits that weight gradients could fill."""
    return (
        takes_other_orders(plan.job, plan.strategy)
        and plan.job.schedule.recovery in ("auto", "keep-all")
        and _keeps_all(plan)
        and not any(replica.layout.virtual > 1 for replica in plan.replicas)
        and any(map(_waits, plan.replicas))
    )


def _waits(replica: PlacedReplica) -> bool:
    """Whether its stages wait for each other: there are several, and micro-batches too."""
    return replica.layout.pipeline > 1 and replica.micro_batches > 1


def _in_order(search: SplitSearch, plan: Timed, name: str, bar_s: float) -> Timed | None:
    """The same plan in another order, where it is proved to fit and takes less than so long."""
    search.begins()
    split = plan.plan.in_order_of(in_split_order(plan.plan.job, name))
    timed, _ = fastest_of([split], plan.draft, bar_s, proved_last=True)
    return timed if timed is not None and timed.step_s < bar_s else None


def _changed(search: SplitSearch, start: Timed, name: str) -> Iterator[Timed]:
    """Ever faster plans in an order, each of a change of the draft before."""
    job, known = in_split_order(search.job, name), set[object]()

    def near(here: Timed) -> Iterator[Timed]:
        new = (draft for draft in search.changes(here.draft) if draft.key not in known)
        fewest = nsmallest(CHANGES, new, key=lambda draft: draft.estimate_s)
        known.update(draft.key for draft in fewest)
        bar_s = here.step_s
        for draft in fewest:
            search.begins()
            plans = filter(_keeps_all, plans_of(job, search.pools, draft))
            other, _ = fastest_of(plans, draft, bar_s, proved_last=True)
            if other is not None and other.step_s < bar_s and other.refusals == start.refusals:
                bar_s = other.step_s
                yield other

    return climbed(start, near, ROUNDS, 0.0)


def _keeps_all(plan: Plan) -> bool:
    modes = (mode for replica in plan.replicas for mode in replica.recovery)
    return all(mode is Recovery.NONE for mode in modes)
