"""Random costs for any program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ratrain.program.kind import Kind
from ratrain.program.table import Table
from ratrain.simulate.costs import NO_LINK, Costs, Work, fixed_work

RECEIVES = (Kind.RECV_F, Kind.RECV_B)
_COMPUTE = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)


def random_costs(table: Table, seed: int, *, links: int = 3, interrupts: bool = True) -> Costs:
    """Every kind and unit its own times; a few links that everybody shares; some times zero."""
    rng = np.random.default_rng(seed)
    units = len(table.states.units.rank)

    def some(chance: float) -> np.ndarray:
        return rng.exponential(1.0, units) * (rng.random(units) < chance)

    work: dict[Kind, Work] = {}
    for kind in Kind:
        if kind.is_barrier or kind in RECEIVES:
            work[kind] = fixed_work(np.zeros(units))
        elif kind in _COMPUTE:
            work[kind] = fixed_work(some(0.9) * rng.choice([0.1, 1.0, 10.0]))
        else:
            linked = rng.random(units) < 0.8
            work[kind] = Work(
                fixed_s=some(0.5),
                volume_bytes=some(0.8) * linked,
                interrupt_s=some(0.3) * interrupts,
                link=np.where(linked, rng.integers(0, links, units), NO_LINK),
                peer_link=np.where(linked, rng.integers(-1, links, units), NO_LINK),
            )
    return Costs(work, rng.uniform(0.2, 2.0, links))


def plain_costs(table: Table, times_s: dict[Kind, float]) -> Costs:
    """The same time for every unit; kinds that are not named take none."""
    units = len(table.states.units.rank)
    return Costs(
        {kind: fixed_work(np.full(units, times_s.get(kind, 0.0))) for kind in Kind}, np.zeros(0)
    )


def with_work(costs: Costs, kind: Kind, work: Work) -> Costs:
    """The same costs with another work for one kind."""
    return replace(costs, work={**costs.work, kind: work})
