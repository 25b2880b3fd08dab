"""A search in words and as JSON: what `ratrain plan` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ratrain.describe.units import format_bytes, format_time
from ratrain.plan.build import Candidate
from ratrain.plan.ranges import runs
from ratrain.plan.search import Search, Tried

WIDTH = 80


def degrees(one: Candidate) -> str:
    """ "p 16 x d 16 x t 1": pipeline, data, tensor; "t 4+s" with sequence parallelism; virtual
    stages where there are any."""
    layout = one.layout
    divided = "+s" if layout.sequence_parallel else ""
    virtual = f" x v {layout.virtual}" if layout.virtual > 1 else ""
    return f"p {layout.pipeline} x d {layout.data} x t {layout.tensor}{divided}{virtual}"


def headline(one: Candidate) -> list[str]:
    """A configuration in lines of at most 80 columns."""
    where = "sharded" if one.mode.sharded_gradients else "local"
    lines = [
        f"pipeline {one.layout.pipeline} x data {one.layout.data} x tensor {one.layout.tensor}"
        + (f", {one.layout.virtual} stages a rank" if one.layout.virtual > 1 else ""),
        f"micro-batches of {one.job.batch.micro_batch}, {one.micro_batches} a replica",
        f"layers of stages: {runs(one.layers)}",
        f"activations by stage: {runs([mode.value for mode in one.recovery])}",
        f"sharding level {one.mode.sharding}, gradients {where}",
    ]
    if one.layout.sequence_parallel:
        lines.insert(1, "sequence parallelism: each tensor group divides its sequences")
    if any(mode.value == "forward" for mode in one.recovery):
        lines[-1] += f", recovery buffer {one.buffer}"
    if one.reversed_kinds:
        lines.append("device kinds in reversed order: the last hosts hold the first stages")
    return [part for line in lines for part in wrapped(line)]


def wrapped(line: str, indent: str = "  ") -> list[str]:
    """A line cut at spaces into lines of at most 80 columns."""
    found: list[str] = []
    while len(line) > WIDTH:
        cut = line.rfind(" ", len(indent), WIDTH)
        cut = cut if cut > len(indent) else WIDTH
        found.append(line[:cut])
        line = indent + line[cut:].strip()
    return [*found, line]


def search_text(found: Search, top: int) -> list[str]:
    """The best plan, and the runner-ups beside it."""
    best, job = found.best, found.job
    tokens = job.batch.sequences * job.model.sequence_length
    budget = format_bytes(job.budget_bytes)
    head = f"{job.model.spec.name} on {job.cluster.devices} x {job.cluster.spec.name}"
    return [
        *wrapped(
            f"{head}, {job.schedule.name}: {job.batch.sequences} sequences of "
            f"{job.model.sequence_length} tokens"
        ),
        "",
        *headline(best.candidate),
        f"step {format_time(best.step_s)}, {tokens / best.step_s:,.1f} tokens/s; memory "
        f"{format_bytes(best.bound_bytes)} of {budget} on any timing",
        "",
        *table(found.tried[:top]),
        "",
        f"{found.checks:,} configurations checked against memory, {found.fitting:,} fit "
        f"({format_time(found.check_s)})",
        f"{len(found.tried)} simulated, {100 * found.mean_gap:.1f} % from the closed form on "
        f"average; {format_time(found.total_s)} in all",
    ]


def table(tried: Sequence[Tried]) -> list[str]:
    """Plans by rank: what they are, and what each loses against the first."""
    lines = ["   step      loses   memory    micro  states     layout, recovery"]
    for one in tried:
        plan = one.candidate
        where = "sharded" if plan.mode.sharded_gradients else "local"
        modes = Counter(mode.value for mode in plan.recovery)
        recovery = ", ".join(f"{mode} {count}" for mode, count in modes.items())
        lines.append(
            f"{format_time(one.step_s):>7} {100 * (one.step_s / tried[0].step_s - 1):8.2f} % "
            f"{format_bytes(one.bound_bytes):>8} {plan.job.batch.micro_batch:8d}  "
            f"{plan.mode.sharding} {where:<7}  {degrees(plan)}, {recovery}"
        )
    return [line[:WIDTH] for line in lines]


def candidate_json(one: Candidate) -> dict[str, Any]:
    layout = one.layout
    return {
        "pipeline": layout.pipeline,
        "data": layout.data,
        "tensor": layout.tensor,
        "virtual": layout.virtual,
        "sequence_parallel": layout.sequence_parallel,
        "layers_per_stage": list(one.layers),
        "micro_batch": one.job.batch.micro_batch,
        "micro_batches": one.micro_batches,
        "recovery": [mode.value for mode in one.recovery],
        "recovery_buffer": one.buffer,
        "sharding": one.mode.sharding,
        "gradients": "sharded" if one.mode.sharded_gradients else "local",
        "reversed_kinds": one.reversed_kinds,
    }


def tried_json(one: Tried) -> dict[str, Any]:
    return {
        "plan": candidate_json(one.candidate),
        "step_time_s": one.step_s,
        "estimate_s": one.estimate_s,
        "bound_bytes": one.bound_bytes,
    }


def search_json(found: Search, top: int) -> dict[str, Any]:
    """Every figure, with its unit in its key."""
    job = found.job
    tokens = job.batch.sequences * job.model.sequence_length
    return {
        "model": job.model.spec.name,
        "cluster": job.cluster.spec.name,
        "devices": job.cluster.devices,
        "budget_bytes": job.budget_bytes,
        "tokens_per_s": tokens / found.best.step_s,
        "plans": [tried_json(one) for one in found.tried[:top]],
        "checked": found.checks,
        "fitting": found.fitting,
        "simulated": len(found.tried),
        "mean_gap": found.mean_gap,
        "check_time_s": found.check_s,
        "search_time_s": found.total_s,
    }
