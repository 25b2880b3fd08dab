"""The simulator's costs for one run, from what its ranks measured of themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from statistics import fmean

import numpy as np

from ratrain.program.between import average_rounds
from ratrain.program.kind import Cost, Kind
from ratrain.program.program import Program
from ratrain.program.replicas import Member
from ratrain.program.units import Ints
from ratrain.runtime.rank.calibration.measured import Calibration, LinkTimes, UnitTimes
from ratrain.runtime.step.exchange.tensor_peers import sent_of_sum
from ratrain.runtime.step.tied import tie_work
from ratrain.simulate.costs import Costs, Floats, Routes, Work, fixed_work

ReadLink = Callable[[Calibration], LinkTimes | None]


@dataclass(frozen=True)
class ElementBytes:
    """Of an element: as each program rank computes it (one figure: as all do), and as gradients and
    boundary tensors are sent."""

    computed: tuple[int, ...]
    gradient: int
    boundary: int
    summed: int = 4  # of a gradient as it adds up
    averaged: float = 12  # of a parameter, of replicas that average: its weight, perhaps states
    told: float = 12  # of such a mean, inside a site

    def of_ranks(self, ranks: Sequence[int]) -> ElementBytes:
        """The same for the ranks of a program in which each of these stands, in this order."""
        if len(self.computed) == 1:
            return self
        return replace(self, computed=tuple(self.computed[rank] for rank in ranks))


_NO_LINK = LinkTimes(0.0, 1e12, 0.0, 0.0)


def _mean_link(links: Iterable[LinkTimes | None]) -> LinkTimes:
    """The mean of those that were measured."""
    rows = [link for link in links if link is not None]
    return LinkTimes(*map(fmean, zip(*map(astuple, rows), strict=True))) if rows else _NO_LINK


def costs_of_run(
    program: Program,
    calibrations: list[Calibration],
    element_bytes: ElementBytes,
    *,
    agrees: bool = False,
) -> Costs:
    """The simulator's costs, from all calibrations; ranks that a program folds are averaged.
    `agrees`: owners of a unit agree after its reduction on whether it overflowed."""
    measured = _Measured(program, calibrations)
    # What a recovered unit hands on is not read: nothing is summed.
    priced: dict[str, Work] = dict.fromkeys(
        (Cost.NOTHING, Cost.RECOVERED_SUM, Cost.SAVE, Cost.COPY_WEIGHTS), fixed_work(measured.zero)
    )
    priced |= _compute(measured)
    priced |= _messages(measured, element_bytes)
    priced |= _sums(measured)
    priced |= _states(measured, element_bytes, agrees)
    # What no calibration measures takes no time: costs that custom modules declare.
    priced |= dict.fromkeys({kind.cost for kind in Kind} - {*Cost}, priced[Cost.NOTHING])
    work = {kind: priced[kind.cost] for kind in Kind}
    work |= {kind: measured.moves(kind) for kind in Kind if kind.moves}
    return Costs(work, measured.rates)


class _Measured:
    """All ranks' calibrations, read for each of a program's units."""

    def __init__(self, program: Program, calibrations: list[Calibration]) -> None:
        self.setup, self.units = program.setup, program.table.states.units
        self.exchange_s = fmean(c.exchange_s for c in calibrations)
        self._of_rank = [
            [c for c in calibrations if c.program_rank == rank] for rank in range(self.setup.ranks)
        ]
        rank = self.units.rank
        # Several stages of a rank have other ranks' units between them.
        self._place = [int((rank[:g] == rank[g]).sum()) for g in range(len(rank))]
        self.zero = np.zeros(len(rank))
        self.delay_s_per_cpu_s = self._each(lambda c, _: c.delay_s_per_cpu_s)
        self.between_s = self._each(lambda c, _: c.between_s)

    def column(self, read: Callable[[UnitTimes], float]) -> Floats:
        """A figure of each unit."""
        return self._each(lambda c, place: read(c.units[place]))

    def _each(self, read: Callable[[Calibration, int], float]) -> Floats:
        """For each unit the mean over those that play its rank."""
        values = [
            fmean(read(c, place) for c in self._of_rank[rank])
            for rank, place in zip(self.units.rank.tolist(), self._place, strict=True)
        ]
        return np.array(values, dtype=np.float64)

    def of_ranks(self, values: Sequence[int]) -> Ints:
        """For each unit the value of its rank."""
        return np.broadcast_to(np.array(values, dtype=np.int64), self.setup.ranks)[self.units.rank]

    def widest(self, values: Sequence[int]) -> Ints:
        """For each unit the largest value among the ranks that hold it: in a gather all wait for
        those that receive the most."""
        names = [unit.name for member in self.setup.members for unit in member.units]
        largest: dict[str, int] = {}
        for name, value in zip(names, self.of_ranks(values).tolist(), strict=True):
            largest[name] = max(value, largest.get(name, 0))
        return np.array([largest[name] for name in names], dtype=np.int64)

    def over(self, volume: Floats, read: ReadLink, into: Ints) -> Work:
        """Transfers of that many bytes from each unit's rank into those ports."""
        return self._over(volume, self._links(read), into)

    def collective(self, volume: Floats) -> Work:
        """Reductions, and gathers in one dtype, in which each unit's rank sends that many bytes."""
        links = [self._collectives[rank] for rank in self.units.rank.tolist()]
        return self._over(volume, links, self.own_port)

    def across(self, volume: Floats) -> Work:
        """The same of weights that sites average: of ranks that share units all, since an average
        ends with the slowest."""
        links = [_mean_link(c.across for c in sharing) for sharing in self._sharing]
        return self._over(volume, [links[r] for r in self.units.rank.tolist()], self.own_port)

    def gather(self, volume: Floats) -> Work:
        """Gathers of views in which each unit's rank would send that many bytes if all computed in
        the widest of its holders' dtypes."""
        links = [self._gathers[rank] for rank in self.units.rank.tolist()]
        return self._over(volume, links, self.own_port)

    def _over(self, volume: Floats, links: list[LinkTimes], into: Ints) -> Work:
        fixed_s = np.array([link.fixed_s for link in links])
        out = 2 * self.units.rank
        rate = np.array([link.rate_bytes_per_s for link in links])
        return Work(
            fixed_s, self._paced(volume, rate, out, into), self._driving(volume, links), out, into
        )

    def _paced(self, volume: Floats, rate: Floats, out: Ints, into: Ints) -> Floats:
        """The bytes that make a transfer between two ports, alone on both, as fast as its measured
        rate: a port has one rate, the fastest of all that were measured there."""
        return volume * np.minimum(self.rates[out], self.rates[into]) / rate

    def arriving(self, volume: Floats, read: ReadLink) -> Work:
        """What receiving takes from compute; its time is the sender's."""
        driving_s = self._driving(volume, self._links(read))
        return replace(fixed_work(self.zero), interrupt_s=driving_s)

    def _driving(self, volume: Floats, links: list[LinkTimes]) -> Floats:
        """What compute loses to a transfer of that many bytes."""
        worked_s = np.array([link.driving_s for link in links])
        worked_s += volume * np.array([link.driving_s_per_byte for link in links])
        return self.delay_s_per_cpu_s * worked_s

    def _links(self, read: ReadLink) -> list[LinkTimes]:
        """For each unit, its rank's link."""
        of_rank = [self._link(rank, read) for rank in range(self.setup.ranks)]
        return [of_rank[rank] for rank in self.units.rank.tolist()]

    def _link(self, rank: int, read: ReadLink) -> LinkTimes:
        return _mean_link(map(read, self._of_rank[rank]))

    @cached_property
    def _collectives(self) -> list[LinkTimes]:
        """For each rank the mean over those that share units with it: all of them end an exchange
        with its slowest rank, so each has measured the same."""
        return [_mean_link(c.collective for c in sharing) for sharing in self._sharing]

    @cached_property
    def _gathers(self) -> list[LinkTimes]:
        """The same of gathers of views; in one dtype they are as reductions."""
        return [_mean_link(c.gather or c.collective for c in sharing) for sharing in self._sharing]

    @cached_property
    def _sharing(self) -> list[list[Calibration]]:
        """For each rank the calibrations of those that share units with it, and its own."""
        held, ranks = self._names_held, range(self.setup.ranks)
        return [
            [c for other in ranks if held[other] & held[rank] for c in self._of_rank[other]]
            for rank in ranks
        ]

    @cached_property
    def _names_held(self) -> list[set[str]]:
        """For each rank the names of its units."""
        held = [set[str]() for _ in range(self.setup.ranks)]
        for first, replica in zip(self.setup.first_rank, self.setup.replicas, strict=True):
            for stage in replica.stages:
                for member in stage.members:
                    held[first + member.rank] |= {unit.name for unit in member.units}
        return held

    def _at_once(self, volume: Floats, read: ReadLink) -> Floats:
        """Of such a message of each unit's rank, the bytes that pass at once: those measured, or
        none where messages follow each other without a pause, since the link needs longer for one
        than the rank for a micro-batch."""
        links = self._links(read)
        at_once_bytes = np.array([link.at_once_bytes for link in links])
        rate = np.array([link.rate_bytes_per_s for link in links])
        computed_s = self.column(
            lambda t: t.forward_s + max(t.backward_s, t.input_gradient_s + t.weight_gradient_s)
        )
        of_rank_s = np.bincount(self.units.rank, computed_s, self.setup.ranks)[self.units.rank]
        return np.where(volume <= of_rank_s * rate, at_once_bytes, 0.0)

    @cached_property
    def rates(self) -> Floats:
        """Each port's: the fastest that its rank reached in anything."""
        port_rates = np.ones(3 * self.setup.ranks)  # out, into; then each rank's way to its tier
        for rank, calibrations in enumerate(self._of_rank):
            links = [
                link
                for c in calibrations
                for link in (c.message, c.message_back, c.tensor, c.across)
                if link is not None
            ]
            if any(c.collective is not None for c in calibrations):
                links += [self._collectives[rank], self._gathers[rank]]
            rates = [link.rate_bytes_per_s for link in links]
            port_rates[2 * rank : 2 * rank + 2] = max(rates, default=_NO_LINK.rate_bytes_per_s)
        return port_rates

    def moves(self, kind: Kind) -> Work:
        """States of a sort on their way to their tier, or back: what was measured alone takes
        longer where several are under way."""
        sort, away = kind.moves, kind.lane.moves == "away"
        way = 2 * self.setup.ranks + self.units.rank
        took_s, worked_s = (
            self.column(lambda times, of=of: of(times).get(sort, (0.0, 0.0))[away])
            for of in (lambda times: times.moves_s, lambda times: times.moves_cpu_s)
        )
        driving_s = self.delay_s_per_cpu_s * worked_s
        return replace(fixed_work(self.zero), volume_bytes=took_s, interrupt_s=driving_s, link=way)

    def members(self) -> list[Member]:
        """The member that holds each unit."""
        return [member for member in self.setup.members for _ in member.units]

    def sent_to_stage(self, volume: Floats, read: ReadLink, ahead: int) -> Work:
        """Transfers of that many bytes from each unit's rank to the members of the stage that many
        ahead of its own; of one that does not exist, to any. What passes at once after a pause uses
        no time of the link."""
        rows: list[tuple[int, Member | None]] = []
        for g, (replica, stage) in enumerate(
            zip(self.units.replica.tolist(), self.units.stage_in_replica.tolist(), strict=True)
        ):
            stages = self.setup.replicas[replica].stages
            beside = stage + ahead
            members = stages[beside].members if 0 <= beside < len(stages) else (None,)
            rows += [(g, member) for member in members]
        unit = np.array([g for g, _ in rows], dtype=np.int64)
        first_rank = np.array(self.setup.first_rank)[self.units.replica[unit]]
        receiver = first_rank + np.array([0 if m is None else m.rank for _, m in rows])
        links, out, into = self._links(read), 2 * self.units.rank[unit], 2 * receiver + 1
        rate = np.array([link.rate_bytes_per_s for link in links])
        passing = np.maximum(volume - self._at_once(volume, read), 0.0)
        return Work(
            np.array([link.fixed_s for link in links])[unit],
            self._paced(passing[unit], rate[unit], out, into),
            self._driving(volume, links)[unit],
            out,
            into,
            None if len(rows) == len(volume) else self._routes(rows, unit, receiver),
        )

    def _routes(self, rows: list[tuple[int, Member | None]], unit: Ints, receiver: Ints) -> Routes:
        """Which of these rows a micro-batch's message has."""
        most = max(replica.micro_batches for replica in self.setup.replicas)
        row = np.zeros((len(self.units.rank), most), dtype=np.int64)
        for number, (g, member) in enumerate(rows):
            served = None if member is None else member.serves
            row[g, slice(None) if served is None else list(served)] = number
        return Routes(row, unit, receiver)

    @property
    def beside(self) -> Floats:
        """What compute loses to a second of this rank's own work on another lane. These are seconds
        of that work, not of processors: it takes no more than itself."""
        return np.minimum(1.0, self.delay_s_per_cpu_s)

    @property
    def own_port(self) -> Ints:
        """Into each unit's own rank."""
        return 2 * self.units.rank + 1


