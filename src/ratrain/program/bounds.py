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
import numpy.typing as npt

from ratrain.program.actions import Lane
from ratrain.program.binding import FREE, WRITE
from ratrain.program.units import Ints
from ratrain.program.walk import STEPS, WIDTH, Drift, drift

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
    lives, standing = _lifetimes(table), _standing_bytes(table)
    found: list[PeakBound] = []
    for first in range(0, table.setup.ranks, WIDTH):
        ranks = range(first, min(first + WIDTH, table.setup.ranks))
        moved = drift(table, order, ranks, compiled=compiled)
        for column, rank in enumerate(ranks):
            one = Drift(moved.early[:, column], moved.late[:, column])
            found.append(_peak_of_rank(table, rank, lives[rank], standing[rank], one))
    return tuple(found)


@dataclass(frozen=True)
class Lifetimes:
    """A rank's passing states, by which op each is written first, and by which it is freed."""

    state: Ints
    writer: Ints
    freer: Ints


def _peak_of_rank(
    table: Table, rank: int, lives: Lifetimes, standing: Ints, moved: Drift
) -> PeakBound:
    states, n = table.states, len(table)
    lane = np.flatnonzero((table.rank == rank) & (table.lane == Lane.COMPUTE))
    place = np.full(n, -1, dtype=np.int64)
    place[lane] = np.arange(len(lane))
    length = len(lane)

    # Moment 2p is the wait before compute op p, moment 2p + 1 its run.
    def moments(op: Ints, step: int, bound: npt.NDArray[np.int32]) -> Ints:
        own = 2 * (place[op] + step * length) + 1
        return np.where(place[op] >= 0, own, 2 * bound[op + step * n].astype(np.int64))

    family, size = states.family[lives.state], states.size_bytes[lives.state]
    changes = np.zeros((len(states.families), 2 * length * STEPS + 2), dtype=np.int64)
    changes[:, 0] = standing
    for step in range(STEPS):
        np.add.at(changes, (family, moments(lives.writer, step, moved.early)), size)
        np.add.at(changes, (family, moments(lives.freer, step, moved.late) + 1), -size)
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


def _standing_bytes(table: Table) -> Ints:
    """What always exists: bytes for each rank (row) and family (column)."""
    states = table.states
    shape = table.setup.ranks, len(states.families)
    found = np.zeros(shape, dtype=np.int64)
    kept = states.persistent
    np.add.at(found, (states.rank[kept], states.family[kept]), states.size_bytes[kept])
    return found


def _lifetimes(table: Table) -> list[Lifetimes]:
    """The `Lifetimes` of every rank."""
    uses, states = table.uses, table.states

    def first_op(rows: Ints) -> Ints:
        found = np.full(len(states.rank), -1, dtype=np.int64)
        found[uses.state[rows][::-1]] = uses.op[rows][::-1]
        return found

    writer = first_op(np.flatnonzero((uses.mode == WRITE) & (uses.version == 1)))
    freer = first_op(np.flatnonzero(uses.mode == FREE))
    passing = np.flatnonzero(~states.persistent & (writer >= 0) & (freer >= 0))
    by_rank = passing[np.argsort(states.rank[passing], kind="stable")]
    cuts = np.searchsorted(states.rank[by_rank], np.arange(1, table.setup.ranks))
    return [Lifetimes(s, writer[s], freer[s]) for s in np.split(by_rank, cuts)]
