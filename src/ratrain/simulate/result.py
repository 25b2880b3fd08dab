"""What a simulation says: step time, memory peaks and where each rank's time goes, itemised."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ratrain.program.actions import MESSAGES, Kind, Lane
from ratrain.program.binding import FREE, WRITE
from ratrain.program.table import Table
from ratrain.program.units import Ints
from ratrain.simulate.costs import Floats
from ratrain.simulate.engine import Run


class Waiting(StrEnum):
    """What a rank's compute lane waits for when it does not compute."""

    BUBBLE = "bubble"  # other stages: their tensors are not made yet
    MESSAGE = "message"  # a tensor of another stage, under way
    REDUCE = "reduce"  # a gradient reduction
    GATHER = "gather"  # a weight gather
    TENSOR = "tensor"  # sums inside a tensor group
    UPDATE = "update"  # the optimizer


_WAITING_OF_LANE = {
    Lane.SEND_F: Waiting.MESSAGE,
    Lane.RECV_F: Waiting.MESSAGE,
    Lane.SEND_B: Waiting.MESSAGE,
    Lane.RECV_B: Waiting.MESSAGE,
    Lane.REDUCE: Waiting.REDUCE,
    Lane.GATHER: Waiting.GATHER,
    Lane.TENSOR: Waiting.TENSOR,
    Lane.UPDATE: Waiting.UPDATE,
}


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
    """The steady step: the last one but one, from its first compute op to the next step's."""

    step: int
    length_s: float
    steady: bool  # whether the step before took as long, to one part in a thousand


def steady_window(table: Table, run: Run) -> Window:
    """The step that stands for all: measured from boundary to boundary of two late steps.

    A step's boundary is the end of its last backward on any rank, so that work which crosses
    into the next step is counted once.
    """
    n = len(table)
    ends = np.flatnonzero(np.isin(table.kind, [Kind.B, Kind.W]))
    boundary = [float(run.end_s[step * n + ends].max()) for step in range(run.steps)]
    if run.steps == 1:
        return Window(0, float(run.end_s.max()), steady=False)
    lengths = np.diff(boundary)
    steady = len(lengths) > 1 and abs(lengths[-1] - lengths[-2]) <= 1e-3 * lengths[-1]
    return Window(run.steps - 1, float(lengths[-1]), bool(steady))


def rank_times(table: Table, run: Run, fixed_s: Floats, window: Window) -> tuple[RankTimes, ...]:
    """Every rank's share of the steady step, and its memory peak over all steps."""
    return tuple(
        _times_of_rank(table, run, fixed_s, window, rank) for rank in range(table.setup.ranks)
    )


def _times_of_rank(table: Table, run: Run, fixed_s: Floats, window: Window, rank: int) -> RankTimes:
    n = len(table)
    lane = np.flatnonzero((table.rank == rank) & (table.lane == Lane.COMPUTE))
    ops = lane + window.step * n
    length = run.end_s[ops] - run.start_s[ops]
    recovery = table.kind[lane] == Kind.R
    driving = length - fixed_s[lane]
    waiting = dict.fromkeys(Waiting, 0.0)
    previous = _end_before(table, run, window.step, lane)
    for op, free_s in zip(ops.tolist(), previous.tolist(), strict=True):
        if run.start_s[op] > free_s:
            _blame(table, run, op, free_s, waiting)
    waiting[Waiting.BUBBLE] += max(window.length_s - float(length.sum()) - sum(waiting.values()), 0)
    return RankTimes(
        rank=rank,
        compute_s=float(fixed_s[lane][~recovery].sum()),
        recovery_s=float(fixed_s[lane][recovery].sum()),
        driving_s=float(driving.sum()),
        waiting_s=waiting,
        tail_s=_tail(table, run, window.step, rank, lane),
        peak_bytes=int(run.peak_bytes[rank]),
        peak_items=_peak_items(table, run, rank),
    )


def _end_before(table: Table, run: Run, step: int, lane: Ints) -> Floats:
    """When the lane was last free before each of its ops."""
    ends = run.end_s[lane + step * len(table)]
    before = run.end_s[lane[-1] + (step - 1) * len(table)] if step else 0.0
    return np.r_[before, ends[:-1]]


def _blame(table: Table, run: Run, node: int, free_s: float, waiting: dict[Waiting, float]) -> None:
    """Divides the wait before a compute op among what it waited for, back along the causes.

    While a transfer, a collective or an update of the same rank was under way, the wait is
    exposed time of that kind; all other waiting is bubble.
    """
    n, rank = len(table), table.rank[node % len(table)]
    until, cause = float(run.start_s[node]), int(run.cause[node])
    while cause >= 0 and until > free_s:
        op = cause % n
        began = max(float(run.start_s[cause]), free_s)
        if table.rank[op] == rank and table.lane[op] != Lane.COMPUTE:
            waiting[_WAITING_OF_LANE[Lane(int(table.lane[op]))]] += max(until - began, 0.0)
        elif began < until:
            waiting[Waiting.BUBBLE] += until - began
        until = min(until, began)
        if table.rank[op] != rank or table.lane[op] == Lane.COMPUTE:
            break
        cause = int(run.cause[cause])
    if until > free_s:
        waiting[Waiting.BUBBLE] += until - free_s


def _tail(table: Table, run: Run, step: int, rank: int, lane: Ints) -> float:
    """The finalization tail: from the last backward's end until the state work is done that the
    next step's first op on this rank waits for. Measured over the boundary before `step`."""
    if step == 0:
        return 0.0
    n, first = len(table), int(lane[0])
    backward = lane[np.isin(table.kind[lane], [Kind.B, Kind.W])]
    last_s = float(run.end_s[backward + (step - 1) * n].max())
    ready_s = last_s
    for edges, shift in ((table.edges.inside, step * n), (table.edges.across, (step - 1) * n)):
        for op in edges.source[edges.target == first].tolist():
            state_work = table.kind[op] not in MESSAGES and table.kind[op] > Kind.R
            if state_work and table.rank[op] == rank:
                ready_s = max(ready_s, float(run.end_s[op + shift]))
    return ready_s - last_s


def _peak_items(table: Table, run: Run, rank: int) -> dict[str, int]:
    """What a rank's memory held at its peak, by family of states."""
    states, uses, n = table.states, table.uses, len(table)
    moment = int(run.peak_seq[rank])
    held = states.persistent & (states.rank == rank)
    items = np.bincount(
        states.family[held], weights=states.size_bytes[held], minlength=len(states.families)
    )
    passing = ~states.persistent[uses.state] & (states.rank[uses.state] == rank)
    births = np.flatnonzero(passing & (uses.mode == WRITE) & (uses.version == 1))
    deaths = np.flatnonzero(passing & (uses.mode == FREE))
    for step in range(run.steps):
        for rows, sequence, sign in ((births, run.start_seq, 1), (deaths, run.end_seq, -1)):
            happened = rows[sequence[uses.op[rows] + step * n] <= moment]
            state = uses.state[happened]
            items += sign * np.bincount(
                states.family[state],
                weights=states.size_bytes[state],
                minlength=len(states.families),
            )
    return {
        family.name: int(size)
        for family, size in zip(states.families, items, strict=True)
        if size > 0
    }