def _compute(measured: _Measured) -> dict[Cost, Work]:
    """Ops of compute, each with what passes until the next, and updates."""
    update_s = measured.column(lambda t: t.update_s)

    def column(read: Callable[[UnitTimes], float]) -> Floats:
        return measured.column(read) + measured.between_s

    updated = replace(
        fixed_work(update_s),
        interrupt_s=measured.column(lambda t: t.update_cpu_s) * measured.delay_s_per_cpu_s,
    )
    return {
        Cost.FORWARD: fixed_work(column(lambda t: t.forward_s)),
        Cost.RECOVERY: fixed_work(column(lambda t: t.recovery_s)),
        Cost.BACKWARD: fixed_work(column(lambda t: t.backward_s)),
        Cost.INPUT_GRADIENT: fixed_work(column(lambda t: t.input_gradient_s)),
        Cost.WEIGHT_GRADIENT: fixed_work(column(lambda t: t.weight_gradient_s)),
        Cost.UPDATE: updated,
        Cost.MIRROR_UPDATE: updated,
    }


def _messages(measured: _Measured, element_bytes: ElementBytes) -> dict[Cost, Work]:
    """Between stages: activations forward, their gradients back."""
    members = measured.members()
    sent = element_bytes.boundary / measured.of_ranks(element_bytes.computed)
    outputs = sent * np.array([member.output_bytes for member in members], dtype=np.float64)
    inputs = sent * np.array([member.units[0].input_bytes for member in members], dtype=np.float64)
    units = measured.units
    outputs /= units.output_parts[units.last_of_part]
    inputs /= units.input_parts[units.first_of_part]
    return {
        Cost.SEND_OUTPUT: measured.sent_to_stage(outputs, lambda c: c.message, +1),
        Cost.SEND_GRADIENT: measured.sent_to_stage(inputs, lambda c: c.message_back, -1),
        Cost.RECEIVE_INPUT: measured.arriving(inputs, lambda c: c.arrival),
        Cost.RECEIVE_GRADIENT: measured.arriving(outputs, lambda c: c.arrival_back),
    }


