"""The costs of units in their places: all that they depend on, each kind of op on each unit, and
the links they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ratrain.cost.blocks import BlockKind
from ratrain.cost.collectives import (
    NOTHING,
    Transfer,
    gather_loss,
    message_loss,
    reduction_loss,
    tree_all_reduce,
)
from ratrain.cost.compute import BlockTimes, as_integers, update
from ratrain.cost.precision import RESIDUAL_BYTES, precision_of
from ratrain.describe.cluster import Link
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.errors import ProgramError
from ratrain.plan.layout.links import Half
from ratrain.plan.layout.tiers import move_rate_bytes_per_s
from ratrain.plan.layout.times import sums_of_op
from ratrain.plan.price.reductions import reduction, tied_sum
from ratrain.program.between import average_rounds
from ratrain.program.kind import Cost, Kind
from ratrain.program.replicas import Unit
from ratrain.program.setup import Setup
from ratrain.program.tiers import DISK, HOST, WAITING
from ratrain.simulate.costs import NO_LINK, Costs, Floats, Routes, Work, fixed_work


@dataclass(frozen=True)
class StageMessage:
    """A tensor for a member of a neighbouring stage: to which program rank, over which link, what
    it sends. `serves`: the micro-batches that go there; None: all."""

    rank: int
    link: Link
    sent: Transfer
    serves: tuple[int, ...] | None = None


@dataclass(frozen=True)
class OtherEnd:
    """The rank that holds the other copy of a tied matrix, and the link to it. `tensor`: the
    smaller degree of both ends, which share the matrix among so many."""

    rank: int
    link: Link
    tensor: int


@dataclass(frozen=True)
class DataGroup:
    """The ranks that hold a unit: what their collectives take of one of them, over which link, and
    by which algorithm, for the same figures as `half`."""

    half: Half
    link: Link
    chosen: Callable[[float, float], str]


@dataclass(frozen=True)
class UnitPlace:
    """A unit in its place."""

    rank: int  # of the program
    kind: BlockKind
    device: DeviceKind
    layout: LayoutSpec  # with its own tensor degree
    times: BlockTimes
    params: float  # on one rank of a tensor group
    view_bytes: float  # its weights there
    reduced_bytes: float  # its gradient there, as reductions send it
    boundary_bytes: int
    previous: tuple[StageMessage, ...]  # to members of the stage before, if elsewhere
    following: tuple[StageMessage, ...]
    sums_link: Link | None  # of its tensor group; None: it is alone
    group: DataGroup | None  # that adds up its gradient; None: no other rank does
    across: DataGroup | None  # that averages its weights, where ranks update it apart
    other_end: OtherEnd | None  # of a tied matrix, where it is on another rank
    holders: int  # ranks that add up its gradient, this one among them


COPY_BYTES = 4  # of a parameter's weight
NORM_BYTES = 8  # of the global norm: one number, and whether any gradient overflowed


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

    def memory(self, unit: UnitPlace) -> int:
        return self.tier(unit.rank, "memory", unit.device.memory.bandwidth_bytes_per_s)

    def tier(self, rank: int, name: str, rate_bytes_per_s: float) -> int:
        return self._named((rank, name, None), rate_bytes_per_s)

    def _named(self, key: tuple[int, str, Link | None], rate_bytes_per_s: float) -> int:
        if key not in self._number:
            self._number[key] = len(self._rate)
            self._rate.append(rate_bytes_per_s)
        return self._number[key]


Seconds = Callable[[Unit, DeviceKind], float]
"""How long an op about a unit takes on a device of some kind."""
OWN_COSTS: dict[str, Seconds] = {}


def declare_cost(name: str, seconds: Seconds) -> None:
    """Makes a cost known by the name that kinds of op give it."""
    if name in {*Cost, *OWN_COSTS}:
        raise ProgramError(f"the cost {name} is declared twice", fix="choose another name")
    OWN_COSTS[name] = seconds


def costs_of_places(
    job: JobSpec, setup: Setup, units: Sequence[UnitPlace], farthest: Link | None
) -> Costs:
    """The `Costs` of a setup whose units stand in these places, in the order of its members.
    `farthest`: the used link of the longest latency; None where one device uses none."""
    ports = _Ports()
    zero = fixed_work(np.zeros(len(units), dtype=np.float64))
    priced: dict[str, Work] = {
        Cost.NOTHING: zero,
        Cost.RECEIVE_INPUT: _receives(units, lambda unit: unit.previous),
        Cost.RECEIVE_GRADIENT: _receives(units, lambda unit: unit.following),
        Cost.SEND_OUTPUT: _sends(setup, units, ports, lambda unit: unit.following),
        Cost.SEND_GRADIENT: _sends(setup, units, ports, lambda unit: unit.previous),
    }
    priced |= _computed(units)
    for cost, transfer in _collectives(job, setup).items():
        link_of = _sums_link if cost is Cost.TENSOR_SUM else _group_link
        priced[cost] = _group_work(units, ports, transfer, link_of)
    priced[Cost.AVERAGE] = _averages(job, setup, units, ports)
    priced[Cost.UPDATE] = _updates(setup, units, ports)
    priced[Cost.MIRROR] = _group_work(units, ports, _mirrored(job, setup), _group_link)
    priced[Cost.MIRROR_UPDATE] = priced[Cost.UPDATE]
    priced[Cost.NORM] = _norms(farthest, setup, units)
    # Steps that save nothing are simulated, unless every one does.
    saving = _saves(job, setup, units, ports)
    priced[Cost.COPY_WEIGHTS] = _copied_weights(units, ports)
    priced[Cost.SAVE] = saving if job.checkpoint.every == 1 else zero
    moves = {sort: _moves(job, sort, setup, units, ports) for sort in _MOVED}
    sums = Cost.NOTHING if job.backend.sums_in_compute else Cost.TENSOR_SUM
    priced[Cost.RECOVERED_SUM] = priced[sums]  # of compute's: what recovery hands on is not read
    if setup.tied:
        priced[Cost.TIE] = _ties(job, setup, units, ports)
    for name, seconds in OWN_COSTS.items():
        priced[name] = _declared(seconds, setup, units)
    work = {k: priced[k.cost] for k in Kind if k.cost in priced}
    work |= {k: moves[k.moves] for k in Kind if k.moves}
    return Costs(work, ports.rate)


_COMPUTE: dict[Cost, Callable[[BlockTimes], float]] = {
    Cost.FORWARD: lambda times: times.forward_s,
    Cost.RECOVERY: lambda times: times.forward_s,
    Cost.BACKWARD: lambda times: times.backward_s,
    Cost.INPUT_GRADIENT: lambda times: times.input_gradient_s,
    Cost.WEIGHT_GRADIENT: lambda times: times.later_s,
}


def _computed(units: Sequence[UnitPlace]) -> dict[str, Work]:
    return {
        cost: fixed_work(np.array([time_s(unit.times) for unit in units]))
        for cost, time_s in _COMPUTE.items()
    }


def costs_of_compute(units: Sequence[UnitPlace]) -> Costs:
    """The same of compute alone."""
    priced = _computed(units)
    return Costs({k: priced[k.cost] for k in Kind if k.cost in priced}, _Ports().rate)


def _declared(seconds: Seconds, setup: Setup, places: Sequence[UnitPlace]) -> Work:
    """The work of a cost that is declared as seconds of each unit on its device."""
    pairs = zip(_described(setup), places, strict=True)
    return fixed_work(np.array([seconds(unit, place.device) for unit, place in pairs]))


def _described(setup: Setup) -> Iterator[Unit]:
    """Every unit of every member."""
    return (unit for member in setup.members for unit in member.units)


Priced = tuple[Transfer, int, int]
"""What is sent, through which port, and into which port of the other end."""
UNSENT: Priced = NOTHING, NO_LINK, NO_LINK


def _of_each(price: Callable[[UnitPlace], Priced], units: Sequence[UnitPlace]) -> Work:
    """Layers of a stage that stand in one place are priced once."""
    known = {id(unit): unit for unit in units}
    prices = {name: price(unit) for name, unit in known.items()}
    return _work_of(prices[id(unit)] for unit in units)


def _work_of(rows: Iterable[Priced]) -> Work:
    transfers, links, peers = zip(*rows, strict=True)
    return Work(
        fixed_s=np.array([t.latency_s for t in transfers]),
        volume_bytes=np.array([t.volume_bytes for t in transfers]),
        interrupt_s=np.array([t.driving_s for t in transfers]),
        link=np.array(links, dtype=np.int64),
        peer_link=np.array(peers, dtype=np.int64),
    )


def _sends(
    setup: Setup,
    units: Sequence[UnitPlace],
    ports: _Ports,
    other: Callable[[UnitPlace], tuple[StageMessage, ...]],
) -> Work:
    """Messages to a neighbouring stage: a row for each unit, or for each member it sends to."""
    rows = [(g, sent) for g, unit in enumerate(units) for sent in other(unit) or (None,)]

    def priced(unit: UnitPlace, to: StageMessage) -> Priced:
        sent = message_loss(unit.device).driven(to.sent)
        return sent, ports.out(unit.rank, to.link), ports.into(to.rank, to.link)

    work = _work_of(UNSENT if to is None else priced(units[g], to) for g, to in rows)
    return work if len(rows) == len(units) else replace(work, routes=_routes(setup, rows))


def _receives(
    units: Sequence[UnitPlace], other: Callable[[UnitPlace], tuple[StageMessage, ...]]
) -> Work:
    """What receiving from a neighbouring stage takes from compute. It lasts as long as its send,
    and is as long as what is sent there."""
    taken_s = [
        max((message_loss(unit.device).of(there.sent) for there in other(unit)), default=0.0)
        for unit in units
    ]
    return replace(fixed_work(np.zeros(len(units))), interrupt_s=np.array(taken_s))


def _routes(setup: Setup, rows: Sequence[tuple[int, StageMessage | None]]) -> Routes:
    """Which of these rows, each of a unit, a micro-batch's message has."""
    most = max(replica.micro_batches for replica in setup.replicas)
    row = np.zeros((1 + rows[-1][0], most), dtype=np.int64)
    for number, (g, sent) in enumerate(rows):
        served = sent.serves if sent is not None else None
        row[g, slice(None) if served is None else list(served)] = number
    receivers = [sent.rank if sent is not None else -1 for _, sent in rows]
    return Routes(row, np.array([g for g, _ in rows]), np.array(receivers))


