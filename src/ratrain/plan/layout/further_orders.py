"""Compute orders that are tried where a job names none: 1F1B, and layer by layer at a step's ends.
In pipelines another one is tried: `layout.split_orders`.

Where a rank holds the whole model, a step in 1F1B begins with gathers that one micro-batch's
forward can hide, and ends with reductions that one micro-batch's backward can hide. Layer-major
orders hide them behind several micro-batches, for the memory of as many. In a pipeline they gain
nothing: the last micro-batch's gradient comes when it comes.
"""

from __future__ import annotations

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


def orders_tried(job: JobSpec, chosen: Strategy, layout: LayoutSpec) -> tuple[str | None, ...]:
    """What `[schedule] skeleton` may become; None: the strategy's own, which comes first."""
    micro_batches = job.batch.sequences // (layout.data * job.batch.micro_batch)
    whole_model = layout.pipeline == layout.virtual == 1
    short = 2 * (job.model.spec.layers + 2) * micro_batches <= MOST_OPS
    if not (takes_other_orders(job, chosen) and whole_model and layout.data > 1 and short):
        return (None,)
    useful = (together for together in TOGETHER if together < 2 * micro_batches)
    names = map(layer_major_name, useful) if micro_batches > 1 else ()
    return (None, *names)


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


def in_order(job: JobSpec, skeleton: str | None) -> JobSpec:
    """The job with a compute order that was chosen for it."""
    if skeleton is None:
        return job
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


def split_orders_tried(job: JobSpec, chosen: Strategy, layout: LayoutSpec) -> tuple[str, ...]:
    """What `[schedule] skeleton` may become beside the strategy's own order."""
    micro_batches = job.batch.sequences // (layout.data * job.batch.micro_batch)
    pipelined = layout.pipeline > 1 and layout.virtual == 1 and micro_batches > 1
    open_to_others = takes_other_orders(job, chosen)
    keeps = job.schedule.recovery in ("auto", "keep-all")
    return SPLIT_ORDERS if pipelined and open_to_others and keeps else ()


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
