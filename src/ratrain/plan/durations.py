"""The costs of a placed layout: each kind of op on each unit, and the links that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ratrain.cost.blocks import BlockKind
from ratrain.cost.collectives import NOTHING, Transfer, message, ring_half, tree_all_reduce
from ratrain.cost.compute import BlockTimes, block_times, optimizer_bytes_moved
from ratrain.cost.gpu_layer import Execution
from ratrain.cost.precision import SAVED_BYTES, precision_of
from ratrain.describe.cluster import Link
from ratrain.describe.job import JobSpec
from ratrain.plan.placement import Placement, ReplicaClass
from ratrain.plan.sizes import blocks_of_stages, boundary_bytes
from ratrain.plan.transfers import stage_message, sums_in_compute, tensor_sums, tensor_sums_s
from ratrain.program.actions import BARRIERS, Kind
from ratrain.program.setup import Recovery, Setup
from ratrain.simulate.costs import NO_LINK, Costs, Floats, Work, fixed_work

_NORM_BYTES = 8  # of the global norm: one number, and whether any gradient overflowed
_SUM_PASSES = 5  # of a gradient through memory: two read and their sum written, read and copied


@dataclass(frozen=True)
class _Message:
    """A tensor for a neighbouring stage: to which program rank, over which link, what it sends."""

    rank: int
    link: Link
    sent: Transfer


@dataclass(frozen=True)
class _Place:
    """A unit where it stands: what the cost of its ops depends on."""

    rank: int  # of the program
    pipeline: int  # rank within the replica
    kind: BlockKind
    times: BlockTimes
    params: float  # on one rank of a tensor group
    view_bytes: float  # its weights there
    boundary_bytes: int
    sums_apart: bool  # its sums are ops of their own
    previous: _Message | None  # to the stage before, if elsewhere
    following: _Message | None


class _Ports:
    """Links by number. A rank has a port out and a port in for each link that it uses (NVLink and
    the network are two, and so are a host's link whole and a part of it), a memory port, a disk."""

    def __init__(self) -> None:
        self._number: dict[tuple[int, str, Link | None], int] = {}
        self._rate: list[float] = []

    @property
    def rate(self) -> Floats:
        return np.array(self._rate or [1.0], dtype=np.float64)

    def out(self, rank: int, link: Link) -> int:
        return self._named((rank, "out", link), link.bandwidth_bytes_per_s)

    def into(self, rank: int, link: Link) -> int:
        return self._named((rank, "into", link), link.bandwidth_bytes_per_s)

    def memory(self, rank: int, rate_bytes_per_s: float) -> int:
        return self._named((rank, "memory", None), rate_bytes_per_s)

    def disk(self, rank: int, rate_bytes_per_s: float) -> int:
        return self._named((rank, "disk", None), rate_bytes_per_s)

    def _named(self, key: tuple[int, str, Link | None], rate_bytes_per_s: float) -> int:
        if key not in self._number:
            self._number[key] = len(self._rate)
            self._rate.append(rate_bytes_per_s)
        return self._number[key]


def costs_of(job: JobSpec, placement: Placement, setup: Setup) -> Costs:
    """The `Costs` of a setup made by `case` for this job and placement."""
    ports = _Ports()
    units = _places(job, placement, setup)
    zero = np.zeros(len(units), dtype=np.float64)
    work: dict[Kind, Work] = {kind: fixed_work(zero) for kind in BARRIERS}
    for kind in (Kind.RECV_F, Kind.RECV_B):
        work[kind] = fixed_work(zero)  # a receive lasts as long as its send
    for kind, time_s in _COMPUTE.items():
        work[kind] = fixed_work(np.array([time_s(unit.times) for unit in units]))
    work[Kind.SEND_F] = _sends(units, ports, lambda unit: unit.following)
    work[Kind.SEND_B] = _sends(units, ports, lambda unit: unit.previous)
    for kind, transfer in _collectives(placement, setup).items():
        link = placement.tensor_link if kind in _TENSOR else placement.data_link
        needed = placement.layout.tensor > 1 if kind in _TENSOR else setup.reduces
        work[kind] = _ring_work(units, ports, transfer, link) if needed else fixed_work(zero)
    work[Kind.UpdateShard] = _updates(placement, setup, units, ports)
    work[Kind.ClipNorm] = _norms(placement, setup, len(units))
    work[Kind.Save] = _saves(placement, setup, units, ports)
    if setup.tied:
        work[Kind.TieSync] = _ties(job, placement, setup, units, ports)
    return Costs(work, ports.rate)


_COMPUTE: dict[Kind, Callable[[BlockTimes], float]] = {
    Kind.F: lambda times: times.forward_s,
    Kind.R: lambda times: times.forward_s,
    Kind.B: lambda times: times.backward_s,
    Kind.I: lambda times: times.input_gradient_s,
    Kind.W: lambda times: times.weight_gradient_s,
}
_TENSOR = (Kind.AllReduce_F, Kind.AllReduce_R, Kind.AllReduce_B)


def _places(job: JobSpec, placement: Placement, setup: Setup) -> list[_Place]:
    found: list[_Place] = []
    for number, alike in enumerate(placement.classes):
        found += _places_of_class(job, placement, setup, number, alike)
    return found


def _places_of_class(
    job: JobSpec, placement: Placement, setup: Setup, number: int, alike: ReplicaClass
) -> list[_Place]:
    layout, base = placement.layout, setup.first_rank[number]
    stages = blocks_of_stages(job, layout)
    rank_of = [number % layout.pipeline for number in range(len(stages))]

    def neighbour(source: int, target: int) -> _Message | None:
        if not 0 <= target < len(stages) or rank_of[source] == rank_of[target]:
            return None
        here, there = rank_of[source], rank_of[target]
        link = placement.stage_link(here, there, alike.members)
        kind = placement.kind(alike.kinds[here])
        return _Message(base + there, link, stage_message(boundary, link, kind, placement, there))

    boundary = boundary_bytes(job)
    found: list[_Place] = []
    known: dict[tuple[str, str, float, Execution], BlockTimes] = {}
    precision = precision_of(job.schedule.dtype)
    for stage, parts in enumerate(stages):
        kind = placement.kind(alike.kinds[rank_of[stage]])
        previous, following = neighbour(stage, stage - 1), neighbour(stage, stage + 1)
        mode = setup.replicas[number].stages[stage].recovery
        execution = Execution(layout.sequence_parallel, mode is Recovery.SELECTIVE)
        for block in parts:
            sums_s = tensor_sums_s(block.kind, boundary, placement, rank_of[stage])
            key = (kind.name, block.kind, sums_s, execution)
            if key not in known:
                known[key] = block_times(
                    block,
                    kind,
                    micro_batch=job.batch.micro_batch,
                    sequence=job.model.sequence_length,
                    dtype=job.schedule.dtype,
                    tensor=layout.tensor,
                    execution=execution,
                    sums_s=sums_s,
                )
            found.append(
                _Place(
                    rank=base + rank_of[stage],
                    pipeline=rank_of[stage],
                    kind=block.kind,
                    times=known[key],
                    params=block.params / layout.tensor,
                    view_bytes=precision.weight_bytes * block.params / layout.tensor,
                    boundary_bytes=boundary,
                    sums_apart=not sums_in_compute(kind),
                    previous=previous,
                    following=following,
                )
            )
    return found


def _work_of(transfers: Sequence[Transfer], links: Sequence[int], peers: Sequence[int]) -> Work:
    return Work(
        fixed_s=np.array([t.latency_s for t in transfers]),
        volume_bytes=np.array([t.volume_bytes for t in transfers]),
        interrupt_s=np.array([t.driving_s for t in transfers]),
        link=np.array(links, dtype=np.int64),
        peer_link=np.array(peers, dtype=np.int64),
    )


def _sends(
    units: Sequence[_Place], ports: _Ports, other: Callable[[_Place], _Message | None]
) -> Work:
    transfers: list[Transfer] = []
    links: list[int] = []
    peers: list[int] = []
    for unit in units:
        neighbour = other(unit)
        if neighbour is None:
            transfers.append(NOTHING)
            links.append(NO_LINK)
            peers.append(NO_LINK)
            continue
        transfers.append(neighbour.sent)
        links.append(ports.out(unit.rank, neighbour.link))
        peers.append(ports.into(neighbour.rank, neighbour.link))
    return _work_of(transfers, links, peers)


def _collectives(
    placement: Placement, setup: Setup
) -> dict[Kind, Callable[[_Place, Link], Transfer]]:
    """The transfer of each kind of collective for one unit."""
    data = placement.layout.data

    def half(unit: _Place, link: Link) -> Transfer:
        return ring_half(unit.view_bytes, data, link)

    def reduction(unit: _Place, link: Link) -> Transfer:
        return half(unit, link).times(1 if setup.sharding else 2)

    def sums(unit: _Place, link: Link) -> Transfer:
        if not unit.sums_apart:
            return NOTHING
        return tensor_sums(unit.kind, unit.boundary_bytes, placement.layout, link)

    return {
        Kind.GradSync: reduction,
        Kind.PrefetchW: half,
        Kind.Gather_F: half,
        Kind.Gather_B: half,
        **dict.fromkeys(_TENSOR, sums),
    }


def _ring_work(
    units: Sequence[_Place],
    ports: _Ports,
    transfer: Callable[[_Place, Link], Transfer],
    link_of: Callable[[int], Link],
) -> Work:
    """A ring sends as much as it receives: it uses both of its rank's ports."""
    known = {pipeline: link_of(pipeline) for pipeline in {unit.pipeline for unit in units}}
    links = [known[unit.pipeline] for unit in units]
    return _work_of(
        [transfer(unit, link) for unit, link in zip(units, links, strict=True)],
        [ports.out(unit.rank, link) for unit, link in zip(units, links, strict=True)],
        [ports.into(unit.rank, link) for unit, link in zip(units, links, strict=True)],
    )


def _updates(placement: Placement, setup: Setup, units: Sequence[_Place], ports: _Ports) -> Work:
    """The optimizer: bytes of its share of the parameters through the device's memory."""
    owners = setup.data if setup.sharding else 1
    transfers: list[Transfer] = []
    links: list[int] = []
    for unit in units:
        alike = placement.classes[setup.replica_of(unit.rank)]
        device = placement.kind(alike.kinds[unit.pipeline])
        moved = optimizer_bytes_moved(unit.params / owners, device)
        transfers.append(Transfer(device.launch_s, moved, 0.0))
        links.append(ports.memory(unit.rank, device.memory.bandwidth_bytes_per_s))
    return _work_of(transfers, links, [NO_LINK] * len(units))


def _norms(placement: Placement, setup: Setup, units: int) -> Work:
    """The global norm: a few bytes from every device to every other, over the farthest link. What
    the squares of the gradients take to add up is not counted."""
    if setup.devices == 1:
        return fixed_work(np.zeros(units))
    link = placement.farthest_link
    transfer = tree_all_reduce(_NORM_BYTES, setup.devices, link)
    fixed_s = transfer.alone_s(link.bandwidth_bytes_per_s)
    work = fixed_work(np.full(units, fixed_s))
    return replace(work, interrupt_s=np.full(units, transfer.driving_s))


def _ties(
    job: JobSpec, placement: Placement, setup: Setup, units: Sequence[_Place], ports: _Ports
) -> Work:
    """The part of a tied matrix' gradient that a replica owns from each end of the pipeline to the
    other, both ways at once; on one rank, three reads and two writes of it in memory. Not modelled:
    the sum where it was sent."""
    layout, model = placement.layout, job.model.spec
    element_bytes = precision_of(job.schedule.dtype).gradient_bytes
    parts = layout.tensor * (setup.data if setup.sharding else 1)
    size_bytes = element_bytes * model.vocab * model.hidden / parts
    last = layout.pipeline - 1

    def tie(unit: _Place) -> tuple[Transfer, int, int]:
        alike = placement.classes[setup.replica_of(unit.rank)]
        if not last:
            device = placement.kind(alike.kinds[unit.pipeline])
            port = ports.memory(unit.rank, device.memory.bandwidth_bytes_per_s)
            return Transfer(device.launch_s, _SUM_PASSES * size_bytes, 0.0), port, NO_LINK
        if unit.pipeline not in (0, last):
            return NOTHING, NO_LINK, NO_LINK
        other = last - unit.pipeline
        link = placement.stage_link(unit.pipeline, other, alike.members)
        peer = unit.rank - unit.pipeline + other
        return message(size_bytes, link), ports.out(unit.rank, link), ports.into(peer, link)

    transfers, links, peers = zip(*map(tie, units), strict=True)
    return _work_of(transfers, links, peers)


def _saves(placement: Placement, setup: Setup, units: Sequence[_Place], ports: _Ports) -> Work:
    """A checkpoint: the master weights and moments that a rank owns, through its disk (the tier of
    that name; nothing where the device has none). Where every replica has all of them, one of them
    writes all. Not modelled: several devices of a host on one disk."""
    owners = setup.data if setup.sharding else 1
    transfers: list[Transfer] = []
    links: list[int] = []
    for unit in units:
        alike = placement.classes[setup.replica_of(unit.rank)]
        tiers = {tier.name: tier for tier in placement.kind(alike.kinds[unit.pipeline]).tiers}
        disk = tiers.get("disk")
        size_bytes = SAVED_BYTES * unit.params / owners if disk else 0.0
        transfers.append(Transfer(0.0, size_bytes, 0.0))
        links.append(ports.disk(unit.rank, disk.bandwidth_bytes_per_s) if disk else NO_LINK)
    return _work_of(transfers, links, [NO_LINK] * len(units))