def _collectives(job: JobSpec, setup: Setup) -> dict[Cost, Callable[[UnitPlace, Link], Transfer]]:
    """The transfer of each sort of collective for one unit."""

    def gather(unit: UnitPlace, _link: Link) -> Transfer:
        return gather_loss(unit.device).driven(_half_of(unit)(unit.view_bytes))

    def reduced(unit: UnitPlace, _link: Link) -> Transfer:
        owners = unit.holders if setup.sharding else None
        sent = reduction(
            job, _half_of(unit), unit.params, unit.reduced_bytes, unit.device, owners=owners
        )
        return reduction_loss(unit.device).driven(sent)

    def sums(unit: UnitPlace, link: Link) -> Transfer:
        if unit.times.sums_inside:
            return NOTHING
        sent = sums_of_op(job, unit.kind, unit.boundary_bytes, unit.layout, link)
        return reduction_loss(unit.device).driven(sent)

    return {
        Cost.REDUCE: reduced,
        Cost.GATHER: gather,
        Cost.TENSOR_SUM: sums,
    }


def _half_of(unit: UnitPlace) -> Half:
    assert unit.group is not None  # else there is no link, and nothing is asked for
    return unit.group.half


def _group_work(
    units: Sequence[UnitPlace],
    ports: _Ports,
    transfer: Callable[[UnitPlace, Link], Transfer],
    link_of: Callable[[UnitPlace], Link | None],
) -> Work:
    """In a collective a rank receives as much as it sends: it uses both of its ports."""

    def priced(unit: UnitPlace) -> Priced:
        link = link_of(unit)
        if not link:
            return UNSENT
        return transfer(unit, link), ports.out(unit.rank, link), ports.into(unit.rank, link)

    return _of_each(priced, units)


