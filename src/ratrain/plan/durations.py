"""The costs of a placed layout: each kind of op on each unit, and the links that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from ratrain.cost.blocks import BlockKind
from ratrain.cost.collectives import NOTHING, Transfer, message, tree_all_reduce
from ratrain.cost.compute import BlockTimes, reduced_bytes_per_param, update
from ratrain.cost.precision import SAVED_BYTES, precision_of, wire_bytes
from ratrain.describe.cluster import DeviceKind, Link
from ratrain.describe.job import JobSpec
from ratrain.errors import ProgramError
from ratrain.plan.compute_times import placed_times
from ratrain.plan.gradient_groups import Half, data_half
from ratrain.plan.placement import Placement, ReplicaClass
from ratrain.plan.sizes import blocks_of_stages, boundary_bytes, sent_boundary_bytes
from ratrain.plan.transfers import stage_message, sums_of_op, tensor_sums
from ratrain.program.kind import Cost, Kind, kinds
from ratrain.program.setup import HOST, Recovery, Setup, Unit
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
    """A unit in its place: what the cost of its ops depends on."""

    rank: int  # of the program
    pipeline: int  # rank within the replica
    kind: BlockKind
    times: BlockTimes
    params: float  # on one rank of a tensor group
    view_bytes: float  # its weights there
    reduced_bytes: float  # its gradient there, as reductions send it
    boundary_bytes: int
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

    def host(self, rank: int, rate_bytes_per_s: float) -> int:
        return self._named((rank, "host", None), rate_bytes_per_s)

    def _named(self, key: tuple[int, str, Link | None], rate_bytes_per_s: float) -> int:
        if key not in self._number:
            self._number[key] = len(self._rate)
            self._rate.append(rate_bytes_per_s)
        return self._number[key]


FLAG_BYTES = 4
"""Whether an owner's part of a gradient overflowed, as it is sent."""


Seconds = Callable[[Unit, DeviceKind], float]
"""How long an op about a unit takes on a device of some kind."""
OWN_COSTS: dict[str, Seconds] = {}


def declare_cost(name: str, seconds: Seconds) -> None:
    """Makes a cost known by the name that kinds of op give it."""
    if name in {*Cost, *OWN_COSTS}:
        raise ProgramError(f"the cost {name} is declared twice", fix="choose another name")
    OWN_COSTS[name] = seconds


def costs_of(job: JobSpec, placement: Placement, setup: Setup) -> Costs:
    """The `Costs` of a setup made by `case` for this job and placement."""
    ports = _Ports()
    units = _places(job, placement, setup)
    zero = fixed_work(np.zeros(len(units), dtype=np.float64))
    priced: dict[str, Work] = {
        Cost.NOTHING: zero,
        Cost.RECEIVE_INPUT: zero,  # a receive lasts as long as its send
        Cost.RECEIVE_GRADIENT: zero,
        Cost.SEND_OUTPUT: _sends(units, ports, lambda unit: unit.following),
        Cost.SEND_GRADIENT: _sends(units, ports, lambda unit: unit.previous),
    }
    for cost, time_s in _COMPUTE.items():
        priced[cost] = fixed_work(np.array([time_s(unit.times) for unit in units]))
    for cost, transfer in _collectives(job, placement, setup).items():
        inside = cost is Cost.TENSOR_SUM
        link = placement.tensor_link if inside else placement.data_link
        needed = placement.layout.tensor > 1 if inside else placement.layout.data > 1
        priced[cost] = _group_work(units, ports, transfer, link) if needed else zero
    priced[Cost.UPDATE] = _updates(placement, setup, units, ports)
    priced[Cost.NORM] = _norms(placement, setup, len(units))
    # Steps that save nothing are simulated, unless every one does.
    saving = _saves(placement, setup, units, ports)
    priced[Cost.SAVE] = saving if job.checkpoint.every == 1 else zero
    priced[Cost.COPY_INPUT] = _copies(placement, setup, units, ports)
    if setup.tied:
        priced[Cost.TIE] = _ties(job, placement, setup, units, ports)
    for name, seconds in OWN_COSTS.items():
        priced[name] = _declared(seconds, placement, setup, units)
    work = {k: priced[k.cost] for k in kinds() if k.cost in priced}
    if job.backend.sums_in_compute:
        work[Kind.AllReduce_R] = zero  # what a recovered unit hands on is not read
    return Costs(work, ports.rate)


_COMPUTE: dict[Cost, Callable[[BlockTimes], float]] = {
    Cost.FORWARD: lambda times: times.forward_s,
    Cost.BACKWARD: lambda times: times.backward_s,
    Cost.INPUT_GRADIENT: lambda times: times.input_gradient_s,
    Cost.WEIGHT_GRADIENT: lambda times: times.weight_gradient_s,
}


def _declared(
    seconds: Seconds, placement: Placement, setup: Setup, places: Sequence[_Place]
) -> Work:
    """The work of a cost that is declared as seconds of each unit on its device."""
    described = [unit for member in setup.members for unit in member.units]
    times: list[float] = []
    for unit, place in zip(described, places, strict=True):
        alike = placement.classes[setup.replica_of(place.rank)]
        times.append(seconds(unit, placement.kind(alike.kinds[place.pipeline])))
    return fixed_work(np.array(times))


