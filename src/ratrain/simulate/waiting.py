"""What compute lanes wait for: every wait divided among the work that it waited for."""

from __future__ import annotations

import numpy as np

from ratrain.program.kind import Kind, Lane, Waiting
from ratrain.program.table import Table
from ratrain.program.units import Ints
from ratrain.simulate.costs import Floats
from ratrain.simulate.engine import Run

WAITS = tuple(Waiting)


def waiting_times(table: Table, run: Run, period: int, lane: Ints) -> Floats:
    """Seconds that each rank (row) waits in a period for each of `WAITS` (column).

    `lane` are the ops of the compute lanes. A wait is followed back along the causes of the op
    that ends it: while a transfer, a collective or an update of the same rank was under way, it
    is exposed time of that kind; all other waiting is bubble. All waits are followed at once.
    """
    n, ranks, kinds = len(table), table.setup.ranks, len(WAITS)
    bubble = WAITS.index(Waiting.BUBBLE)
    numbers = np.array([WAITS.index(kind.waiting) for kind in Kind])
    waited_s = np.zeros(ranks * kinds)

    def add(rank: Ints, kind: Ints | int, time_s: Floats) -> None:
        waited_s[:] += np.bincount(rank * kinds + kind, weights=time_s, minlength=ranks * kinds)

    node, free_s = lane + period * n, _free_since(table, run, period, lane)
    waited = run.start_s[node] > free_s
    node, free_s = node[waited], free_s[waited]
    rank, until_s, cause = table.rank[node % n], run.start_s[node], run.cause[node]
    while len(cause):
        op = cause % n
        of_rank = (cause >= 0) & (table.rank[op] == rank) & (table.lane[op] != Lane.COMPUTE)
        add(rank[~of_rank], bubble, (until_s - free_s)[~of_rank])
        op, cause, rank = op[of_rank], cause[of_rank], rank[of_rank]
        until_s, free_s = until_s[of_rank], free_s[of_rank]
        began_s = np.clip(run.start_s[cause], free_s, until_s)
        add(rank, numbers[table.kind[op]], until_s - began_s)
        more = began_s > free_s
        cause, rank = run.cause[cause[more]], rank[more]
        until_s, free_s = began_s[more], free_s[more]
    return waited_s.reshape(ranks, kinds)


def _free_since(table: Table, run: Run, period: int, lane: Ints) -> Floats:
    """When the compute lane of each op was last free before it."""
    rank = table.rank[lane]
    first = np.flatnonzero(np.diff(rank, prepend=-1))
    last = np.r_[first[1:] - 1, len(lane) - 1]
    free_s = np.roll(run.end_s[lane + period * len(table)], 1)
    free_s[first] = run.end_s[lane[last] + (period - 1) * len(table)] if period else 0.0
    return free_s