def _sums_link(unit: UnitPlace) -> Link | None:
    return unit.sums_link


def _group_link(unit: UnitPlace) -> Link | None:
    return unit.group.link if unit.group else None


def _averages(job: JobSpec, setup: Setup, units: Sequence[UnitPlace], ports: _Ports) -> Work:
    """The mean of weights over all that hold a unit; or over sites, where each owner sends its part
    alone, and tells it the others of its site where all of them update the whole unit."""

    form = job.averages_form

    def average(unit: UnitPlace, _link: Link) -> Transfer:
        if unit.across is None:
            sent, params = _half_of(unit)(job.averaged_bytes * unit.params).times(2), unit.params
        else:
            params = unit.params / unit.holders
            sent = unit.across.half(job.averaged_bytes * params).times(2)
            sent = replace(sent, latency_s=sent.latency_s * average_rounds(setup))
        if unit.across is not None and unit.group is not None and not setup.sharding:
            told = unit.group.half(form.told_bytes_per_param * unit.params)
            told_s = told.alone_s(unit.group.link.bandwidth_bytes_per_s)
            sent = replace(sent, latency_s=sent.latency_s + told_s)
        sent = reduction_loss(unit.device).driven(sent)
        if not form.has_scales:
            return sent
        ranks = unit.holders if unit.across is None else len(job.sites)
        return sent.plus(as_integers(params, ranks, unit.device))

    def link_of(unit: UnitPlace) -> Link | None:
        return unit.across.link if unit.across else _group_link(unit)

    return _group_work(units, ports, average, link_of)


