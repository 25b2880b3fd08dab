"""The most memory of each tier that a program can need, whatever the timing of its lanes.

A rank's compute ops happen in order. Between them lie waits. A state of another lane's op can
exist from the first wait after which the op can start to the last wait before which it must have
ended (`walk.Drift`); a state is counted wherever it can exist. The sum, at its largest, is a bound
that no timing exceeds, so a run inside it never waits for memory.

Scratch memory inside an op is a state where the setup says how much. Not modelled: what the
allocator adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ratrain.program.families import DEVICE
from ratrain.program.graph import Chains
from ratrain.program.units import Bools, Ints
from ratrain.program.uses import FREE, WRITE
from ratrain.program.walk import STEPS, WIDTH, Drift, drift

if TYPE_CHECKING:
    from ratrain.program.table import Table


@dataclass(frozen=True)
class PeakBound:
    """A rank's bound in one tier: bytes by family of state at the worst moment, and the op at that
    moment. The device's own tier is "" (`families.DEVICE`)."""

    rank: int
    total_bytes: int
    by_family: dict[str, int]
    op: int  # the compute op running, or waited for, at the worst moment
    tier: str = DEVICE


Inspect = Callable[["Lives", "Moved"], None]
"""Is shown the states' lives, and the drift of some ranks, while these are at hand."""


def peak_bounds(
    table: Table, order: Ints, *, compiled: bool = True, inspect: Inspect | None = None
) -> tuple[PeakBound, ...]:
    """The `PeakBound` of every rank in the device's tier, then of every rank in each other tier
    that is used. `order` is a complete walk of the program's chains."""
    chains, tiers = table.chains, table.states.tiers
    lives = {tier: _lifetimes(table, tier) for tier in tiers}
    standing = {tier: _standing_bytes(table, tier) for tier in tiers}
    bounds: dict[str, list[PeakBound]] = {tier: [] for tier in tiers}
    for first in range(0, table.setup.ranks, WIDTH):
        ranks = range(first, min(first + WIDTH, table.setup.ranks))
        drifted = drift(chains.graph, order, ranks, compiled=compiled)
        moved = Moved(ranks, chains, drifted)
        if inspect is not None:
            inspect(lives, moved)
        for rank in ranks:
            for tier in tiers:
                bounds[tier].append(
                    _peak_of_rank(table, rank, tier, lives[tier][rank], standing[tier][rank], moved)
                )
    return tuple(bound for tier in tiers for bound in bounds[tier])


@dataclass(frozen=True)
class Lifetimes:
    """A rank's passing states, by which op each is written first, and by which it is freed."""

    state: Ints
    writer: Ints
    freer: Ints


Lives = Mapping[str, Sequence[Lifetimes]]
"""For each tier the lifetimes of every rank's states."""


@dataclass(frozen=True)
class Moved:
    """The `Drift` of a program's ops against some ranks, read off that of its chains."""

    ranks: range
    chains: Chains
    drifted: Drift

    def early(self, op: Ints, step: int, rank: int) -> Ints:
        """How many of a rank's compute ops must have ended before ops of a step start."""
        drift = self.drifted.early[self._node(self.chains.at[op], step), self._column(rank)]
        return np.where(self._is_own(op, rank), self._turn(op, step, rank), drift)

    def late(self, op: Ints, step: int, rank: int) -> Ints:
        """The first of a rank's compute ops that cannot start before ops of a step have ended."""
        drift = self.drifted.late[self._node(self.chains.from_[op], step), self._column(rank)]
        return np.where(self._is_own(op, rank), self._turn(op, step, rank) + 1, drift)

    def _node(self, of_chains: Ints, step: int) -> Ints:
        return of_chains + step * len(self.chains.graph)

    def _column(self, rank: int) -> int:
        return rank - self.ranks.start

    def _is_own(self, op: Ints, rank: int) -> Bools:
        return self.chains.owner[op] == rank

    def _turn(self, op: Ints, step: int, rank: int) -> Ints:
        return self.chains.place[op] + step * self.chains.graph.lengths[rank]


def _peak_of_rank(
    table: Table, rank: int, tier: str, lives: Lifetimes, standing: Ints, moved: Moved
) -> PeakBound:
    chains, states = moved.chains, table.states
    length = int(chains.graph.lengths[rank])
    family, size = states.family[lives.state], states.size_bytes[lives.state]

    # Moment 2p is the wait before compute op p, moment 2p + 1 its run.
    def moments(op: Ints, bound: Ints, ended: int) -> Ints:
        return np.where(chains.owner[op] == rank, 2 * (bound - ended) + 1, 2 * bound)

    # A rank that computes nothing has one moment: all its states, each of which exists once.
    steps = range(STEPS if length else 1)
    born = [moments(lives.writer, moved.early(lives.writer, s, rank), 0) for s in steps]
    freed = [moments(lives.freer, moved.late(lives.freer, s, rank), 1) + 1 for s in steps]
    changes = np.zeros(2 * length * STEPS + 2, dtype=np.int64)
    changes[0] = standing.sum()
    for begin, end in zip(born, freed, strict=True):
        np.add.at(changes, begin, size)
        np.subtract.at(changes, end, size)
    total = np.cumsum(changes)[: 2 * length * STEPS + 1]
    worst = int(total.argmax())
    held = standing.copy()
    for begin, end in zip(born, freed, strict=True):
        np.add.at(held, family[begin <= worst], size[begin <= worst])
        np.subtract.at(held, family[end <= worst], size[end <= worst])
    first = int(np.searchsorted(table.rank, rank))  # the compute lane is a rank's first
    return PeakBound(
        rank=rank,
        total_bytes=int(total[worst]),
        by_family={
            family.name: int(size)
            for family, size in zip(states.families, held, strict=True)
            if size
        },
        op=first + min(worst // 2, length * STEPS - 1) % length if length else -1,
        tier=tier,
    )


def _standing_bytes(table: Table, tier: str) -> Ints:
    """What always exists in a tier: bytes for each rank (row) and family (column)."""
    states = table.states
    standing = np.zeros((table.setup.ranks, len(states.families)), dtype=np.int64)
    kept = states.persistent & states.in_tier(tier)
    np.add.at(standing, (states.rank[kept], states.family[kept]), states.size_bytes[kept])
    return standing


def _lifetimes(table: Table, tier: str) -> list[Lifetimes]:
    """The `Lifetimes` of every rank's states in a tier."""
    uses, states = table.uses, table.states

    def first_op(rows: Ints) -> Ints:
        ops = np.full(len(states.rank), -1, dtype=np.int64)
        ops[uses.state[rows][::-1]] = uses.op[rows][::-1]
        return ops

    writer = first_op(np.flatnonzero((uses.mode == WRITE) & (uses.version == 1)))
    freer = first_op(np.flatnonzero(uses.mode == FREE))
    here = ~states.persistent & states.in_tier(tier)
    passing = np.flatnonzero(here & (writer >= 0) & (freer >= 0))
    by_rank = passing[np.argsort(states.rank[passing], kind="stable")]
    cuts = np.searchsorted(states.rank[by_rank], np.arange(1, table.setup.ranks))
    return [Lifetimes(s, writer[s], freer[s]) for s in np.split(by_rank, cuts)]
