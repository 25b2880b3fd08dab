"""Memory over time: a rank's bytes after each birth and death of a state."""

from __future__ import annotations

import numpy as np

from ratrain.program.table import Table
from ratrain.simulate.engine import Run, memory_changes

Curve = tuple[tuple[float, ...], tuple[int, ...]]
"""(times in seconds, bytes from that time on)."""


def memory_curves(table: Table, run: Run, first_step: int, origin_s: float) -> list[Curve]:
    """Each rank's curve from the beginning of `first_step`, with times counted from origin_s."""
    born, freed, standing = memory_changes(table)
    n = len(table)
    op = np.tile(np.arange(n), run.steps)
    sequence = np.r_[run.start_seq, run.end_seq]
    change = np.r_[born[op], -freed[op]]
    time_s = np.r_[run.start_s, run.end_s]
    rank = np.r_[table.rank[op], table.rank[op]]
    order = np.empty(len(sequence), dtype=np.int64)
    order[sequence] = np.arange(len(sequence))
    curves: list[Curve] = []
    for one in range(table.setup.ranks):
        mine = order[(rank[order] == one) & (change[order] != 0)]
        level = standing[one] + np.cumsum(change[mine])
        shown = time_s[mine] >= float(run.start_s[first_step * n :].min())
        earlier = level[~shown]
        start = int(earlier[-1]) if len(earlier) else int(standing[one])
        curves.append(
            (
                (0.0, *(time_s[mine][shown] - origin_s).tolist()),
                (start, *level[shown].tolist()),
            )
        )
    return curves