def _updates(setup: Setup, units: Sequence[UnitPlace], ports: _Ports) -> Work:
    """The optimizer on a rank's share of the parameters, which may take its time from compute."""

    def updated(unit: UnitPlace) -> Priced:
        device = unit.device
        alone = update(unit.times, unit.params, _owners(setup, unit), device)
        time_s = alone.alone_s(device.memory.bandwidth_bytes_per_s)
        taken_s = device.driving.lost_beside * time_s
        return replace(alone, driving_s=taken_s), ports.memory(unit), NO_LINK

    return _of_each(updated, units)


def _mirrored(job: JobSpec, setup: Setup) -> Callable[[UnitPlace, Link], Transfer]:
    """An owner's part of a gradient as it has added up, to its buddy. What the buddy's update takes
    is priced as the owner's: on a CPU, of which both are, the memory is the same."""

    schedule = job.schedule
    each_bytes = precision_of(schedule.dtype, schedule.gradient_dtype).gradient_bytes

    def sent(unit: UnitPlace, link: Link) -> Transfer:
        size_bytes = each_bytes * unit.params / _owners(setup, unit)
        return reduction_loss(unit.device).driven(
            Transfer(link.latency_s, size_bytes, 0.0, 1.0, size_bytes)
        )

    return sent


def _owners(setup: Setup, unit: UnitPlace) -> int:
    """Into how many parts a unit's states are divided."""
    return unit.holders if setup.sharding else 1


def _norms(farthest: Link | None, setup: Setup, units: Sequence[UnitPlace]) -> Work:
    """The global norm: a few bytes from every device to every other, over the farthest link. What
    the squares of the gradients take to add up is not counted."""
    if farthest is None:
        return fixed_work(np.zeros(len(units)))
    transfer = tree_all_reduce(NORM_BYTES, setup.devices, farthest)
    fixed_s = transfer.alone_s(farthest.bandwidth_bytes_per_s)
    taken_s = [gather_loss(unit.device).driven(transfer).driving_s for unit in units]
    return replace(fixed_work(np.full(len(units), fixed_s)), interrupt_s=np.array(taken_s))


def _ties(job: JobSpec, setup: Setup, units: Sequence[UnitPlace], ports: _Ports) -> Work:
    """The sum of a tied matrix' gradients: see `tied_sum`."""

    def tie(unit: UnitPlace) -> Priced:
        end, device = unit.other_end, unit.device
        parts = (end.tensor if end else unit.layout.tensor) * _owners(setup, unit)
        if unit.layout.pipeline == 1:
            return tied_sum(job, device, parts, None), ports.memory(unit), NO_LINK
        if end is None:
            return UNSENT
        sent = tied_sum(job, device, parts, end.link)
        return sent, ports.out(unit.rank, end.link), ports.into(end.rank, end.link)

    return _of_each(tie, units)


