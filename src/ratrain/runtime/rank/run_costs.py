"""The simulator's costs for one run, from what its ranks measured of themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from statistics import fmean

import numpy as np

from ratrain.program.actions import BARRIERS, Kind
from ratrain.program.program import Program
from ratrain.program.setup import Stage
from ratrain.program.units import Ints
from ratrain.runtime.rank.calibration import Calibration, LinkTimes, UnitTimes
from ratrain.runtime.step.tensor_peers import sent_of_sum
from ratrain.runtime.step.tied import tie_work
from ratrain.simulate.costs import Costs, Floats, Work, fixed_work

ReadLink = Callable[[Calibration], LinkTimes | None]

_NO_LINK = LinkTimes(0.0, 1e12, 0.0, 0.0)


def costs_of_run(program: Program, found: list[Calibration], element_bytes: int) -> Costs:
    """The simulator's costs, from all calibrations; ranks that a program folds are averaged."""
    measured = _Measured(program, found)
    work = {kind: fixed_work(measured.zero) for kind in BARRIERS}
    work |= _compute(measured)
    work |= _messages(measured)
    work |= _sums(measured)
    work |= _states(measured, element_bytes)
    return Costs(work, measured.rates())


class _Measured:
    """All ranks' calibrations, read for each of a program's units."""

    def __init__(self, program: Program, found: list[Calibration]) -> None:
        self.setup, self.units = program.setup, program.table.states.units
        self.exchange_s = fmean(c.exchange_s for c in found)
        self._of_rank = [
            [c for c in found if c.program_rank == rank] for rank in range(self.setup.ranks)
        ]
        rank = self.units.rank
        self._place = [g - int(np.flatnonzero(rank == rank[g])[0]) for g in range(len(rank))]
        self.zero = np.zeros(len(rank))
        self.delay_s_per_cpu_s = self._each(lambda c, _: c.delay_s_per_cpu_s)

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

    def over(self, volume: Floats, read: ReadLink, into: Ints) -> Work:
        """Transfers of that many bytes from each unit's rank into those ports."""
        links = self._links(read)
        fixed_s = np.array([link.fixed_s for link in links])
        return Work(fixed_s, volume, self._driving(volume, links), 2 * self.units.rank, into)

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
        rows = [link for c in self._of_rank[rank] if (link := read(c)) is not None]
        if not rows:
            return _NO_LINK
        return LinkTimes(*map(fmean, zip(*map(astuple, rows), strict=True)))

    def rates(self) -> Floats:
        """Each port's: the fastest that its rank reached in anything."""
        found = np.ones(2 * self.setup.ranks)
        for rank, calibrations in enumerate(self._of_rank):
            rates = [
                link.rate_bytes_per_s
                for c in calibrations
                for link in (c.message, c.message_back, c.collective, c.tensor)
                if link is not None
            ]
            found[2 * rank : 2 * rank + 2] = max(rates, default=_NO_LINK.rate_bytes_per_s)
        return found

    def stages(self) -> list[Stage]:
        """Each unit's."""
        places = zip(self.units.replica.tolist(), self.units.stage_in_replica.tolist(), strict=True)
        return [self.setup.replicas[replica].stages[stage] for replica, stage in places]

    def port_of_stage(self, ahead: int) -> Ints:
        """The port into the rank that holds the stage so many ahead of each unit's; of one that
        does not exist, any."""
        found: list[int] = []
        for replica, stage in zip(
            self.units.replica.tolist(), self.units.stage_in_replica.tolist(), strict=True
        ):
            stages = self.setup.replicas[replica].stages
            other = stage + ahead
            rank = stages[other].rank if 0 <= other < len(stages) else 0
            found.append(2 * (self.setup.first_rank[replica] + rank) + 1)
        return np.array(found, dtype=np.int64)

    @property
    def own_port(self) -> Ints:
        """Into each unit's own rank."""
        return 2 * self.units.rank + 1


def _compute(measured: _Measured) -> dict[Kind, Work]:
    column = measured.column
    update_s = column(lambda t: t.update_s)
    # Seconds of the optimizer's, not of processors: it takes no more than itself from compute.
    beside = np.minimum(1.0, measured.delay_s_per_cpu_s)
    return {
        Kind.F: fixed_work(column(lambda t: t.forward_s)),
        Kind.R: fixed_work(column(lambda t: t.recovery_s)),
        Kind.B: fixed_work(column(lambda t: t.backward_s)),
        Kind.I: fixed_work(column(lambda t: t.input_gradient_s)),
        Kind.W: fixed_work(column(lambda t: t.weight_gradient_s)),
        Kind.UpdateShard: replace(fixed_work(update_s), interrupt_s=update_s * beside),
    }


def _messages(measured: _Measured) -> dict[Kind, Work]:
    """Between stages: activations forward, their gradients back."""
    stages = measured.stages()
    outputs = np.array([stage.output_bytes for stage in stages], dtype=np.float64)
    inputs = np.array([stage.units[0].input_bytes for stage in stages], dtype=np.float64)
    following, previous = measured.port_of_stage(+1), measured.port_of_stage(-1)
    return {
        Kind.SEND_F: measured.over(outputs, lambda c: c.message, following),
        Kind.SEND_B: measured.over(inputs, lambda c: c.message_back, previous),
        Kind.RECV_F: measured.arriving(inputs, lambda c: c.arrival),
        Kind.RECV_B: measured.arriving(outputs, lambda c: c.arrival_back),
    }


def _sums(measured: _Measured) -> dict[Kind, Work]:
    """A unit's last sum, of one boundary tensor; sums inside a unit are in its compute."""
    degree, nothing = measured.setup.tensor, fixed_work(measured.zero)
    last = nothing
    if degree > 1:
        boundary_bytes = max(stage.units[0].input_bytes for stage in measured.stages())
        volume = measured.zero + boundary_bytes * sent_of_sum(degree)
        last = measured.over(volume, lambda c: c.tensor, measured.own_port)
    # A recovered unit's output is not needed.
    return {Kind.AllReduce_F: last, Kind.AllReduce_B: last, Kind.AllReduce_R: nothing}


def _states(measured: _Measured, element_bytes: int) -> dict[Kind, Work]:
    """Gradients and views between replicas and between tied copies, clipping, saving."""
    data, sharding = measured.setup.data, measured.setup.sharding
    unit_bytes = measured.column(lambda t: t.elements) * element_bytes
    reduced = gathered = fixed_work(measured.zero)
    if data > 1:
        part = unit_bytes * (data - 1) / data
        gathered = measured.over(part, lambda c: c.collective, measured.own_port)
        both = part * (1 if sharding else 2)  # level 0 gathers what it has reduced
        reduced = measured.over(both, lambda c: c.collective, measured.own_port)
    tied = tie_work(
        measured.units,
        unit_bytes / (data if sharding else 1),
        measured.column(lambda t: t.update_s),
        lambda sent, into: measured.over(sent, lambda c: c.message or c.message_back, into),
    )
    return {
        Kind.GradSync: reduced,
        Kind.PrefetchW: gathered,
        Kind.Gather_F: gathered,
        Kind.Gather_B: gathered,
        Kind.TieSync: tied,
        Kind.ClipNorm: fixed_work(measured.zero + 2 * measured.exchange_s),
        Kind.Save: fixed_work(measured.zero),
    }
