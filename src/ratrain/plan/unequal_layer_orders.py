"""Plans whose stages and replicas differ, in layer-major orders.

`layer_orders` says what such an order is, and when a job leaves it to the planner. A program has
one order for all replicas, so a pipeline beside a rank that holds the whole model is in it too; a
replica of fewer micro-batches takes all of them together. The search has micro-batches of any size,
and one of K sequences hides as much as K together. So these orders gain where larger micro-batches
take longer for each sequence, or do not divide a replica's share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ratrain.plan.layer_orders import MOST_OPS, WORTH_MEMORY, in_order, takes_other_orders
from ratrain.plan.unequal_trial import E, Timed, timed_recovering
from ratrain.plan.uneven_setup import UnevenPlan, has_members
from ratrain.program.skeletons import TOGETHER, layer_major_name


def in_layer_orders(
    plans: Sequence[Timed[E]], best_s: float, begins: Callable[[], None]
) -> Iterator[Timed[E]]:
    """Ever faster plans in these orders, made of `plans`: each takes enough less than `best_s`, the
    fastest step known, and than the one before. `begins` is called for each that is tried."""
    for plan in plans:
        for together in together_tried(plan.plan):
            begins()
            faster = _in_order(plan, layer_major_name(together), best_s * (1 - WORTH_MEMORY))
            if faster is not None:
                best_s = faster.step_s
                yield faster


def together_tried(plan: UnevenPlan) -> tuple[int, ...]:
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


def _has_whole_model(plan: UnevenPlan) -> bool:
    """Whether a rank holds the whole model, and others hold parts of it too."""
    shared = sum(len(replica.members) for replica in plan.replicas) > 1 or has_members(plan)
    return shared and any(replica.layout.stages == 1 for replica in plan.replicas)


def _in_order(plan: Timed[E], name: str, bar_s: float) -> Timed[E] | None:
    """The same plan in another order, perhaps with more recovery, where it is proved to fit, takes
    less than so long, and trains if the plan does."""
    ordered = replace(
        plan.plan,
        job=in_order(plan.plan.job, name),
        strategy=replace(plan.plan.strategy, skeleton=name),
    )
    timed = timed_recovering(plan.draft, ordered, bar_s, proved_last=True)
    if timed is None or timed.step_s >= bar_s or timed.refusals != plan.refusals:
        return None
    return timed