def _saves(job: JobSpec, setup: Setup, units: Sequence[UnitPlace], ports: _Ports) -> Work:
    """A checkpoint: the master weights and states that a rank owns, and all of its residuals,
    through its disk (the tier of that name; nothing where the device has none), but for what lies
    there in files that it takes. Where every replica has all of them, one writes all. Not
    modelled: checksums."""

    def saved(unit: Unit, place: UnitPlace) -> Priced:
        disk = next((tier for tier in place.device.tiers if tier.name == DISK), None)
        if disk is None:
            return UNSENT
        residual_bytes = RESIDUAL_BYTES if setup.error_feedback and place.group else 0
        of_owned = job.train.rule.saved_bytes * place.params / _owners(setup, place)
        saved_bytes = of_owned + residual_bytes * place.params
        if disk.path is None and _is_given(job, setup, place):
            saved_bytes = max(0.0, saved_bytes - _owned_optimizer(setup, unit, place))
        port = ports.tier(place.rank, DISK, disk.bandwidth_bytes_per_s)
        return Transfer(0.0, saved_bytes, 0.0), port, NO_LINK

    return _work_of(map(saved, _described(setup), units))


def _is_given(job: JobSpec, setup: Setup, unit: UnitPlace) -> bool:
    """Whether a checkpoint takes the files of a unit's states, as `runtime/rank/given_files` says:
    of a tier in the run's own folder, kept as fp32 numbers, and all for this rank to save."""
    kept = job.train.rule.states
    plain = all(state.bytes_per_element == 4 and state.bytes_of is None for state in kept)
    alone = bool(setup.sharding) or unit.holders == 1
    return job.optimizer_tier == DISK and plain and alone


def _copied_weights(units: Sequence[UnitPlace], ports: _Ports) -> Work:
    """A copy of a unit's weights, read and written once."""

    def copied(unit: UnitPlace) -> Priced:
        return Transfer(0.0, 2.0 * COPY_BYTES * unit.params, 0.0), ports.memory(unit), NO_LINK

    return _of_each(copied, units)


Moved = Callable[[Setup, Unit, UnitPlace], float]
"""What of a unit goes to a tier at once, in bytes."""


def _owned_optimizer(setup: Setup, unit: Unit, place: UnitPlace) -> float:
    return unit.optimizer_bytes / _owners(setup, place)


def _kept_view(setup: Setup, unit: Unit, place: UnitPlace) -> float:
    per_use = setup.gathers_per_use and setup.is_shared(unit.name)
    return unit.view_bytes / (_owners(setup, place) if per_use else 1)


_MOVED: dict[str, Moved] = {
    "optimizer": _owned_optimizer,
    "view": _kept_view,
    "gradient": lambda _setup, unit, _place: unit.gradient_bytes,
    "saved": lambda _setup, unit, _place: unit.saved_bytes,
    "input": lambda _setup, unit, _place: unit.input_bytes,
}
"""Of each sort of states that may wait elsewhere (`tiers.WAITING`)."""


def _moves(
    job: JobSpec, sort: str, setup: Setup, units: Sequence[UnitPlace], ports: _Ports
) -> Work:
    """What of each unit goes to the tier in which it waits, or back, over the device's own link to
    it; it takes no time where none is described."""
    tier, moved = getattr(job, WAITING[sort].setting) or HOST, _MOVED[sort]

    def priced(unit: Unit, place: UnitPlace) -> Priced:
        rate = move_rate_bytes_per_s(place.device, tier)
        if not rate:
            return UNSENT
        port = ports.tier(place.rank, DISK if tier == DISK else HOST, rate)
        return Transfer(0.0, float(moved(setup, unit, place)), 0.0), port, NO_LINK

    return _work_of(map(priced, _described(setup), units))
