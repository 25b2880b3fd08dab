"""Random traffic: the latency and throughput of the mesh as the offered load grows.

Every node draws a packet with probability load / packet_flits in each cycle (Bernoulli) into an
unlimited source queue. Latency is from creation to the ejection of the last flit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ratrain.chip.noc.binding import Simulation
from ratrain.chip.noc.mesh import STATUS, finish, raise_fault
from ratrain.chip.noc.spec import MeshSpec
from ratrain.chip.noc.workload import TASK_FIELDS, Workload
from ratrain.errors import SpecError

Pattern = Literal["uniform", "transpose", "hotspot"]
PATTERNS: tuple[Pattern, ...] = ("uniform", "transpose", "hotspot")


@dataclass(frozen=True)
class Traffic:
    """What the nodes offer."""

    pattern: Pattern = "uniform"
    """uniform: any other node; transpose: (x,y) to (y,x); hotspot: see below."""
    packet_flits: int = 1
    hotspot_share: float = 0.1
    """Share of all packets that go to the node in the middle; the others are uniform."""
    seed: int = 0


@dataclass(frozen=True)
class LoadPoint:
    """One offered load, measured between `warmup` and `warmup + window` cycles."""

    offered: float
    """Flits per node and cycle."""
    accepted: float
    """Flits that left the network, per node and cycle."""
    mean_latency_cycles: float
    """Of packets created in the window that arrived before its end plus a drain of one window."""
    p99_latency_cycles: float
    arrived_share: float
    """Share of the window's packets that arrived; below 1 the network is saturated."""
    busiest_link: float
    """Flits per cycle on the most loaded link between routers."""
    cycles: int
    cpu_s: float
    link_flits: NDArray[np.int64]

    @property
    def saturated(self) -> bool:
        """More is offered than leaves (3 % is left for the noise of the draw)."""
        return self.accepted < 0.97 * self.offered


def destinations(
    mesh: MeshSpec, traffic: Traffic, src: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Where each packet goes; never to its own source, except on the diagonal of a transpose."""
    if traffic.pattern == "transpose":
        if mesh.columns != mesh.rows:
            raise SpecError("transpose needs a square mesh", place="traffic", fix="use NxN")
        return (src % mesh.columns) * mesh.columns + src // mesh.columns
    if mesh.nodes < 2:
        raise SpecError(
            "a mesh of one node has no other node to send to",
            place="traffic",
            fix="use a larger mesh",
        )
    drawn = rng.integers(0, mesh.nodes - 1, len(src))
    dst = drawn + (drawn >= src)
    if traffic.pattern == "hotspot":
        middle = (mesh.rows // 2) * mesh.columns + mesh.columns // 2
        hot = (rng.random(len(src)) < traffic.hotspot_share) & (src != middle)
        dst = np.where(hot, middle, dst)
    return dst


def draw(mesh: MeshSpec, traffic: Traffic, load: float, cycles: int) -> Workload:
    """The packets of `cycles` cycles at `load` flits per node and cycle."""
    rng = np.random.default_rng(traffic.seed)
    if traffic.packet_flits < 1:
        raise SpecError(f"{traffic.packet_flits} flits", place="traffic", fix="use 1 or more")
    chance = load / traffic.packet_flits
    if not 0 < chance <= 1:
        raise SpecError(
            f"a load of {load} flits per node and cycle",
            place="traffic",
            fix="choose a load above 0 and at most 1",
        )
    count = rng.binomial(cycles * mesh.nodes, chance)
    # Which (cycle, node) pairs draw a packet: a Bernoulli trial each, without replacement.
    slots = np.sort(rng.choice(cycles * mesh.nodes, count, replace=False))
    at, src = slots // mesh.nodes, slots % mesh.nodes
    dst = destinations(mesh, traffic, src, rng)
    keep = dst != src
    workload = Workload(mesh)
    workload.unicasts(src[keep], dst[keep], at[keep], traffic.packet_flits)
    return workload


def measure(
    mesh: MeshSpec,
    traffic: Traffic,
    load: float,
    *,
    warmup: int = 2000,
    window: int = 8000,
    drain: int | None = None,
) -> LoadPoint:
    """One point of the curve; traffic continues for `drain` cycles (one window) after the
    window."""
    end = warmup + window
    last_release = end + (window if drain is None else drain)
    workload = draw(mesh, traffic, load, last_release)
    sim = Simulation(workload)
    started = time.thread_time()
    sim.run(warmup)
    before, links_before = sim.counters()["ejected"], sim.links()[0]
    sim.run(end)
    after, links_after = sim.counters()["ejected"], sim.links()[0]
    status = sim.run(last_release)
    cpu_s = time.thread_time() - started
    result = finish(sim, mesh, status)
    if STATUS[status] not in ("done", "time limit"):
        raise_fault(result)
    created = workload.task_table()[:, TASK_FIELDS.index("release")]
    counted = (created >= warmup) & (created < end)
    arrived = counted & (result.last_at >= 0)
    # A worm's first_at is set at its first flit: whole only once the last flit was delivered.
    complete = np.zeros(len(created), bool)
    complete[result.deliveries[:, 0]] = True
    arrived &= complete
    latency = (result.last_at - created)[arrived]
    flits = links_after - links_before
    return LoadPoint(
        offered=load,
        accepted=(after - before) / (mesh.nodes * window),
        mean_latency_cycles=float(latency.mean()) if latency.size else float("inf"),
        p99_latency_cycles=float(np.percentile(latency, 99)) if latency.size else float("inf"),
        arrived_share=float(arrived.sum() / max(1, counted.sum())),
        busiest_link=float(flits[..., :4].max() / window),
        cycles=result.cycles,
        cpu_s=cpu_s,
        link_flits=flits,
    )


def sweep(
    mesh: MeshSpec,
    traffic: Traffic,
    loads: Iterable[float],
    *,
    warmup: int = 2000,
    window: int = 8000,
    each: Callable[[LoadPoint], None] = lambda _: None,
) -> list[LoadPoint]:
    """The curve; `each` is called with every point as it is measured."""
    points: list[LoadPoint] = []
    for load in loads:
        point = measure(mesh, traffic, load, warmup=warmup, window=window)
        each(point)
        points.append(point)
    return points


def saturation(mesh: MeshSpec, traffic: Traffic, *, window: int = 8000) -> LoadPoint:
    """What the network accepts when every node always has something to send."""
    full = 1.0 if traffic.packet_flits == 1 else 0.95
    return measure(mesh, traffic, full, window=window, drain=0)
