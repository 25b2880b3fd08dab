"""Compute orders that are tried where a job names none: 1F1B, and layer by layer at a step's ends.
In pipelines another one is tried: `layout.split_orders`.

Where a rank holds the whole model, a step in 1F1B begins with gathers that one micro-batch's
forward can hide, and ends with reductions that one micro-batch's backward can hide. Layer-major
orders hide them behind several micro-batches, for the memory of as many. In a pipeline they gain
nothing: the last micro-batch's gradient comes when it comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ratrain.describe.job import JobSpec, LayoutSpec, ScheduleSpec
from ratrain.plan.layout.jobs import strategy_of
from ratrain.program.skeletons import SKELETONS, TOGETHER, layer_major_name
from ratrain.program.strategies import STRATEGIES, Strategy

MOST_OPS = 20_000
"""Ops of compute up to which layer-major orders are tried: they have no repeating middle, and the
more micro-batches a step has, the less its ends count."""
WORTH_MEMORY = 0.002
"""Part of a step that such an order must save to be taken: it holds more micro-batches."""


def layer_orders(
    job: JobSpec, chosen: Strategy, micro_batches: Sequence[int], *, whole_model: bool
) -> tuple[str, ...]:
    """The layer-major orders that replicas of so many micro-batches may be in beside the strategy's
    own; `whole_model`: whether a rank holds all of it, and others hold parts of it too."""
    ops, most = 2 * (job.model.spec.layers + 2) * sum(micro_batches), max(micro_batches)
    if not (whole_model and most > 1 and ops <= MOST_OPS and takes_other_orders(job, chosen)):
        return ()
    return tuple(layer_major_name(together) for together in TOGETHER if together < 2 * most)


def layer_orders_of_layout(job: JobSpec, chosen: Strategy, layout: LayoutSpec) -> tuple[str, ...]:
    """Those of a layout."""
    whole_model = layout.pipeline == layout.virtual == 1 < layout.data
    return layer_orders(job, chosen, [_micro_batches(job, layout)], whole_model=whole_model)


def _micro_batches(job: JobSpec, layout: LayoutSpec) -> int:
    return job.batch.sequences // (layout.data * job.batch.micro_batch)


def takes_other_orders(job: JobSpec, chosen: Strategy) -> bool:
    """Whether a job leaves its compute order to the planner."""
    return (
        job.schedule.skeleton is None
        and chosen.skeleton == "1f1b"
        and chosen.prefetch
        and not chosen.recovers_all  # a system as others describe it, whose order is 1F1B
        and not chosen.further
        and job.schedule.average_every is None
    )


def in_order(job: JobSpec, skeleton: str) -> JobSpec:
    """The job with a compute order that was chosen for it."""
    return replace(job, schedule=replace(job.schedule, skeleton=skeleton))


def order_name(schedule: ScheduleSpec) -> str:
    """The compute order, where it is not the one that the schedule's name stands for."""
    asked = schedule.skeleton
    return "" if asked in (None, STRATEGIES[schedule.name].skeleton) else asked or ""


def order_words(schedule: ScheduleSpec, strategy: Strategy) -> list[str]:
    """That order as a line of a headline, and what it does at other times than 1F1B."""
    name, together = order_name(schedule), SKELETONS[strategy.skeleton].together
    if together > 1:
        name = name or strategy.skeleton
        return [f"order {name}: a step's first and last {together} micro-batches go layer by layer"]
    if name == "zb-h1":
        return [f"order {name}: weight gradients wait, and fill the pipeline's gaps"]
    return [f"order {name}"] if name else []


SPLIT_ORDERS = ("zb-h1",)
WORTH_SPLIT = 0.03
"""Part of a step that such an order must save in simulation to be taken: what the two halves take
beyond one backward is known to within so much."""


def split_orders(job: JobSpec, chosen: Strategy, *, waits: bool) -> tuple[str, ...]:
    """The orders that split backward and that a job may be in beside the strategy's own; `waits`:
    whether replicas have any that weight gradients could fill."""
    keeps = job.schedule.recovery in ("auto", "keep-all")
    return SPLIT_ORDERS if waits and keeps and takes_other_orders(job, chosen) else ()


def split_orders_of_layout(job: JobSpec, chosen: Strategy, layout: LayoutSpec) -> tuple[str, ...]:
    """Those of a layout."""
    waits = layout.pipeline > 1 == layout.virtual and _micro_batches(job, layout) > 1
    return split_orders(job, chosen, waits=waits)


def in_split_order(job: JobSpec, skeleton: str) -> JobSpec:
    """The job in such an order, with all activations kept: a rank that has to recover some has no
    memory for further micro-batches, and its gaps are filled by recoveries."""
    ordered = in_order(job, skeleton)
    return replace(ordered, schedule=replace(ordered.schedule, recovery="keep-all"))


def with_order_open(job: JobSpec) -> JobSpec:
    """The job without the order that the planner may have chosen for it, and with what it set for
    that order: so that whatever it is compared with may take any. A plan file does not say who
    chose."""
    asked = job.schedule.skeleton
    if asked not in (*SPLIT_ORDERS, *map(layer_major_name, TOGETHER)):
        return job
    recovery = "auto" if job.schedule.recovery == "keep-all" else job.schedule.recovery
    opened = replace(job, schedule=replace(job.schedule, skeleton=None, recovery=recovery))
    return opened if takes_other_orders(opened, strategy_of(opened)) else job
