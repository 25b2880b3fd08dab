"""A program's costs as if devices or links were faster: what would help is found by trying it.

The program stays as it is, its schedule too: only ops get faster. What another plan would make of
better devices is a search's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import numpy as np

from ratrain.program.kind import Kind, Lane
from ratrain.program.setup import Setup
from ratrain.program.units import Bools
from ratrain.simulate.costs import Costs, Work


def computing_faster(costs: Costs, setup: Setup, ranks: Collection[int], times: float) -> Costs:
    """Forward, backward and recovery of these ranks `times` times as fast."""
    of_kind = _own(setup, ranks)
    lanes = {Lane.COMPUTE: of_kind}
    return _changed(costs, lanes, lambda work, units: _fixed(work, units, times))


def sending_faster(costs: Costs, setup: Setup, ranks: Collection[int], times: float) -> Costs:
    """Every message and every collective that these ranks take part in `times` times as fast."""
    of_kind, shared = _own(setup, ranks), _shared(setup, ranks)
    lanes = {
        Lane.SEND_F: of_kind | _beside(setup, ranks, 1),
        Lane.SEND_B: of_kind | _beside(setup, ranks, -1),
        Lane.TENSOR: of_kind,
        **{kind.lane: shared for kind in Kind if kind.is_collective},
    }

    def faster(work: Work, units: Bools) -> Work:
        if work.routes is not None:
            to_ranks = np.isin(work.routes.receiver, list(ranks))
            units = of_kind[work.routes.unit] | to_ranks
        return _moved(work, units, times)

    return _changed(costs, lanes, faster)


Change = Callable[[Work, Bools], Work]


def _changed(costs: Costs, lanes: Mapping[Lane, Bools], change: Change) -> Costs:
    """The costs with the work of some lanes changed, on some units."""
    work = {
        kind: change(cost, lanes[kind.lane]) if kind.lane in lanes else cost
        for kind, cost in costs.work.items()
    }
    return replace(costs, work=work)


def _fixed(work: Work, units: Bools, times: float) -> Work:
    return replace(work, fixed_s=np.where(units, work.fixed_s / times, work.fixed_s))


def _moved(work: Work, units: Bools, times: float) -> Work:
    """Latency, bytes and driving cores alike."""
    return replace(
        work,
        fixed_s=np.where(units, work.fixed_s / times, work.fixed_s),
        volume_bytes=np.where(units, work.volume_bytes / times, work.volume_bytes),
        interrupt_s=np.where(units, work.interrupt_s / times, work.interrupt_s),
    )


def _own(setup: Setup, ranks: Collection[int]) -> Bools:
    """Units that these ranks hold, in the order of the setup's members."""
    return _beside(setup, ranks, 0)


def _beside(setup: Setup, ranks: Collection[int], step: int) -> Bools:
    """Units whose stage, or with `step` the stage after or before it, is on one of the ranks."""
    chosen: list[bool] = []
    for first, replica in zip(setup.first_rank, setup.replicas, strict=True):
        for number, stage in enumerate(replica.stages):
            beside = number + step
            held = replica.stages[beside].members if 0 <= beside < len(replica.stages) else ()
            there = any(first + member.rank in ranks for member in held)
            for member in stage.members:
                here = first + member.rank in ranks if step == 0 else there
                chosen += [here] * len(member.units)
    return np.array(chosen, dtype=bool)


def _shared(setup: Setup, ranks: Collection[int]) -> Bools:
    """Units, wherever they are held, that one of the ranks holds too."""
    names = [unit.name for member in setup.members for unit in member.units]
    held = {name for name, is_held in zip(names, _own(setup, ranks), strict=True) if is_held}
    return np.array([name in held for name in names], dtype=bool)
