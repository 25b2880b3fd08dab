"""The plan of a layout in words and as JSON; and where a job's block times come from: a layer
profile, read how, or a device's rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ratrain.cost.algorithms import Hosts
from ratrain.cost.compute import case_of_block
from ratrain.cost.gpu_layer import Execution
from ratrain.cost.measured import Unmeasured, conditions, measured
from ratrain.describe.cluster import Device
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.describe.lines import wrapped
from ratrain.describe.ranges import STAGES, Nouns, write_kinds, write_list, write_ranges
from ratrain.describe.units import counted
from ratrain.plan.layout.enumerate import StateMode, kinds_of_block
from ratrain.plan.layout.orders import order_name, order_words
from ratrain.plan.layout.plan import Plan
from ratrain.plan.layout.sizes import gradients_in, optimizer_words, own_words, travels
from ratrain.program.promise import loss_words
from ratrain.program.replicas import Recovery


def plan_measured(plan: Plan) -> list[str]:
    """One sentence for each device kind of a plan that has a layer profile, and degree."""
    sentences = [
        sentence
        for replica in plan.replicas
        for rank, group in enumerate(replica.groups[0])
        for sentence in _words_of(
            plan.job_of(replica, rank), replica.layout_of(rank), group[0].kind
        )
    ]
    return list(dict.fromkeys(sentences))


def _words_of(job: JobSpec, layout: LayoutSpec, kind: DeviceKind) -> list[str]:
    """The sentence of one device kind; none where it has no layer profile."""
    if not kind.layer_profile:
        return []
    job = job.of_kind(kind)
    return [f"times on {kind.name}: {'; '.join(_told(job, layout, kind))}"]


def left_out_words(job: JobSpec) -> list[str]:
    """What a search did not try because the model's layers were not measured in it: one sentence
    for each device kind on which they were measured at all."""
    kinds = {device.kind.name: device.kind for device in job.cluster.members()}
    layer = kinds_of_block(job)[1]
    sentences: list[str] = []
    for name, kind in kinds.items():
        case = case_of_block(layer, job.model.sequence_length, 1, job.dtype_of(kind))
        known = [
            other
            for other in conditions(kind, case)
            if (other.sequence, other.dtype) == (case.sequence, case.dtype)
        ]
        if known:
            degrees = sorted({other.tensor for other in known})
            divided = "" if any(other.sequence_parallel for other in known) else "out"
            sentences.append(
                f"layers were measured on {name} at tensor {', '.join(map(str, degrees))}, "
                f"with{divided} sequence parallelism: no other degree was tried"
            )
    return sentences


def _told(job: JobSpec, layout: LayoutSpec, kind: DeviceKind) -> Iterator[str]:
    """Blocks of one origin together, layers first."""
    by_origin: dict[str, list[str]] = {}
    embedding, layer, head = kinds_of_block(job)
    for block in (layer, embedding, head):
        case = case_of_block(
            block,
            job.model.sequence_length,
            layout.tensor,
            job.schedule.dtype,
            Execution(layout.sequence_parallel),
        )
        try:
            known = measured(kind, case, job.batch.micro_batch, job.model.spec.name)
        except Unmeasured:  # no stage of this kind holds it, else nothing could be priced
            continue
        origin = known.how if known else "from its rates, not measured"
        name = "layers" if block.kind == "layer" else block.kind
        by_origin.setdefault(origin, []).append(name)
    for origin, blocks in by_origin.items():
        yield f"{', '.join(blocks)} {origin}"


ACTIVATIONS = {
    Recovery.NONE: "kept",
    Recovery.SELECTIVE: "scores recomputed",
    Recovery.SPILL: "in another tier",
    Recovery.BACKWARD: "recomputed",
    Recovery.FORWARD: "recomputed",
}
"""What becomes of a stage's activations, for a table; the headline says when."""


def facts(plan: Plan) -> dict[str, Any]:
    """What a layout says, for JSON."""
    layout = plan.layout
    return {
        "pipeline": layout.pipeline,
        "tensor": layout.tensor,
        "virtual": layout.virtual,
        "layers_per_stage": list(plan.alike.layers),
        "activations": recovery_words(plan.alike.recovery),
    }


def of_whole_run(_: Plan) -> dict[str, Any]:
    """Figures of the whole run beside these."""
    return {}


def shapes(plan: Plan) -> str:
    """ "pipeline 4 x data 2 x tensor 2"."""
    layout = plan.layout
    tensor = f" x tensor {layout.tensor}" if layout.tensor > 1 else ""
    return f"pipeline {layout.pipeline} x data {layout.data}{tensor}"


def rounds(plan: Plan) -> str:
    """How many stages a rank holds, where these are several."""
    virtual = plan.layout.virtual
    return f", {virtual} stages per rank" if virtual > 1 else ""


def activations(plan: Plan) -> list[str]:
    """What becomes of them, as a line of a headline."""
    return [f"activations {recovery_words(plan.alike.recovery)}"]


def reducing_hosts(plan: Plan) -> Iterator[Hosts]:
    """Of each rank, the hosts of those that reduce its gradients."""
    if plan.layout.data > 1:
        for rank in range(plan.layout.pipeline):
            yield plan.placement.data_group(rank).hosts


def replicas(_: Plan) -> list[str]:
    """Lines of each sort of replicas: there is one."""
    return []


def shares(_: Plan) -> list[str]:
    """What part of a step each replica takes, where they differ."""
    return []


