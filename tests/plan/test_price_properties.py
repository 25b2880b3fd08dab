"""Prices of one given plan: what is faster never makes it slower, and the closed form is the
clock's where one thing takes most of the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_jobs import job

from ratrain.describe.cluster import ClusterSpec, HostKind, Link
from ratrain.describe.device import DeviceKind, Rate, Tier
from ratrain.describe.job import ClusterChoice, JobSpec, LayoutSpec
from ratrain.describe.strict import FrozenMap
from ratrain.plan.case.case import Case, case_of
from ratrain.plan.layout.enumerate import group_of_layout
from ratrain.plan.layout.placement import place
from ratrain.plan.layout.plan import plan_of_layout
from ratrain.plan.price.estimate import estimate
from ratrain.plan.price.places import costs_of
from ratrain.program.units import RECOVERY_CODE
from ratrain.simulate.simulate import simulate

BASE = DeviceKind(
    "d",
    (Tier("memory", 10**12, 1e12),),
    1e-6,
    0.8,
    rates=(Rate("fp16", 1e14, 5e13, attention_flops=3e13),),
)
LINK = Link(1e-5, 1e10)


def on(
    device: DeviceKind,
    inside: Link,
    across: Link,
    layout: LayoutSpec,
    schedule: str = "1f1b",
    model: str = "small-llama",
    backend: str = "described",
    micro_batches: int = 8,
) -> Case:
    """A job on hosts of one tensor group each."""
    hosts = (HostKind("h", device.name, layout.tensor, layout.pipeline * layout.data),)
    cluster = ClusterSpec("c", (device,), hosts, FrozenMap({"host": inside, "room": across}))
    spec = job(model, "mt3000", 1, micro_batches * layout.data, 512, schedule=schedule)
    spec = replace(spec, cluster=ClusterChoice(cluster, layout.devices), layout=layout)
    recovery = "auto" if schedule in ("1f1b", "gpipe", "zb-h1") else "everywhere"
    return case_of(
        replace(spec, schedule=replace(spec.schedule, backend=backend, recovery=recovery))
    )


def step_s(case: Case, device: DeviceKind, inside: Link, across: Link) -> float:
    """The step of the case's own program on other devices and links."""
    host = replace(case.job.cluster.spec.host[0], device=device.name)
    links = FrozenMap({"host": inside, "room": across})
    cluster = replace(case.job.cluster.spec, device=(device,), host=(host,), links=links)
    spec: JobSpec = replace(case.job, cluster=ClusterChoice(cluster, case.plan.layout.devices))
    placement = place(spec, case.plan.layout)
    there = plan_of_layout(spec, placement, case.strategy, case.plan.mode)
    costs = costs_of(there, case.program.setup)
    return simulate(case.program, costs).step_time_s


def faster_rate(device: DeviceKind, by: float) -> DeviceKind:
    (rate,) = device.rates
    rate = replace(
        rate, gemm_flops=rate.gemm_flops * by, attention_flops=(rate.attention_flops or 0) * by
    )
    return replace(device, rates=(rate,))


def faster_memory(device: DeviceKind, by: float) -> DeviceKind:
    (tier,) = device.tiers
    return replace(device, tiers=(replace(tier, bandwidth_bytes_per_s=1e12 * by),))


BETTER_DEVICES: dict[str, Callable[[DeviceKind, float], DeviceKind]] = {
    "products": faster_rate,
    "memory": faster_memory,
    "launches": lambda device, by: replace(device, launch_s=device.launch_s / by),
}
BETTER_LINKS: dict[str, Callable[[Link, float], Link]] = {
    "bandwidth": lambda k, by: replace(k, bandwidth_bytes_per_s=k.bandwidth_bytes_per_s * by),
    "latency": lambda link, by: replace(link, latency_s=link.latency_s / by),
}
LAYOUTS = st.sampled_from([LayoutSpec(2, 2), LayoutSpec(1, 4), LayoutSpec(4), LayoutSpec(2, 1, 2)])
SCHEDULES = st.sampled_from(["1f1b", "gpipe", "ratrain", "zero3-heavy", "zb-h1"])
SLACK = 1.005
"""Two transfers that begin in another order may hold an op up by a little."""


@pytest.mark.parametrize("what", BETTER_DEVICES)
@given(layout=LAYOUTS, schedule=SCHEDULES, by=st.sampled_from([1.5, 30.0]))
@settings(max_examples=5)
def test_a_faster_device_never_makes_a_plan_slower(
    what: str, layout: LayoutSpec, schedule: str, by: float
) -> None:
    slow = Link(1e-4, 2e9)
    case = on(BASE, LINK, slow, layout, schedule)
    before_s = step_s(case, BASE, LINK, slow)
    assert step_s(case, BETTER_DEVICES[what](BASE, by), LINK, slow) <= before_s * SLACK


