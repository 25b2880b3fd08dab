"""In which step of a period a unit is averaged between replicas: runs of units that follow each
other in backward, each run in a step of its own.

    D_u = sum of b_v for v up to u           when unit u's backward has ended
    x = max(x, D_u) + c_u for u of a run     when its transfer has ended, one after another
    exposed(run) = max(0, x - D_last)        what the step waits for

b: seconds of a unit's backward; c: of its transfer. The best division of L units into at most H
runs is found in O(L^2 H) by dynamic programming. DreamDDP (arXiv 2502.11058) searches it by
branching, which is exact too where it is carried out in full.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def exposed_of_runs(backward_s: Floats, sync_s: Floats) -> Floats:
    """Seconds that a step waits for the units [i, j) of backward's order, as [i, j]."""
    count, ready_s = len(sync_s), np.cumsum(backward_s)
    ended_s, exposed_s = np.zeros(count), np.zeros((count + 1, count + 1))
    for unit in range(count):
        ended_s[: unit + 1] = np.maximum(ended_s[: unit + 1], ready_s[unit]) + sync_s[unit]
        exposed_s[: unit + 1, unit + 1] = ended_s[: unit + 1] - ready_s[-1]
    return np.maximum(exposed_s, 0.0)


def lengths_of_runs(sync_s: Floats) -> Floats:
    """What the units [i, j) take to send, as [i, j]."""
    ends = np.concatenate([[0.0], np.cumsum(sync_s)])
    return np.maximum(ends[None, :] - ends[:, None], 0.0)


def turns(of_runs: Floats, steps: int, *, least_longest: bool = False) -> tuple[int, ...]:
    """Each unit's step, so that what steps lose is least: in sum, or where it is most.
    `of_runs`: what the run of units [i, j) loses, as [i, j]; an empty one loses nothing."""
    count = len(of_runs) - 1
    behind = np.tri(count + 1, k=-1, dtype=np.bool_)  # a run that would end before it begins
    best, begins = np.full(count + 1, np.inf), list[npt.NDArray[np.int64]]()
    best[0] = 0.0
    for _ in range(steps):
        joined = np.maximum(best[:, None], of_runs) if least_longest else best[:, None] + of_runs
        joined[behind] = np.inf
        begins.append(joined.argmin(axis=0))
        best = joined.min(axis=0)
    turn, end = np.zeros(count, dtype=np.int64), count
    for step in reversed(range(steps)):
        begin = int(begins[step][end])
        turn[begin:end], end = step, begin
    return tuple(turn.tolist())