def short_name(plan: Plan) -> str:
    """ "p 16 x d 16 x t 1": pipeline, data, tensor; "t 4+s" with sequence parallelism; virtual
    stages where there are any."""
    layout = plan.layout
    divided = "+s" if layout.sequence_parallel else ""
    virtual = f" x v {layout.virtual}" if layout.virtual > 1 else ""
    return f"p {layout.pipeline} x d {layout.data} x t {layout.tensor}{divided}{virtual}"


def plan_name(plan: Plan) -> str:
    """ "p 1 x d 4 x t 1, micro-batch 2", and the compute order where another one was chosen."""
    order = order_name(plan.job.schedule)
    name = f"{short_name(plan)}, micro-batch {plan.job.batch.micro_batch}"
    return f"{name}, order {order}" if order else name


def in_brief(plan: Plan) -> str:
    """The same, and what becomes of activations."""
    kept = ", ".join(dict.fromkeys(ACTIVATIONS[mode] for mode in plan.alike.recovery))
    return f"{plan_name(plan)}; {kept}"


def headline(plan: Plan) -> list[str]:
    """The plan alone in lines of at most 80 columns."""
    layout = plan.layout
    where = "sharded" if plan.mode.sharded_gradients else "local"
    lines = [
        f"pipeline {layout.pipeline} x data {layout.data} x tensor {layout.tensor}{rounds(plan)}",
        f"micro-batches of {plan.alike.micro_batch}, {plan.alike.micro_batches} per replica",
        f"layers per stage: {write_list(plan.alike.layers, STAGES)}",
        *order_words(plan.job.schedule, plan.strategy),
        f"activations: {recovery_words(plan.alike.recovery)}",
        f"sharding level {plan.mode.sharding}, gradients {where}{gradients_in(plan.job.schedule)}",
    ]
    if layout.sequence_parallel:
        lines.insert(1, "sequence parallelism: each tensor group splits its sequences")
    if any(mode.value == "forward" for mode in plan.alike.recovery):
        lines[-1] += f", recovery buffer {plan.buffer}"
    if plan.reversed_kinds:
        lines.append("device kinds in reversed order: the last hosts hold the first stages")
    lines += idle_words(plan.idle)
    lines += [*travels(plan.job), *optimizer_words(plan.job), *own_words(plan.job)]
    lines += [*mirror_words(plan), *plan_measured(plan)]
    return [part for line in lines for part in wrapped(line)]


def mirror_words(plan: Plan) -> list[str]:
    """What a rank that is lost costs, where a job asks for mirrors."""
    if not plan.job.schedule.mirror:
        return []
    return [f"mirrored: {loss_words(replace(plan.setup, mirrored=True))}"]


def idle_words(idle: Sequence[Device]) -> list[str]:
    """Which devices a plan leaves idle, as a line of a headline; none where it uses all."""
    if not idle:
        return []
    numbers, kinds = write_ranges([d.index for d in idle]), write_kinds([d.kind.name for d in idle])
    return [f"idle: {counted(len(idle), 'device')}, {numbers} ({kinds})"]


def layout_json(plan: Plan) -> dict[str, Any]:
    """The plan alone, for JSON."""
    layout, schedule = plan.layout, plan.job.schedule
    return {
        "pipeline": layout.pipeline,
        "data": layout.data,
        "tensor": layout.tensor,
        "virtual": layout.virtual,
        "sequence_parallel": layout.sequence_parallel,
        "layers_per_stage": list(plan.alike.layers),
        "micro_batch": plan.alike.micro_batch,
        "micro_batches": plan.alike.micro_batches,
        "order": plan.strategy.skeleton,
        "recovery": [mode.value for mode in plan.alike.recovery],
        "recovery_buffer": plan.buffer,
        "sharding": plan.mode.sharding,
        "gradients": "sharded" if plan.mode.sharded_gradients else "local",
        "dtype": schedule.dtype,
        "dtypes": dict(plan.job.dtypes),
        "gradient_dtype": schedule.gradient_dtype,
        "gradient_wire": schedule.gradients_travel_in,
        "boundary_wire": schedule.boundaries_travel_in,
        "error_feedback": schedule.error_feedback,
        "reversed_kinds": plan.reversed_kinds,
        "idle_devices": [device.index for device in plan.idle],
        "measured_times": plan_measured(plan),
    }


def recovery_words(modes: tuple[Recovery, ...], of: Nouns = STAGES, first: int = 0) -> str:
    """What the stages do: "kept on stages 0-2; recovered ahead of backward on stage 3"; or what
    other things do, numbered from `first`."""
    words = {
        Recovery.NONE: "kept",
        Recovery.SELECTIVE: "kept without attention scores",
        Recovery.SPILL: "kept in another tier",
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


def name(plan: Plan) -> str:
    """ "pipeline 4 x data 2, micro-batch 1"."""
    layout = plan.layout
    virtual = f" x virtual {layout.virtual}" if layout.virtual > 1 else ""
    divided = ", sequence parallel" if layout.sequence_parallel else ""
    return f"{shapes(plan)}{virtual}{divided}, micro-batch {plan.job.batch.micro_batch}"


def details(plan: Plan) -> tuple[str, ...]:
    """What the name leaves out: layers, order and activations."""
    order = order_name(plan.job.schedule)
    return (
        f"layers per stage: {write_list(plan.alike.layers, STAGES)}",
        *((f"order: {order}",) if order else ()),
        f"activations: {recovery_words(plan.alike.recovery)}",
    )


def mode_words(mode: StateMode) -> str:
    """Who owns what: "sharding level 2 (ZeRO-2), gradients sharded"."""
    gradients = "sharded" if mode.sharded_gradients else "local"
    return f"sharding level {mode.sharding} (ZeRO-{mode.sharding}), gradients {gradients}"
