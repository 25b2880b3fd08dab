"""The most memory that a program can need, whatever the timing of its lanes.

A rank's compute ops happen in order. Between them lie waits. A state of another lane's op can
exist from the first wait after which the op can start to the last wait before which it must have
ended (`walk.Drift`); a state is counted wherever it can exist. The sum, at its largest, is a bound
that no timing exceeds, so a run inside it never waits for memory.

Not modelled: scratch memory inside one op, and what the allocator adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ratrain.program.actions import Lane
from ratrain.program.binding import FREE, WRITE
from ratrain.program.units import Ints
from ratrain.program.walk import STEPS, drift

if TYPE_CHECKING:
    from ratrain.program.table import Table


@dataclass(frozen=True)
class PeakBound:
    """A rank's bound: bytes by family of state at the worst moment, and the op at that moment."""

    rank: int
    total_bytes: int
    by_family: dict[str, int]
    op: int  # the compute op running, or waited for, at the worst moment


def peak_bounds(table: Table, order: Ints, *, compiled: bool = True) -> tuple[PeakBound, ...]:
    """The `PeakBound` of every rank. `order` is a complete walk of the program."""
    return tuple(_peak_of_rank(table, order, rank, compiled) for rank in range(table.setup.ranks))


def _peak_of_rank(table: Table, order: Ints, rank: int, compiled: bool) -> PeakBound:
    states, n = table.states, len(table)
    lane = np.flatnonzero((table.rank == rank) & (table.lane == Lane.COMPUTE))
    moved = drift(table, order, rank, compiled=compiled)
    place = np.full(n, -1, dtype=np.int64)
    place[lane] = np.arange(len(lane))
    length = len(lane)

    # Moment 2p is the wait before compute op p, moment 2p + 1 its run.
    def moments(op: Ints, step: int, bound: Ints, running: int) -> Ints:
        own = 2 * (place[op] + step * length) + 1
        return np.where(place[op] >= 0, own, 2 * bound[op + step * n].astype(np.int64) + running)

    born, first_write, freed, last_free = _lifetimes(table, rank)
    keep = np.isin(born, freed)
    state = born[keep]
    writer = first_write[keep]
    freer = last_free[np.searchsorted(freed, state)]
    changes = np.zeros((len(states.families), 2 * length * STEPS + 2), dtype=np.int64)
    for step in range(STEPS):
        start = moments(writer, step, moved.early, 0)
        stop = moments(freer, step, moved.late, 0) + 1
        np.add.at(changes, (states.family[state], start), states.size_bytes[state])
        np.add.at(changes, (states.family[state], stop), -states.size_bytes[state])
    standing = states.persistent & (states.rank == rank)
    for family in range(len(states.families)):
        changes[family, 0] += states.size_bytes[standing & (states.family == family)].sum()
    curve = np.cumsum(changes, axis=1)[:, : 2 * length * STEPS + 1]
    total = curve.sum(axis=0)
    worst = int(total.argmax())
    return PeakBound(
        rank=rank,
        total_bytes=int(total[worst]),
        by_family={
            family.name: int(size)
            for family, size in zip(states.families, curve[:, worst], strict=True)
            if size
        },
        op=int(lane[min(worst // 2, length * STEPS - 1) % length]) if length else -1,
    )


def _lifetimes(table: Table, rank: int) -> tuple[Ints, Ints, Ints, Ints]:
    """A rank's passing states: (written, by which op first), (freed, by which op)."""
    uses, states = table.uses, table.states
    passing = ~states.persistent[uses.state] & (states.rank[uses.state] == rank)
    writes = np.flatnonzero(passing & (uses.mode == WRITE) & (uses.version == 1))
    frees = np.flatnonzero(passing & (uses.mode == FREE))
    born, first = np.unique(uses.state[writes], return_index=True)
    freed, last = np.unique(uses.state[frees], return_index=True)
    return born, uses.op[writes][first], freed, uses.op[frees][last]
