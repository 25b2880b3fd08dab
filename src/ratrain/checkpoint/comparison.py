"""Two checkpoints of one model, bit by bit, whatever layouts wrote them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ratrain.checkpoint.reader import Checkpoint
from ratrain.errors import CheckpointError

PIECE_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class Difference:
    """One kind of state of one unit, compared as float32.

    `largest` is the largest absolute difference; infinite where a NaN meets a number.
    """

    unit: str
    kind: str
    elements: int
    differing: int
    largest: float

    @property
    def identical(self) -> bool:
        """Whether every bit is the same; -0.0 and 0.0 are not."""
        return self.differing == 0


def compare(
    a: Checkpoint,
    b: Checkpoint,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Difference, ...]:
    """Every unit and kind of both; `progress` takes elements done and total."""
    units = a.manifest.meta.units
    alike = a.manifest.ranges.keys() == b.manifest.ranges.keys()
    if dict(units) != dict(b.manifest.meta.units) or not alike:
        raise CheckpointError(
            f"cannot be compared with {b.path}: they hold different units, sizes or kinds",
            place=str(a.path),
            fix="compare two checkpoints of the same model",
        )
    kinds = {unit: a.manifest.kinds_of(unit) for unit in units}
    done, total = 0, sum(size * len(kinds[unit]) for unit, size in units.items())
    differences: list[Difference] = []
    for unit, size in units.items():
        for kind in kinds[unit]:
            differing, largest = 0, 0.0
            for begin in range(0, size, PIECE_ELEMENTS):
                end = min(begin + PIECE_ELEMENTS, size)
                count, furthest = _differences(
                    a.read_range(unit, kind, begin, end), b.read_range(unit, kind, begin, end)
                )
                differing, largest = differing + count, max(largest, furthest)
                done += end - begin
                if progress:
                    progress(done, total)
            differences.append(Difference(unit, kind, size, differing, largest))
    return tuple(differences)


def _differences(
    a: np.ndarray[tuple[int], np.dtype[np.float32]], b: np.ndarray[tuple[int], np.dtype[np.float32]]
) -> tuple[int, float]:
    """How many elements differ in any bit, and the largest absolute difference among them."""
    unlike = a.view(np.uint32) != b.view(np.uint32)
    if not unlike.any():
        return 0, 0.0
    with np.errstate(invalid="ignore"):
        left, right = a[unlike].astype(np.float64), b[unlike].astype(np.float64)
        distance = np.abs(left - right)
    both_nan = np.isnan(left) & np.isnan(right)
    distance[both_nan | (left == right)] = 0.0
    return int(unlike.sum()), float(np.nan_to_num(distance, nan=np.inf, posinf=np.inf).max())
