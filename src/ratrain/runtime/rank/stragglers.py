"""Ranks that have become slower: named once, with what it costs, and again when it is over.

A rank is compared with itself, in the first steps of this start: what it computes in a step is the
same work in every step. A thermal limit, a neighbour's program or a failing fan show here long
before anybody looks at a chart.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from statistics import median

from ratrain.describe.units import format_time
from ratrain.runtime.rank.control import Round

SKIPPED = 2
"""First steps of a start, which warm up."""
STEPS = 20
"""So many steps are the measure of a rank, and so many say how it is now."""
SLOWER, AGAIN, COSTS = 1.3, 1.15, 1.1
"""Slower by the first factor, in the median, where steps are by the last one, it is named; below
the second it is no more."""

_LONGER = 4
"""A rank that goes back and forth, as on a busy machine, is named ever less often: after so many
times as many steps, each time."""


class Stragglers:
    """Watches all ranks of a run. `named`: a rank in words."""

    def __init__(self, named: Callable[[int], str]) -> None:
        self._named = named
        self._skipped = 0
        self._first: list[list[float]] = []
        self._last: deque[list[float]] = deque(maxlen=STEPS)
        self._slow: set[int] = set()
        self._times = Counter[int]()  # that a rank was named
        self._quiet_before: dict[int, int] = {}

    def of_round(self, step: int, reports: Round) -> list[str]:
        """What there is to say after a step."""
        compute_s = [report.compute_s for report in reports]
        return self.take(step, max(report.step_time_s for report in reports), compute_s)

    def take(self, step: int, step_s: float, compute_s: Sequence[float]) -> list[str]:
        """A step's time, and what each rank computed of it; what there is to say now. The step's
        time is kept as one more rank's."""
        if self._skipped < SKIPPED:
            self._skipped += 1
            return []
        row = [*compute_s, step_s]
        if len(self._first) < STEPS:
            self._first.append(row)
            return []
        self._last.append(row)
        if len(self._last) < STEPS:
            return []
        before, now = _medians(self._first), _medians(self._last)
        return [
            line
            for rank in range(len(compute_s))
            if (line := self._change(rank, step, before, now))
        ]

    def _change(
        self, rank: int, step: int, before: Sequence[float], now: Sequence[float]
    ) -> str | None:
        """What has changed about a rank."""
        ratio = now[rank] / before[rank] if before[rank] > 0 else 1.0
        costs = now[-1] > COSTS * before[-1]
        may_be_named = rank not in self._slow and step >= self._quiet_before.get(rank, 0)
        if may_be_named and ratio > SLOWER and costs:
            self._slow.add(rank)
            self._times[rank] += 1
            self._quiet_before[rank] = step + STEPS * _LONGER ** self._times[rank]
            since = step + 2 - STEPS // 2
            return (
                f"{self._named(rank)} has become slow: it computes {ratio:.1f} x as long as at "
                f"first, since about step {since}; a step takes {format_time(now[-1])}, "
                f"{format_time(before[-1])} then"
            )
        if rank in self._slow and ratio < AGAIN:
            self._slow.discard(rank)
            return f"{self._named(rank)} is as fast as at first again, step {step + 1}"
        return None


def _medians(rows: Sequence[Sequence[float]]) -> list[float]:
    return [median(column) for column in zip(*rows, strict=True)]
