"""A configuration of a layout in words and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ratrain.describe.cluster import Device
from ratrain.describe.lines import wrapped
from ratrain.describe.ranges import STAGES, Nouns, write_kinds, write_list, write_ranges
from ratrain.describe.units import counted
from ratrain.plan.case.measured_blocks import measured_words
from ratrain.plan.layout.candidate import Candidate
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.further_orders import order_name, order_words
from ratrain.plan.layout.sizes import gradients_in, optimizer_words, travels
from ratrain.program.replicas import Recovery

ACTIVATIONS = {
    Recovery.NONE: "kept",
    Recovery.SELECTIVE: "scores recomputed",
    Recovery.BACKWARD: "recomputed",
    Recovery.FORWARD: "recomputed",
}
"""What becomes of a stage's activations, for a table; the headline says when."""


def degrees(candidate: Candidate) -> str:
    """ "p 16 x d 16 x t 1": pipeline, data, tensor; "t 4+s" with sequence parallelism; virtual
    stages where there are any."""
    layout = candidate.layout
    divided = "+s" if layout.sequence_parallel else ""
    virtual = f" x v {layout.virtual}" if layout.virtual > 1 else ""
    return f"p {layout.pipeline} x d {layout.data} x t {layout.tensor}{divided}{virtual}"


def plan_name(candidate: Candidate) -> str:
    """ "p 1 x d 4 x t 1, micro-batch 2", and the compute order where another one was chosen."""
    order = order_name(candidate.job.schedule)
    name = f"{degrees(candidate)}, micro-batch {candidate.job.batch.micro_batch}"
    return f"{name}, order {order}" if order else name


def headline(candidate: Candidate) -> list[str]:
    """A configuration in lines of at most 80 columns."""
    where = "sharded" if candidate.mode.sharded_gradients else "local"
    lines = [
        f"pipeline {candidate.layout.pipeline} x data {candidate.layout.data} x tensor "
        f"{candidate.layout.tensor}"
        + (f", {candidate.layout.virtual} stages per rank" if candidate.layout.virtual > 1 else ""),
        f"micro-batches of {candidate.job.batch.micro_batch}, {candidate.micro_batches} per "
        f"replica",
        f"layers per stage: {write_list(candidate.layers, STAGES)}",
        *order_words(candidate.job.schedule, candidate.strategy),
        f"activations: {recovery_words(candidate.recovery)}",
        f"sharding level {candidate.mode.sharding}, gradients "
        f"{where}{gradients_in(candidate.job.schedule)}",
    ]
    if candidate.layout.sequence_parallel:
        lines.insert(1, "sequence parallelism: each tensor group splits its sequences")
    if any(mode.value == "forward" for mode in candidate.recovery):
        lines[-1] += f", recovery buffer {candidate.buffer}"
    if candidate.reversed_kinds:
        lines.append("device kinds in reversed order: the last hosts hold the first stages")
    lines += idle_words(candidate.idle)
    lines += [*travels(candidate.job), *optimizer_words(candidate.job)]
    lines += measured_words(candidate.job, candidate.layout)
    return [part for line in lines for part in wrapped(line)]


def idle_words(idle: Sequence[Device]) -> list[str]:
    """Which devices a plan leaves idle, as a line of a headline; none where it uses all."""
    if not idle:
        return []
    numbers, kinds = write_ranges([d.index for d in idle]), write_kinds([d.kind.name for d in idle])
    return [f"idle: {counted(len(idle), 'device')}, {numbers} ({kinds})"]


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    layout = candidate.layout
    return {
        "pipeline": layout.pipeline,
        "data": layout.data,
        "tensor": layout.tensor,
        "virtual": layout.virtual,
        "sequence_parallel": layout.sequence_parallel,
        "layers_per_stage": list(candidate.layers),
        "micro_batch": candidate.job.batch.micro_batch,
        "micro_batches": candidate.micro_batches,
        "order": candidate.strategy.skeleton,
        "recovery": [mode.value for mode in candidate.recovery],
        "recovery_buffer": candidate.buffer,
        "sharding": candidate.mode.sharding,
        "gradients": "sharded" if candidate.mode.sharded_gradients else "local",
        "dtype": candidate.job.schedule.dtype,
        "dtypes": dict(candidate.job.dtypes),
        "gradient_dtype": candidate.job.schedule.gradient_dtype,
        "gradient_wire": candidate.job.schedule.gradients_travel_in,
        "boundary_wire": candidate.job.schedule.boundaries_travel_in,
        "error_feedback": candidate.job.schedule.error_feedback,
        "reversed_kinds": candidate.reversed_kinds,
        "idle_devices": [device.index for device in candidate.idle],
        "measured_times": measured_words(candidate.job, layout),
    }


def recovery_words(modes: tuple[Recovery, ...], of: Nouns = STAGES, first: int = 0) -> str:
    """What the stages do: "kept on stages 0-2; recovered ahead of backward on stage 3"; or what
    other things do, numbered from `first`."""
    words = {
        Recovery.NONE: "kept",
        Recovery.SELECTIVE: "kept without attention scores",
        Recovery.FORWARD: "recovered ahead of backward",
        Recovery.BACKWARD: "recovered when backward arrives",
    }
    if len(set(modes)) == 1:
        return f"{words[modes[0]]} on every {of[0]}"
    parts: list[str] = []
    for known, text in words.items():
        numbers = [number for number, mode in enumerate(modes, first) if mode is known]
        if numbers:
            parts.append(f"{text} on {of[len(numbers) > 1]} {write_ranges(numbers)}")
    return "; ".join(parts)


def layout_name(candidate: Candidate) -> str:
    """ "pipeline 4 x data 2, micro-batch 1"."""
    layout = candidate.layout
    name = f"pipeline {layout.pipeline} x data {layout.data}"
    name += f" x tensor {layout.tensor}" if layout.tensor > 1 else ""
    name += f" x virtual {layout.virtual}" if layout.virtual > 1 else ""
    name += ", sequence parallel" if layout.sequence_parallel else ""
    return f"{name}, micro-batch {candidate.job.batch.micro_batch}"


def layout_details(candidate: Candidate) -> tuple[str, ...]:
    """What the name leaves out: layers, order and activations."""
    order = order_name(candidate.job.schedule)
    return (
        f"layers per stage: {write_list(candidate.layers, STAGES)}",
        *((f"order: {order}",) if order else ()),
        f"activations: {recovery_words(candidate.recovery)}",
    )


def mode_words(mode: StateMode) -> str:
    """Who owns what: "sharding level 2 (ZeRO-2), gradients sharded"."""
    gradients = "sharded" if mode.sharded_gradients else "local"
    return f"sharding level {mode.sharding} (ZeRO-{mode.sharding}), gradients {gradients}"
