"""Memory over time: a rank's bytes after each birth and death of a state."""

from __future__ import annotations

import numpy as np

from ratrain.program.families import DEVICE
from ratrain.program.table import Table
from ratrain.program.units import Ints
from ratrain.program.uses import FREE, WRITE
from ratrain.simulate.costs import Floats
from ratrain.simulate.engine import Run, memory_changes

Curve = tuple[tuple[float, ...], tuple[int, ...]]
"""(times in seconds, bytes from that time on)."""


def memory_curves(
    table: Table, run: Run, first_period: int, origin_s: float, tier: str = DEVICE
) -> list[Curve]:
    """Each rank's curve of a tier from the beginning of `first_period`, with times counted from
    origin_s."""
    born, freed, standing = memory_changes(table, tier)
    n = len(table)
    op = np.tile(np.arange(n), run.periods)
    sequence = np.r_[run.start_seq, run.end_seq]
    change = np.r_[born[op], -freed[op]]
    time_s = np.r_[run.start_s, run.end_s]
    rank = np.r_[table.rank[op], table.rank[op]]
    order = np.empty(len(sequence), dtype=np.int64)
    order[sequence] = np.arange(len(sequence))
    curves: list[Curve] = []
    for number in range(table.setup.ranks):
        mine = order[(rank[order] == number) & (change[order] != 0)]
        level = standing[number] + np.cumsum(change[mine])
        shown = time_s[mine] >= float(run.start_s[first_period * n :].min())
        earlier = level[~shown]
        start = int(earlier[-1]) if len(earlier) else int(standing[number])
        curves.append(
            (
                (0.0, *(time_s[mine][shown] - origin_s).tolist()),
                (start, *level[shown].tolist()),
            )
        )
    return curves


def family_levels(table: Table, rank: int, start_s: Floats, end_s: Floats) -> tuple[Floats, Ints]:
    """(times, bytes of each family from each time on) of one program rank.

    `start_s` and `end_s` say when each op ran, as steps x ops, on a clock or measured; an op that
    is not a number did not run. Of events at one moment, what is freed goes before what is born.
    """
    states, uses = table.states, table.uses
    of_rank = (states.rank[uses.state] == rank) & ~states.persistent[uses.state]
    births = np.flatnonzero(of_rank & (uses.mode == WRITE) & (uses.version == 1))
    deaths = np.flatnonzero(of_rank & (uses.mode == FREE))
    born_s, freed_s = start_s[:, uses.op[births]], end_s[:, uses.op[deaths]]
    # An op that takes no time ends when it begins, and its end still comes second.
    instant = end_s[:, uses.op[deaths]] <= start_s[:, uses.op[deaths]]
    time_s = np.concatenate([born_s.ravel(), freed_s.ravel()])
    phase = np.concatenate([np.ones(born_s.size), np.where(instant, 2, 0).ravel()])
    state = np.concatenate(
        [np.tile(uses.state[births], len(start_s)), np.tile(uses.state[deaths], len(end_s))]
    )
    sign = np.repeat(np.array([1, -1]), [born_s.size, freed_s.size])
    order = np.lexsort((phase, time_s))
    order = order[~np.isnan(time_s[order])]
    changes = np.zeros((len(order) + 1, len(states.families)), dtype=np.int64)
    standing = np.flatnonzero(states.persistent & (states.rank == rank))
    np.add.at(changes[0], states.family[standing], states.size_bytes[standing])
    moved = state[order]
    changes[np.arange(1, len(order) + 1), states.family[moved]] = (
        sign[order] * states.size_bytes[moved]
    )
    first_s = float(time_s[order[0]]) if len(order) else 0.0
    return np.concatenate([[first_s], time_s[order]]), changes.cumsum(axis=0)