def _sums(measured: _Measured) -> dict[Cost, Work]:
    """A unit's last sum, of one boundary tensor; sums inside a unit are in its compute."""
    setup = measured.setup
    if setup.tensor == 1:
        return {Cost.TENSOR_SUM: fixed_work(measured.zero)}
    divided = setup.sequence_parallel
    boundary_bytes = measured.units.joined * max(
        unit.input_bytes * (member.tensor if divided else 1) // member.joined
        for member in measured.members()
        for unit in member.units
    )
    degrees = measured.units.tensor.tolist()
    sent = [sent_of_sum(degree, divides_rows=divided) for degree in degrees]
    volume = boundary_bytes * np.array(sent, dtype=np.float64)
    return {Cost.TENSOR_SUM: measured.over(volume, lambda c: c.tensor, measured.own_port)}


def _buckets(measured: _Measured) -> Floats | None:
    """Into how many buckets each unit's gradient goes, which are as many on all ranks that hold it;
    None: gradients leave whole."""
    setup = measured.setup
    if not setup.backward_sends or setup.bucket_bytes is None:
        return None
    units = [unit for member in setup.members for unit in member.units]
    widest: dict[str, int] = {}
    for unit in units:
        widest[unit.name] = max(unit.gradient_bytes, widest.get(unit.name, 0))
    sizes = [widest[unit.name] for unit in units]
    return np.ceil(np.array(sizes, dtype=np.float64) / setup.bucket_bytes)