def _places(job: JobSpec, placement: Placement, setup: Setup) -> list[_Place]:
    places: list[_Place] = []
    for number, alike in enumerate(placement.classes):
        places += _places_of_class(job, placement, setup, number, alike)
    return places


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
        return _Message(base + there, link, stage_message(sent, link, kind, placement, there))

    boundary, sent = boundary_bytes(job), sent_boundary_bytes(job)
    places: list[_Place] = []
    known: dict[tuple[int, str, bool], BlockTimes] = {}
    precision = precision_of(job.schedule.dtype)
    for stage, parts in enumerate(stages):
        kind = placement.kind(alike.kinds[rank_of[stage]])
        previous, following = neighbour(stage, stage - 1), neighbour(stage, stage + 1)
        mode = setup.replicas[number].stages[stage].only.recovery
        selective = mode is Recovery.SELECTIVE
        reduced = reduced_bytes_per_param(kind, job.schedule.dtype, job.schedule.gradient_wire)
        for block in parts:
            key = (rank_of[stage], block.kind, selective)
            if key not in known:
                known[key] = placed_times(
                    job, placement, block, kind, rank_of[stage], selective=selective
                )
            places.append(
                _Place(
                    rank=base + rank_of[stage],
                    pipeline=rank_of[stage],
                    kind=block.kind,
                    times=known[key],
                    params=block.params / layout.tensor,
                    view_bytes=precision.weight_bytes * block.params / layout.tensor,
                    reduced_bytes=reduced * block.params / layout.tensor,
                    boundary_bytes=boundary,
                    previous=previous,
                    following=following,
                )
            )
    return places


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
    job: JobSpec, placement: Placement, setup: Setup
) -> dict[Cost, Callable[[_Place, Link], Transfer]]:
    """The transfer of each sort of collective for one unit. Where units decide by themselves
    whether they overflowed, their owners agree by one number each with every reduction."""
    data = placement.layout.data
    agree = job.schedule.dtype == "fp16" and job.train.overflow == "unit" and setup.sharding > 0

    @cache
    def half_of(pipeline: int) -> Half:
        return data_half(job, placement, pipeline)

    def half(unit: _Place, _link: Link) -> Transfer:
        return half_of(unit.pipeline)(unit.view_bytes)

    def reduction(unit: _Place, _link: Link) -> Transfer:
        half_sent = half_of(unit.pipeline)
        reduced = half_sent(unit.reduced_bytes).times(1 if setup.sharding else 2)
        return reduced.plus(half_sent(FLAG_BYTES * data)) if agree else reduced

    def sums(unit: _Place, link: Link) -> Transfer:
        if unit.times.sums_inside:
            return NOTHING
        count = sums_of_op(job, unit.kind)
        return tensor_sums(count, unit.boundary_bytes, placement.layout, link)

    return {
        Cost.REDUCE: reduction,
        Cost.GATHER: half,
        Cost.AVERAGE: lambda unit, link: half(unit, link).times(2),
        Cost.TENSOR_SUM: sums,
    }


def _group_work(
    units: Sequence[_Place],
    ports: _Ports,
    transfer: Callable[[_Place, Link], Transfer],
    link_of: Callable[[int], Link],
) -> Work:
    """In a collective a rank receives as much as it sends: it uses both of its ports."""
    known = {pipeline: link_of(pipeline) for pipeline in {unit.pipeline for unit in units}}
    links = [known[unit.pipeline] for unit in units]
    return _work_of(
        [transfer(unit, link) for unit, link in zip(units, links, strict=True)],
        [ports.out(unit.rank, link) for unit, link in zip(units, links, strict=True)],
        [ports.into(unit.rank, link) for unit, link in zip(units, links, strict=True)],
    )


def _updates(placement: Placement, setup: Setup, units: Sequence[_Place], ports: _Ports) -> Work:
    """The optimizer on a rank's share of the parameters."""
    owners = setup.data if setup.sharding else 1
    transfers: list[Transfer] = []
    links: list[int] = []
    for unit in units:
        alike = placement.classes[setup.replica_of(unit.rank)]
        device = placement.kind(alike.kinds[unit.pipeline])
        transfers.append(update(unit.times, unit.params, owners, device))
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
    parts = layout.tensor * (setup.data if setup.sharding else 1)
    sent_bytes = wire_bytes(job.schedule.gradients_travel_in)
    size_bytes = sent_bytes * model.vocab * model.hidden / parts
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


def _copies(placement: Placement, setup: Setup, units: Sequence[_Place], ports: _Ports) -> Work:
    """A unit's input to host memory or back, over the device's own link to it."""
    transfers: list[Transfer] = []
    links: list[int] = []
    for unit in units:
        alike = placement.classes[setup.replica_of(unit.rank)]
        tiers = {tier.name: tier for tier in placement.kind(alike.kinds[unit.pipeline]).tiers}
        host = tiers.get(HOST)
        transfers.append(Transfer(0.0, float(unit.boundary_bytes) if host else 0.0, 0.0))
        links.append(ports.host(unit.rank, host.bandwidth_bytes_per_s) if host else NO_LINK)
    return _work_of(transfers, links, [NO_LINK] * len(units))
