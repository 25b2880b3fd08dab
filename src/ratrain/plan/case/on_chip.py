"""What the network inside a chip makes of a plan's sums, and what another one would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ratrain.cost.collectives import ring_all_reduce
from ratrain.describe.cluster import ChipLink, ClusterSpec
from ratrain.describe.on_chip import BY, ChipNetwork
from ratrain.plan.case.case import Case
from ratrain.plan.layout.other_clusters import on_cluster
from ratrain.plan.layout.sizes import boundary_bytes
from ratrain.plan.layout.times import tensor_sums
from ratrain.simulate.long import simulate_proved

RING = "ring"


@dataclass(frozen=True)
class SumsBy:
    """A way to make a plan's sums, "hardware", "software" or "ring": seconds of one, and the step
    that the same plan takes where it is all there is."""

    by: str
    sum_s: float
    step_time_s: float
    used: bool


@dataclass(frozen=True)
class OnChip:
    """Sums of tensor groups inside chips."""

    network: ChipNetwork
    devices: int  # of a group
    size_bytes: int
    ways: tuple[SumsBy, ...]


def sums_on_chip(case: Case) -> OnChip | None:
    """What the plan's sums take; None where no tensor group is inside a chip whose network is
    known. Those of divided sequences are halves of sums, which stay a ring's."""
    if not case.plan.is_layout:
        return None
    placed, layout = case.plan.placement, case.plan.layout
    if layout.tensor == 1 or case.plan.sequence_parallel:
        return None
    link = placed.tensor_link(0)
    if not isinstance(link, ChipLink) or link.network is None:
        return None
    size = boundary_bytes(case.job)
    used_s = tensor_sums(1, size, layout, link).alone_s(link.bandwidth_bytes_per_s)
    ways = tuple(_ways(case, link, link.network, size, used_s))
    return OnChip(link.network, layout.tensor, size, ways)


def _ways(
    case: Case, link: ChipLink, network: ChipNetwork, size: int, used_s: float
) -> Iterator[SumsBy]:
    devices = case.plan.layout.tensor
    ring_s = ring_all_reduce(size, devices, link).alone_s(link.bandwidth_bytes_per_s)
    networks: dict[str, ChipNetwork | None] = {RING: None}
    times: dict[str, float] = {RING: ring_s}
    for by in BY:
        sum_s = network.sum_s(size, devices, by)
        if sum_s is not None:
            networks[by], times[by] = replace(network, has=by), sum_s
    for by, other in networks.items():
        changed = Case(on_cluster(case.plan, _with(case.job.cluster.spec, other)))
        step_s = simulate_proved(case.proved, changed.costs).step_time_s
        yield SumsBy(by, times[by], step_s, used_s == times[by])


def _with(spec: ClusterSpec, network: ChipNetwork | None) -> ClusterSpec:
    """The cluster whose chips have another network."""
    return replace(spec, device=tuple(replace(kind, chip=network) for kind in spec.device))
