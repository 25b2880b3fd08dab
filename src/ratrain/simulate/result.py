"""What a simulation says: step time, memory peaks and where each rank's time goes, itemised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratrain.program.families import DEVICE
from ratrain.program.kind import Kind, Lane, Waiting
from ratrain.program.table import Table, sends_beside
from ratrain.program.units import Ints
from ratrain.program.uses import FREE, WRITE
from ratrain.simulate.costs import Floats
from ratrain.simulate.engine import Run
from ratrain.simulate.waiting import WAITS, waiting_times


@dataclass(frozen=True)
class RankTimes:
    """One rank's steady step, a mean over the period: the parts add up to the step time."""

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
    """The period that stands for all: most programs' is one step. `steps_s`: how long each of its
    steps takes."""

    period: int  # of the run
    steps_s: tuple[float, ...]
    steady: bool  # whether the last two took as long as each other, to one part in a thousand

    @property
    def length_s(self) -> float:
        return sum(self.steps_s)

    @property
    def step_s(self) -> float:
        """The mean of its steps."""
        return self.length_s / len(self.steps_s)

    @property
    def slowest_s(self) -> float:
        return max(self.steps_s)


def steady_window(table: Table, run: Run) -> Window:
    """The period that stands for all: measured from boundary to boundary of two late ones.

    A step's boundary is the end of its last backward on any rank, so that work which crosses
    into the next step is counted once. Of four periods or more it is the longer of the last two: a
    short and a long step may alternate, where micro-batches change their member of a stage.
    """
    steps = table.setup.period
    boundary_s = _boundaries(table, run)
    if run.periods == 1:
        boundary_s[-1] = run.end_s.max()  # what follows the last backward is part of it
        return Window(0, tuple(np.diff(boundary_s, prepend=0.0).tolist()), steady=False)
    steps_s = np.diff(boundary_s)[steps - 1 :].reshape(run.periods - 1, steps)
    lengths_s = steps_s.sum(axis=1)
    steady = len(lengths_s) > 1 and abs(lengths_s[-1] - lengths_s[-2]) <= 1e-3 * lengths_s[-1]
    longer_before = len(lengths_s) > 2 and not steady and lengths_s[-2] > lengths_s[-1]
    chosen = len(lengths_s) - 1 - longer_before
    return Window(1 + chosen, tuple(steps_s[chosen].tolist()), bool(steady))


def _boundaries(table: Table, run: Run) -> Floats:
    """When the last backward of each step ends, over all periods."""
    steps = table.setup.period
    ends = np.flatnonzero(table.where("adds_gradient"))
    boundary_s = np.zeros((run.periods, steps))
    for period in range(run.periods):
        ended_s = run.end_s[period * len(table) + ends]
        np.maximum.at(boundary_s[period], table.step[ends], ended_s)
    return boundary_s.ravel()


def rank_times(table: Table, run: Run, fixed_s: Floats, window: Window) -> tuple[RankTimes, ...]:
    """Every rank's share of the steady step, the mean over its period; and its memory peak over
    all periods."""
    lane = np.flatnonzero(table.lane == Lane.COMPUTE)  # rank by rank, in each rank's order
    rank, ranks, steps = table.rank[lane], table.setup.ranks, table.setup.period
    recovery = table.kind[lane] == Kind.R
    node = lane + window.period * len(table)
    length_s = run.end_s[node] - run.start_s[node]

    def summed(values: Floats) -> Floats:
        return np.bincount(rank, weights=values, minlength=ranks).astype(np.float64) / steps

    compute_s = summed(np.where(recovery, 0.0, fixed_s[lane]))
    recovery_s = summed(np.where(recovery, fixed_s[lane], 0.0))
    longer_s, paired = length_s - fixed_s[lane], sends_beside(table)[lane]
    driving_s = summed(np.where(paired, 0.0, longer_s))
    waiting_s = waiting_times(table, run, window.period, lane) / steps
    # Between the rank's own last op and the step's boundary others still work.
    rest_s = window.step_s - summed(length_s) - waiting_s.sum(axis=1)
    waiting_s[:, WAITS.index(Waiting.BUBBLE)] += np.maximum(rest_s, 0.0)
    # A backward that fills buckets lasts as long as they take to leave.
    waiting_s[:, WAITS.index(Waiting.REDUCE)] += summed(np.where(paired, longer_s, 0.0))
    tail_s = _tails(table, run, window.period, lane)
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


def _tails(table: Table, run: Run, period: int, lane: Ints) -> list[float]:
    """The finalization tails: from a rank's last backward until the state work is done that its
    first op of the next step waits for. The mean over the boundaries before a period's steps."""
    n, ranks, steps = len(table), table.setup.ranks, table.setup.period
    if period == 0:
        return [0.0] * ranks
    # Rows: the step before the period, and its own steps.
    last_s = np.zeros((steps + 1, ranks))
    backward = lane[table.where("adds_gradient")[lane]]
    for of_period, row in ((period - 1, table.step - steps + 1), (period, table.step + 1)):
        here = backward[row[backward] >= 0]
        np.maximum.at(last_s, (row[here], table.rank[here]), run.end_s[here + of_period * n])
    ready_s = last_s.copy()
    is_first = np.zeros(n, dtype=bool)
    turn = table.rank[lane] * steps + table.step[lane]
    is_first[lane[np.flatnonzero(np.diff(turn, prepend=-1))]] = True
    is_state_work = table.where("is_state_work")
    for edges, of_period in ((table.edges.inside, period), (table.edges.across, period - 1)):
        same_rank = table.rank[edges.source] == table.rank[edges.target]
        tail = is_first[edges.target] & is_state_work[edges.source] & same_rank
        source, row = edges.source[tail], table.step[edges.target[tail]]
        np.maximum.at(ready_s, (row, table.rank[source]), run.end_s[source + of_period * n])
    return (ready_s - last_s)[:steps].mean(axis=0).tolist()


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
        for period in range(run.periods):
            items += sign * by_rank_and_family(state[sequence[op + period * n] <= moment])
    names = [family.name for family in states.families]
    return [
        {name: int(size) for name, size in zip(names, row, strict=True) if size > 0}
        for row in items.reshape(ranks, families)
    ]
