"""Random jobs without a layout, and random configurations of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from ratrain.describe.cluster import ClusterSpec, HostKind
from ratrain.describe.job import Batch, ClusterChoice, JobSpec, ModelChoice, ScheduleSpec
from ratrain.describe.model import ModelSpec
from ratrain.describe.presets import cluster_preset, model_preset
from ratrain.describe.strict import FrozenMap
from ratrain.plan.layout.enumerate import Group, groups_of
from ratrain.plan.layout.plan import Plan, plan_of_row
from ratrain.program.replicas import Recovery
from ratrain.program.strategies import STRATEGIES

MODELS = ("tiny-llama", "small-llama", "small-qwen", "gpt-3.6b", "llama-2-7b")
SKELETONS = ("1f1b", "gpipe", "zb-h1", "interleaved")


def job(
    model: str,
    cluster: str,
    devices: int,
    sequences: int,
    sequence_length: int = 512,
    budget_bytes: int | None = None,
    schedule: str = "ratrain",
    backend: str = "described",
) -> JobSpec:
    """A job that leaves its layout to the planner."""
    return JobSpec(
        ModelChoice(model_preset(model), sequence_length),
        ClusterChoice(cluster_preset(cluster), devices),
        Batch(sequences),
        None,
        ScheduleSpec(schedule, memory_budget_bytes=budget_bytes, backend=backend),
    )


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    """A random model, sometimes of a single layer, sometimes with a huge vocabulary."""
    heads = draw(st.sampled_from([1, 2, 6, 8]))
    head_dim = draw(st.sampled_from([8, 64]))
    return ModelSpec(
        name="random",
        family="random",
        hidden=heads * head_dim,
        layers=draw(st.integers(1, 9)),
        heads=heads,
        kv_heads=draw(st.sampled_from([1, heads])),
        head_dim=head_dim,
        ffn=draw(st.integers(1, 2000)),
        vocab=draw(st.sampled_from([17, 1000, 150_000])),
        max_positions=4096,
        source="random",
    )


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSpec:
    """A random mix of two kinds of hosts, in one room or at two sites."""
    base = cluster_preset("mixed-sites")
    a100, mt3000 = base.device
    if draw(st.booleans()):  # priced kernel by kernel, and with stored scores
        a100 = cluster_preset("a100-80g-dgx").device[0]
    first = HostKind("a", a100.name, draw(st.integers(1, 4)), draw(st.integers(1, 2)))
    second = HostKind(
        "b",
        draw(st.sampled_from([a100.name, mt3000.name])),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 2)),
        site=draw(st.sampled_from(["site", "other"])),
    )
    devices = (a100, mt3000)
    return ClusterSpec("random", devices, (first, second), FrozenMap(base.links))


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    """Any model on any cluster, with any strategy and a budget from hopeless to ample."""
    cluster = draw(clusters())
    assert cluster.size is not None
    gradient_dtype: Literal["fp32", "fp16"] = draw(st.sampled_from(["fp32", "fp16"]))
    return JobSpec(
        ModelChoice(draw(models()), draw(st.sampled_from([1, 16, 128]))),
        ClusterChoice(cluster, draw(st.integers(1, cluster.size))),
        Batch(draw(st.integers(1, 48))),
        None,
        ScheduleSpec(
            draw(st.sampled_from(sorted(STRATEGIES))),
            gradient_dtype=gradient_dtype,
            memory_budget_bytes=draw(st.sampled_from([10**5, 10**6, 10**7, 10**8, 10**9, None])),
            backend=draw(st.sampled_from(["torch", "described"])),
            sharding=draw(st.sampled_from([None, None, None, 0, 1, 2, 3])),
            gradient_accumulation=draw(st.sampled_from(["auto", "auto", "local", "sharded"])),
            recovery=draw(
                st.sampled_from(
                    ["auto", "auto", "auto", "keep-all", "selective", "exempt-last", "everywhere"]
                )
            ),
            error_feedback=gradient_dtype == "fp32" and draw(st.booleans()),
        ),
    )


@st.composite
def candidates(
    draw: st.DrawFn,
    schedules: tuple[str, ...] = ("ratrain",),
    cells: int = 200,
    *,
    tied: bool = False,
    waiting: bool = False,
    divided: bool | None = None,
) -> tuple[Group, Plan, np.ndarray]:
    """A row of a random job: its group of one row, the candidate, its recovery codes. `tied`: the
    model's embeddings are, on the backend that keeps two copies. Some jobs feed rounding errors
    back, and some of these clip, so that a step may be skipped. `waiting`: gradients of some wait
    in another tier. `divided`: with sequence parallelism, or without; None: either."""
    planned_job = job(
        draw(st.sampled_from(MODELS)),
        draw(st.sampled_from(["mt3000", "a100-80g-dgx", "mixed-sites"])),
        draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16])),
        draw(st.sampled_from([4, 12, 16, 32, 48])),
        draw(st.sampled_from([64, 512, 1024])),
        schedule=draw(st.sampled_from(schedules)),
        backend="torch" if tied or waiting else "described",
    )
    fed_back = draw(st.booleans())
    skeleton = tier = None
    if planned_job.schedule.name == "ratrain":
        skeleton = draw(st.sampled_from([None, None, "1f1b", "layer-major-2", "layer-major-8"]))
        tier = draw(st.sampled_from([None, "host"])) if waiting else None
    changed = {"error_feedback": fed_back, "skeleton": skeleton, "gradient_tier": tier}
    planned_job = replace(
        planned_job,
        schedule=replace(planned_job.schedule, **changed),
        train=replace(planned_job.train, clip_norm=draw(st.sampled_from([None, 1.0]))),
    )
    if tied:
        spec = replace(planned_job.model.spec, tied_embeddings=True)
        planned_job = replace(planned_job, model=replace(planned_job.model, spec=spec))
    groups = [
        g
        for g in groups_of(planned_job)
        if g.micro_batches * g.layout.stages <= cells
        and divided in (None, g.layout.sequence_parallel)
    ]
    assume(groups)
    group = draw(st.sampled_from(groups))
    row = draw(st.integers(0, len(group) - 1))
    codes = {Recovery.NONE: [0, 3], Recovery.BACKWARD: [1]}.get(
        group.strategy.recovery, [0, 1, 2, 3]
    )
    recovery = np.array([[draw(st.sampled_from(codes)) for _ in range(group.layout.stages)]])
    return group.only(np.array([row])), plan_of_row(group, row, recovery[0]), recovery
