"""How predictions stand to measurements: the figures that `ratrain validate` prints.

Error of a row: e = predicted / measured - 1. Mean absolute percentage error: mean |e|; bias:
mean e. Rank correlation: Spearman's, the correlation of the ranks, ties sharing their mean.
Regret of a group of alternatives: measured time of the one predicted fastest over the fastest
measured, less 1; a table's is the mean over its groups, and the worst.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ratrain.describe.strict import FrozenMap

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """One row: what was measured and what is predicted, in the same unit."""

    label: str
    measured: float
    predicted: float
    held_out: bool = True
    choice: tuple[object, ...] = ()  # rows that agree are alternatives; empty: none
    between: tuple[float, float] | None = None  # predictions of all that the source leaves open
    beside: FrozenMap[float] = field(default_factory=FrozenMap[float])  # other predictions

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Score:
    """Figures over some rows; None where too few rows give one."""

    rows: int
    mean_error: float
    bias: float
    worst: Pair
    rank_correlation: float | None
    mean_regret: float | None
    worst_regret: float | None


def score(pairs: Sequence[Pair]) -> Score:
    """The `Score` of at least one row."""
    errors = np.array([pair.error for pair in pairs])
    regrets = group_regrets(pairs)
    return Score(
        rows=len(pairs),
        mean_error=float(np.abs(errors).mean()),
        bias=float(errors.mean()),
        worst=max(pairs, key=lambda pair: abs(pair.error)),
        rank_correlation=rank_correlation(
            [p.measured for p in pairs], [p.predicted for p in pairs]
        ),
        mean_regret=sum(regrets) / len(regrets) if regrets else None,
        worst_regret=max(regrets) if regrets else None,
    )


def group_regrets(pairs: Sequence[Pair]) -> list[float]:
    """The regret of each group of two or more alternatives."""
    groups: dict[tuple[object, ...], list[Pair]] = {}
    for pair in pairs:
        if pair.choice:
            groups.setdefault(pair.choice, []).append(pair)
    return [
        min(group, key=lambda pair: pair.predicted).measured / min(pair.measured for pair in group)
        - 1
        for group in groups.values()
        if len(group) > 1
    ]


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None for fewer than three rows or where one side is flat."""
    if len(first) < 3:
        return None
    a, b = _ranks(first), _ranks(second)
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / size if size else None


def _ranks(values: Sequence[float]) -> Floats:
    """The mean position of each value in sorted order."""
    array = np.asarray(values)
    less = (array[:, None] > array[None, :]).sum(axis=1)
    ties = (array[:, None] == array[None, :]).sum(axis=1)
    return less + (ties - 1) / 2