@pytest.mark.parametrize("what", BETTER_LINKS)
@given(layout=LAYOUTS, schedule=SCHEDULES, by=st.sampled_from([1.5, 30.0]))
@settings(max_examples=5)
def test_a_faster_link_never_makes_a_plan_slower(
    what: str, layout: LayoutSpec, schedule: str, by: float
) -> None:
    slow = Link(3e-4, 1e9)
    case = on(BASE, slow, slow, layout, schedule)
    faster = BETTER_LINKS[what](slow, by)
    before_s = step_s(case, BASE, slow, slow)
    assert step_s(case, BASE, faster, slow) <= before_s * SLACK
    assert step_s(case, BASE, slow, faster) <= before_s * SLACK


@pytest.mark.parametrize("schedule", ["1f1b", "ratrain", "zero3-heavy"])
def test_more_memory_never_makes_a_layout_slower(schedule: str) -> None:
    """With more it recovers less, and reduces less often."""
    (tier,) = BASE.tiers
    steps: list[float] = []
    for capacity_bytes in (2.0e9, 2.5e9, 4e9, 10e9):
        device = replace(BASE, tiers=(replace(tier, capacity_bytes=int(capacity_bytes)),))
        cluster = ClusterSpec(
            "c", (device,), (HostKind("h", "d", 1, 4),), FrozenMap({"host": LINK, "room": LINK})
        )
        spec = job("small-llama", "mt3000", 1, 32, 512, schedule=schedule)
        spec = replace(spec, cluster=ClusterChoice(cluster, 4), layout=LayoutSpec(2, 2))
        case = case_of(spec)
        if case.proved.verdict.sound:
            steps.append(simulate(case.program, case.costs).step_time_s)
    assert len(steps) > 1
    assert steps == sorted(steps, reverse=True)


# ---- the closed form -----------------------------------------------------------------------------


def closed_s(case: Case) -> float:
    """The step of the case by closed form."""
    stages = case.program.setup.replicas[0].stages
    codes = np.array([[RECOVERY_CODE[stage.only.recovery] for stage in stages]], dtype=np.int64)
    sharded = case.program.setup.accumulation.value == "sharded"
    group = group_of_layout(case.job, case.strategy, case.plan.placement, sharded)
    return float(estimate(group, codes).step_s[0])


QUICK = replace(
    BASE, launch_s=1e-9, rates=(Rate("fp16", 1e18, 1e18),), tiers=(Tier("m", 10**12, 1e16),)
)
FREE = Link(1e-9, 1e15)
EXTREMES: dict[str, tuple[DeviceKind, Link, Link]] = {
    "products": (faster_memory(BASE, 1e3), FREE, FREE),
    "memory": (replace(faster_rate(BASE, 1e5), launch_s=1e-9), FREE, FREE),
    "launches": (replace(QUICK, launch_s=1e-3), FREE, FREE),
    "bandwidth across": (QUICK, FREE, Link(1e-9, 1e9)),
    "latency across": (QUICK, FREE, Link(1e-2, 1e15)),
    "bandwidth inside": (QUICK, Link(1e-9, 1e9), FREE),
    "latency inside": (QUICK, Link(1e-2, 1e15), FREE),
}
ALONE, PIPELINE, REPLICAS, GROUPS, GROUP = (
    LayoutSpec(1, 4),
    LayoutSpec(4),
    LayoutSpec(2, 2),
    LayoutSpec(2, 2, 2),
    LayoutSpec(1, 1, 4),
)
PLAIN = ("1f1b", "gpipe", "megatron", "backward-checkpoint")
AHEAD = ("ratrain", "zero3-heavy")
TIGHT: list[tuple[str, LayoutSpec, tuple[str, ...]]] = [
    *(
        (what, layout, (*PLAIN, *AHEAD))
        for what in ("products", "launches")
        for layout in (ALONE, PIPELINE, REPLICAS, GROUPS, GROUP)
    ),
    *(
        ("memory", layout, ("1f1b", "gpipe", "megatron"))
        for layout in (ALONE, PIPELINE, REPLICAS, GROUPS, GROUP)
    ),
    ("bandwidth across", ALONE, (*PLAIN, *AHEAD)),
    ("latency across", ALONE, (*PLAIN, "ratrain")),
    ("latency across", REPLICAS, ("1f1b", "megatron", "backward-checkpoint", "ratrain")),
    *((f"{what} inside", GROUP, PLAIN) for what in ("bandwidth", "latency")),
    *((f"{what} inside", GROUPS, ("gpipe",)) for what in ("bandwidth", "latency")),
]
"""Where the closed form has nothing to estimate. Elsewhere (long messages between stages, sums of a
tensor group beside early recovery, zb-h1) it ranks, and plans are simulated."""


@pytest.mark.parametrize(
    ("what", "layout", "schedule"),
    [
        pytest.param(
            what, layout, name, id=f"{what}-{layout.pipeline}x{layout.data}x{layout.tensor}-{name}"
        )
        for what, layout, names in TIGHT
        for name in names
    ],
)
def test_the_closed_form_is_the_clocks_where_one_thing_takes_the_time(
    what: str, layout: LayoutSpec, schedule: str
) -> None:
    case = on(*EXTREMES[what], layout, schedule)
    simulated_s = simulate(case.program, case.costs).step_time_s
    assert closed_s(case) == pytest.approx(simulated_s, rel=3e-3)