def _states(measured: _Measured, element_bytes: ElementBytes, agrees: bool) -> dict[Cost, Work]:
    """Gradients and views between replicas and between tied copies, clipping, saving."""
    units, sharding = measured.units, measured.setup.sharding
    sites = measured.setup.sites if measured.setup.averages else ()
    holders = units.peers if sites else units.holders
    elements = measured.column(lambda t: t.elements)
    gradient_bytes = elements * element_bytes.gradient
    reduced = gathered = averaged = mirrored = fixed_work(measured.zero)
    averaging_s = measured.column(lambda t: t.averaging_s)
    if holders.max() > 1:
        others = (holders - 1) / holders
        gathered_elements = measured.column(lambda t: t.gathered_elements)
        gathered_bytes = gathered_elements * measured.widest(element_bytes.computed) * others
        gathered = measured.gather(gathered_bytes)
        # Level 0 gathers what it has reduced.
        buckets = _buckets(measured)
        # What goes in buckets is gathered too, and so is what level 0 reduces.
        reduced_bytes = gradient_bytes * others * (1 if sharding and buckets is None else 2)
        reduced = measured.collective(reduced_bytes)
        if buckets is not None:
            reduced = replace(reduced, fixed_s=reduced.fixed_s * 2 * buckets)
        mirrored = measured.collective(elements * element_bytes.summed / holders)
        averaged = measured.collective(2 * element_bytes.averaged * elements * others)
        narrowing_s = measured.column(lambda t: t.narrowing_s)
        reduced = replace(
            reduced,
            fixed_s=reduced.fixed_s + narrowing_s + agrees * measured.exchange_s,
            interrupt_s=reduced.interrupt_s + narrowing_s * measured.beside,
        )
    if len(sites) > 1:
        mine = element_bytes.averaged * elements / holders
        averaged = measured.across(2 * mine * (len(sites) - 1) / len(sites))
        averaged = replace(averaged, fixed_s=averaged.fixed_s * average_rounds(measured.setup))
        if holders.max() > 1 and not sharding:  # by the others of its site
            told_bytes = element_bytes.told * elements * (holders - 1) / holders
            told = measured.collective(told_bytes)
            told_s = told.fixed_s + told.volume_bytes / measured.rates[told.link]
            averaged = replace(averaged, fixed_s=averaged.fixed_s + told_s)
    averaged = replace(
        averaged,
        fixed_s=averaged.fixed_s + averaging_s,
        interrupt_s=averaged.interrupt_s + averaging_s * measured.beside,
    )
    tied = tie_work(
        measured.units,
        gradient_bytes / (holders if sharding else 1),
        measured.column(lambda t: t.update_s),
        lambda size_bytes, into: measured.over(
            size_bytes, lambda c: c.message or c.message_back, into
        ),
    )
    return {
        Cost.REDUCE: reduced,
        Cost.GATHER: gathered,
        Cost.MIRROR: mirrored,
        Cost.AVERAGE: averaged,
        Cost.TIE: tied,
        Cost.NORM: fixed_work(measured.zero + measured.exchange_s),
    }
