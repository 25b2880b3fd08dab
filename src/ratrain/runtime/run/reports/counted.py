"""The steps that stand for a run. Of a program that spells out several they are whole periods: a
step's time is then the mean of a period's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, median
from typing import TypeVar

from ratrain.runtime.attempts import Attempt
from ratrain.runtime.rank.rows import Row

T = TypeVar("T")
WARM_UP_STEPS = 2


@dataclass(frozen=True)
class Counted:
    """Rows of metrics, period by period; a period of one step is a row. There is at least one."""

    periods: tuple[tuple[Row, ...], ...]
    whole: bool = True  # False: no period of several steps was run whole

    @property
    def steps(self) -> list[int]:
        """Its first and its last step, counted from 1."""
        return [self.periods[0][0]["step"] + 1, self.periods[-1][-1]["step"] + 1]

    def typical(self, of_period: Callable[[Sequence[Row]], float]) -> float:
        """The median of what periods have."""
        return median(map(of_period, self.periods))

    def mean(self, of_row: Callable[[Row], float]) -> float:
        """What a step has: the median of periods' means."""
        return self.typical(lambda rows: fmean(map(of_row, rows)))

    @property
    def step_times_s(self) -> list[float]:
        """Each period's mean step."""
        return [fmean(row["step_time_s"] for row in rows) for rows in self.periods]

    @property
    def step_s(self) -> float:
        return median(self.step_times_s)

    @property
    def slowest_s(self) -> float:
        """The slowest step of a period."""
        return self.typical(lambda rows: max(row["step_time_s"] for row in rows))

    @property
    def tokens_per_s(self) -> float:
        return self.typical(
            lambda rows: (
                sum(row["tokens"] for row in rows) / sum(row["step_time_s"] for row in rows)
            )
        )


def counted_of(rows: Sequence[Row], attempt: Attempt | None, period: int = 1) -> Counted | None:
    """The last half of an attempt's periods, without its first two steps; None where there is no
    row. Where no period is whole, all of its steps but the first two."""
    attempted = [row for row in rows if attempt is None or row["time_s"] >= attempt.began_s]
    if not attempted:
        return None
    periods = whole_periods(attempted, period, lambda row: row["step"])
    if not periods:
        steps = attempted[WARM_UP_STEPS:] or attempted[-1:]
        return Counted((tuple(steps),), whole=False)
    warm_up = -(-WARM_UP_STEPS // period)
    return Counted(tuple(periods[max(warm_up, len(periods) // 2) :] or periods[-1:]))


def whole_periods(
    items: Iterable[T], period: int, step_of: Callable[[T], int]
) -> list[tuple[T, ...]]:
    """Those periods of which every step is there, in a row. The last one of a run may be shorter:
    it is none."""
    together = groupby(items, key=lambda item: step_of(item) // period)
    return [kept for _, group in together if len(kept := tuple(group)) == period]
