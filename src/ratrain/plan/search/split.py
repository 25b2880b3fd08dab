"""Plans whose stages and replicas differ, in layer-major orders and in orders that split backward.

`layout.further_orders` says what such an order is, and when a job leaves it to the planner. Here
the fastest plans of a search, each of another family, are tried in it as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from ratrain.plan.search.effort import REORDERED_CHANGES, REORDERED_ROUNDS
from ratrain.plan.search.sizes import in_other_sizes
from ratrain.plan.search.trial import fastest_of, timed_recovering
from ratrain.plan.search.tried import Timed, climbed
from ratrain.program.replicas import Recovery
from ratrain.program.skeletons import TOGETHER, layer_major_name


@dataclass(frozen=True)
class Reordering:
    """A sort of compute order that the planner may choose. `names`: the orders that a plan may be
    in; `ordered`: a job in one of them; `worth`: the part of the fastest known step that the first
    must save, and `further` what each next one must save of that; `recovers`: whether stages may
    recover where memory is short."""

    names: Callable[[Plan], tuple[str, ...]]
    ordered: Callable[[JobSpec, str], JobSpec]
    worth: float
    further: float
    recovers: bool


@dataclass(frozen=True)
class Reordered:
    """What a search in these orders has to know. `changes`: the drafts one change away. `begins`
    is called for each plan that is tried."""

    job: JobSpec
    pools: Sequence[Pool]
    changes: Callable[[Draft], Iterable[Draft]]
    begins: Callable[[], None]
    climbs: bool

    def of(self, order: Reordering, plans: Sequence[Timed], known_s: float) -> Iterator[Timed]:
        """Ever faster plans in such orders, made of `plans`, that take enough less than `known_s`,
        the fastest step known; and where recovery is no way out, what changes make of the
        fastest: with fewer waits another cut, share, micro-batch or size may be the best."""
        bar_s, fastest = known_s * (1 - order.worth), None
        every = [(plan, name) for plan in plans for name in order.names(plan.plan)]
        for plan, name in every:
            self.begins()
            ordered = plan.plan.in_order_of(order.ordered(plan.plan.job, name))
            if order.recovers:
                tried = timed_recovering(plan.draft, ordered, bar_s, proved_last=True)
            else:
                tried, _ = fastest_of([ordered], plan.draft, bar_s, proved_last=True)
            if tried is not None and tried.step_s < bar_s and tried.refusals == plan.refusals:
                bar_s, fastest = tried.step_s * (1 - order.further), tried
                yield tried
        if fastest is not None and self.climbs and not order.recovers:
            changed = [fastest, *self._changed(fastest)]
            yield from changed[1:]
            yield from in_other_sizes(changed[-1], self.begins)

    def _changed(self, start: Timed) -> Iterator[Timed]:
        """Ever faster plans in the same order, each of a change of the draft before."""
        schedule, known = start.plan.job.schedule, set[object]()
        job = replace(self.job, schedule=schedule)

        def near(here: Timed) -> Iterator[Timed]:
            new = (draft for draft in self.changes(here.draft) if draft.key not in known)
            fewest = nsmallest(REORDERED_CHANGES, new, key=lambda draft: draft.estimate_s)
            known.update(draft.key for draft in fewest)
            bar_s = here.step_s
            for draft in fewest:
                self.begins()
                plans = filter(_keeps_all, plans_of(job, self.pools, draft))
                other, _ = fastest_of(plans, draft, bar_s, proved_last=True)
                if other is not None and other.step_s < bar_s and other.refusals == start.refusals:
                    bar_s = other.step_s
                    yield other

        return climbed(start, near, REORDERED_ROUNDS, 0.0)


def layer_orders_of(plan: Plan) -> tuple[str, ...]:
    """The layer-major orders that a plan may be in, under the conditions of alike replicas: its
    order is left to the planner, ranks that hold the whole model exchange gradients, and the ends
    of its step count. None where a stage computes several micro-batches at once."""
    counts = [replica.micro_batches for replica in plan.replicas]
    ops = 2 * (plan.job.model.spec.layers + 2) * sum(counts)
    may_be = takes_other_orders(plan.job, plan.strategy) and ops <= MOST_OPS and max(counts) > 1
    one_by_one = not any(replica.joined for replica in plan.replicas)
    if not (may_be and one_by_one and _has_whole_model(plan)):
        return ()
    useful = (together for together in TOGETHER if together < 2 * max(counts))
    return tuple(map(layer_major_name, useful))


def _has_whole_model(plan: Plan) -> bool:
    """Whether a rank holds the whole model, and others hold parts of it too."""
    shared = sum(len(replica.members) for replica in plan.replicas) > 1 or has_members(plan)
    return shared and any(replica.layout.stages == 1 for replica in plan.replicas)


def split_orders_of(plan: Plan) -> tuple[str, ...]:
    """The orders that split backward and that a plan may be in: its order is left to the planner,
    it keeps all activations, and a replica has waits that weight gradients could fill."""
    waits = (r.layout.pipeline > 1 and r.micro_batches > 1 for r in plan.replicas)
    may_be = (
        takes_other_orders(plan.job, plan.strategy)
        and plan.job.schedule.recovery in ("auto", "keep-all")
        and _keeps_all(plan)
        and not any(replica.layout.virtual > 1 for replica in plan.replicas)
        and any(waits)
    )
    return SPLIT_ORDERS if may_be else ()


def _keeps_all(plan: Plan) -> bool:
    return all(mode is Recovery.NONE for mode in plan.modes)


LAYER_MAJOR = Reordering(layer_orders_of, in_order, WORTH_MEMORY, WORTH_MEMORY, recovers=True)
SPLIT = Reordering(split_orders_of, in_split_order, WORTH_SPLIT, 0.0, recovers=False)
