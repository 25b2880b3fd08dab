"""The simulator's costs for one run, from what its ranks measured of themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from statistics import fmean
from typing import Any

import numpy as np

from ratrain.program.actions import BARRIERS, Kind
from ratrain.program.program import Program
from ratrain.runtime.rank.calibration import Calibration, LinkTimes, UnitTimes
from ratrain.runtime.step.tensor_peers import sent_of_sum
from ratrain.runtime.step.tied import tie_work
from ratrain.simulate.costs import Costs, Floats, Work, fixed_work


def costs_of_run(program: Program, found: list[Calibration], element_bytes: int) -> Costs:
    """The simulator's costs, from all calibrations; ranks that a program folds are averaged."""
    table, setup = program.table, program.setup
    units = table.states.units
    ranks = setup.ranks
    of_rank = [[c for c in found if c.program_rank == rank] for rank in range(ranks)]
    place = [
        int(g) - int(np.flatnonzero(units.rank == units.rank[g])[0]) for g in range(len(units.rank))
    ]

    def column(read: Callable[[UnitTimes], float]) -> Floats:
        return np.array(
            [
                np.mean([read(c.units[place[g]]) for c in of_rank[int(units.rank[g])]])
                for g in range(len(units.rank))
            ],
            dtype=np.float64,
        )

    def link_mean(rank: int, read: Callable[[Calibration], LinkTimes | None]) -> LinkTimes:
        rows = [link for c in of_rank[rank] if (link := read(c)) is not None]
        if not rows:
            return LinkTimes(0.0, 1e12, 0.0, 0.0)
        columns = zip(*(astuple(row) for row in rows), strict=True)
        return LinkTimes(*(float(np.mean(column)) for column in columns))

    rate = np.ones(2 * ranks)
    for rank in range(ranks):
        rates = [
            link.rate_bytes_per_s
            for c in of_rank[rank]
            for link in (c.message, c.message_back, c.collective, c.tensor)
            if link is not None
        ]
        rate[2 * rank] = rate[2 * rank + 1] = max(rates, default=1e12)
    out, into = 2 * units.rank, 2 * units.rank + 1

    delay = [fmean(c.delay_s_per_cpu_s for c in of_rank[rank]) for rank in range(ranks)]
    delays = np.array([delay[int(rank)] for rank in units.rank])

    def driving(volume: Floats, links: list[LinkTimes]) -> Floats:
        """What compute loses to a transfer of that many bytes."""
        worked_s = np.array([one.driving_s for one in links])
        return delays * (worked_s + volume * np.array([one.driving_s_per_byte for one in links]))

    def over(volume: Floats, link: Callable[[int], LinkTimes], peer: Any) -> Work:
        links = [link(int(rank)) for rank in units.rank]
        fixed_s = np.array([one.fixed_s for one in links])
        return Work(fixed_s, volume, driving(volume, links), out.copy(), peer)

    def arriving(volume: Floats, read: Callable[[Calibration], LinkTimes | None]) -> Work:
        links = [link_mean(int(rank), read) for rank in units.rank]
        return replace(fixed_work(zero), interrupt_s=driving(volume, links))

    stage_rank = _stage_ranks(program)
    stage = units.stage_in_replica
    base = np.array(setup.first_rank)[units.replica]
    boundary = np.array(
        [
            setup.replicas[int(units.replica[g])].stages[int(stage[g])].output_bytes
            for g in range(len(stage))
        ],
        dtype=np.float64,
    )
    inputs = np.array(
        [
            setup.replicas[int(units.replica[g])].stages[int(stage[g])].units[0].input_bytes
            for g in range(len(stage))
        ],
        dtype=np.float64,
    )
    following = (
        2
        * (
            base
            + np.array(
                [stage_rank(int(r), int(s) + 1) for r, s in zip(units.replica, stage, strict=True)]
            )
        )
        + 1
    )
    previous = (
        2
        * (
            base
            + np.array(
                [stage_rank(int(r), int(s) - 1) for r, s in zip(units.replica, stage, strict=True)]
            )
        )
        + 1
    )
    data = setup.data
    part = column(lambda t: t.elements * element_bytes * (data - 1) / data)
    collective = {rank: link_mean(rank, lambda c: c.collective) for rank in range(ranks)}
    reduced = part * (1 if setup.sharding else 2)
    zero = np.zeros(len(units.rank))

    def ring(volume: Floats) -> Work:
        if data == 1:
            return fixed_work(zero)
        return over(volume, lambda rank: collective[rank], into.copy())

    def sums() -> Work:
        """A unit's last sum, of one boundary tensor; sums inside a unit are in its compute."""
        if setup.tensor == 1:
            return fixed_work(zero)
        volume = zero + inputs.max() * sent_of_sum(setup.tensor)
        return over(volume, lambda rank: link_mean(rank, lambda c: c.tensor), into.copy())

    update_s = column(lambda t: t.update_s)
    beside = np.minimum(1.0, delays)  # seconds of the optimizer, not of its processor time
    exchange_s = float(np.mean([c.exchange_s for c in found]))
    work: dict[Kind, Work] = {kind: fixed_work(zero) for kind in BARRIERS}
    work |= {
        Kind.F: fixed_work(column(lambda t: t.forward_s)),
        Kind.R: fixed_work(column(lambda t: t.recovery_s)),
        Kind.B: fixed_work(column(lambda t: t.backward_s)),
        Kind.I: fixed_work(column(lambda t: t.input_gradient_s)),
        Kind.W: fixed_work(column(lambda t: t.weight_gradient_s)),
        Kind.UpdateShard: replace(fixed_work(update_s), interrupt_s=update_s * beside),
        Kind.SEND_F: over(boundary, lambda r: link_mean(r, lambda c: c.message), following),
        Kind.SEND_B: over(inputs, lambda r: link_mean(r, lambda c: c.message_back), previous),
        Kind.RECV_F: arriving(inputs, lambda c: c.arrival),
        Kind.RECV_B: arriving(boundary, lambda c: c.arrival_back),
        Kind.GradSync: ring(reduced),
        Kind.PrefetchW: ring(part),
        Kind.Gather_F: ring(part),
        Kind.Gather_B: ring(part),
        Kind.AllReduce_F: sums(),
        Kind.AllReduce_B: sums(),
        Kind.AllReduce_R: fixed_work(zero),  # a recovered unit's output is not needed
        Kind.TieSync: tie_work(
            units,
            column(lambda t: t.elements * element_bytes / (data if setup.sharding else 1)),
            update_s,
            lambda sent, peer: over(
                sent, lambda r: link_mean(r, lambda c: c.message or c.message_back), peer
            ),
        ),
        Kind.ClipNorm: fixed_work(zero + 2 * exchange_s),
        Kind.Save: fixed_work(zero),
    }
    return Costs(work, rate)


def _stage_ranks(program: Program) -> Callable[[int, int], int]:
    """(replica, stage) -> its rank in the replica; 0 for a stage that does not exist."""
    replicas = program.setup.replicas

    def find(replica: int, stage: int) -> int:
        stages = replicas[replica].stages
        return stages[stage].rank if 0 <= stage < len(stages) else 0

    return find
