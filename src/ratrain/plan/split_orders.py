"""Orders that split backward, which are tried in pipelines where a job names none.

The stage before waits for the gradient of a stage's input alone. In ZB-H1 that half goes first, and
the other, the weight gradients, fills gaps in which a stage of 1F1B waits. The price is the memory
of as many micro-batches on every rank as 1F1B's first rank holds, and the time that two halves take
beyond one backward (`BlockTimes.split_s`).
"""

from __future__ import annotations

from dataclasses import replace

from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.plan.job_strategy import strategy_of
from ratrain.plan.layer_orders import in_order, takes_other_orders
from ratrain.program.skeletons import TOGETHER, layer_major_name
from ratrain.program.strategies import Strategy

SPLIT_ORDERS = ("zb-h1",)
WORTH_SPLIT = 0.03
"""Part of a step that such an order must save in simulation to be taken: what the two halves take
beyond one backward is known to within so much."""


def split_orders_tried(job: JobSpec, chosen: Strategy, layout: LayoutSpec) -> tuple[str, ...]:
    """What `[schedule] skeleton` may become beside the strategy's own order. Not where sequences
    are divided: weight gradients then gather their inputs again, which no cost counts."""
    micro_batches = job.batch.sequences // (layout.data * job.batch.micro_batch)
    pipelined = layout.pipeline > 1 and layout.virtual == 1 and micro_batches > 1
    open_to_others = takes_other_orders(job, chosen) and not layout.sequence_parallel
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
