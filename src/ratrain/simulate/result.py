"""What a simulation says: step time, memory peaks and where each rank's time goes, itemised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratrain.program.binding import FREE, WRITE
from ratrain.program.families import DEVICE
from ratrain.program.kind import Kind, Lane, Waiting
from ratrain.program.table import Table, sends_beside
from ratrain.program.units import Ints
from ratrain.simulate.costs import Floats
from ratrain.simulate.engine import Run
from ratrain.simulate.waiting import WAITS, waiting_times


@dataclass(frozen=True)
class RankTimes:
    """One rank's steady step: the parts add up to the step time."""

    rank: int
    compute_s: float  # forward and backward
    recovery_s: float
    driving_s: float  # compute time taken by messages that its cores drive
    waiting_s: dict[Waiting, float]
    tail_s: float  # from its last backward until its first view of the next step is ready
    peak_bytes: int
    peak_items: dict[str, int]  # by family of states

    @property
    def bubble_s(self) -> float:
        return self.waiting_s[Waiting.BUBBLE]


@dataclass(frozen=True)
class Window:
    """The step that stands for all, and how long it takes."""

    step: int
    length_s: float
    steady: bool  # whether the last two took as long as each other, to one part in a thousand


def steady_window(table: Table, run: Run) -> Window:
    """The step that stands for all: measured from boundary to boundary of two late steps.

    A step's boundary is the end of its last backward on any rank, so that work which crosses
    into the next step is counted once. Of four steps or more it is the longer of the last two: a
    short and a long step may alternate, where micro-batches change their member of a stage.
    """
    n = len(table)
    ends = np.flatnonzero(table.is_any(Kind.B, Kind.W))
    boundary = [float(run.end_s[step * n + ends].max()) for step in range(run.steps)]
    if run.steps == 1:
        return Window(0, float(run.end_s.max()), steady=False)
    lengths = np.diff(boundary)
    steady = len(lengths) > 1 and abs(lengths[-1] - lengths[-2]) <= 1e-3 * lengths[-1]
    if len(lengths) > 2 and not steady and lengths[-2] > lengths[-1]:
        return Window(run.steps - 2, float(lengths[-2]), steady=False)
    return Window(run.steps - 1, float(lengths[-1]), bool(steady))


def rank_times(table: Table, run: Run, fixed_s: Floats, window: Window) -> tuple[RankTimes, ...]:
    """Every rank's share of the steady step, and its memory peak over all steps."""
    lane = np.flatnonzero(table.lane == Lane.COMPUTE)  # rank by rank, in each rank's order
    rank, ranks = table.rank[lane], table.setup.ranks
    recovery = table.kind[lane] == Kind.R
    node = lane + window.step * len(table)
    length_s = run.end_s[node] - run.start_s[node]

    def summed(values: Floats) -> Floats:
        return np.bincount(rank, weights=values, minlength=ranks).astype(np.float64)

    compute_s = summed(np.where(recovery, 0.0, fixed_s[lane]))
    recovery_s = summed(np.where(recovery, fixed_s[lane], 0.0))
    longer_s, paired = length_s - fixed_s[lane], sends_beside(table)[lane]
    driving_s = summed(np.where(paired, 0.0, longer_s))
    waiting_s = waiting_times(table, run, window.step, lane)
    # Between the rank's own last op and the step's boundary others still work.
    rest_s = window.length_s - summed(length_s) - waiting_s.sum(axis=1)
    waiting_s[:, WAITS.index(Waiting.BUBBLE)] += np.maximum(rest_s, 0.0)
    # A backward that fills buckets lasts as long as they take to leave.
    waiting_s[:, WAITS.index(Waiting.REDUCE)] += summed(np.where(paired, longer_s, 0.0))
    tail_s = _tails(table, run, window.step, lane)
    items = _peak_items(table, run)
    return tuple(
        RankTimes(
            rank=each,
            compute_s=float(compute_s[each]),
            recovery_s=float(recovery_s[each]),
            driving_s=float(driving_s[each]),
            waiting_s=dict(zip(WAITS, waiting_s[each].tolist(), strict=True)),
            tail_s=tail_s[each],
            peak_bytes=int(run.peak_bytes[each]),
            peak_items=items[each],
        )
        for each in range(ranks)
    )


def _tails(table: Table, run: Run, step: int, lane: Ints) -> list[float]:
    """The finalization tails: from a rank's last backward until the state work is done that its
    first op of the next step waits for. Measured over the boundary before `step`."""
    n, ranks = len(table), table.setup.ranks
    if step == 0:
        return [0.0] * ranks
    backward = lane[table.is_any(Kind.B, Kind.W)[lane]] + (step - 1) * n
    last_s = np.zeros(ranks)
    np.maximum.at(last_s, table.rank[backward % n], run.end_s[backward])
    ready_s = last_s.copy()
    is_first = np.zeros(n, dtype=bool)
    is_first[lane[np.flatnonzero(np.diff(table.rank[lane], prepend=-1))]] = True
    is_state_work = table.where("is_state_work")
    for edges, shift in ((table.edges.inside, step * n), (table.edges.across, (step - 1) * n)):
        same_rank = table.rank[edges.source] == table.rank[edges.target]
        source = edges.source[is_first[edges.target] & is_state_work[edges.source] & same_rank]
        np.maximum.at(ready_s, table.rank[source], run.end_s[source + shift])
    return (ready_s - last_s).tolist()


def _peak_items(table: Table, run: Run) -> list[dict[str, int]]:
    """What each rank's device memory held at its peak, by family of states."""
    states, uses, n = table.states, table.uses, len(table)
    ranks, families = table.setup.ranks, len(states.families)

    def by_rank_and_family(state: Ints) -> Floats:
        cell = states.rank[state] * families + states.family[state]
        sizes = states.size_bytes[state]
        return np.bincount(cell, sizes, minlength=ranks * families).astype(np.float64)

    here = states.in_tier(DEVICE)
    items = by_rank_and_family(np.flatnonzero(here & states.persistent))
    passing = (here & ~states.persistent)[uses.state]
    births = np.flatnonzero(passing & (uses.mode == WRITE) & (uses.version == 1))
    deaths = np.flatnonzero(passing & (uses.mode == FREE))
    for rows, sequence, sign in ((births, run.start_seq, 1), (deaths, run.end_seq, -1)):
        state, op = uses.state[rows], uses.op[rows]
        moment = run.peak_seq[states.rank[state]]
        for step in range(run.steps):
            items += sign * by_rank_and_family(state[sequence[op + step * n] <= moment])
    names = [family.name for family in states.families]
    return [
        {name: int(size) for name, size in zip(names, row, strict=True) if size > 0}
        for row in items.reshape(ranks, families)
    ]
