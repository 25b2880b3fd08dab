"""A matrix cut by partitions: of each pair that has edges, a block of its rows that have some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ratrain.graph.csr import Floats, Ints, Ints32, Matrix


@dataclass(frozen=True)
class Block:
    """What the nodes of one partition sum of another's: rows and columns by their place in it."""

    rows: Ints32
    starts: Ints32
    columns: Ints32
    values: Floats

    @property
    def entries(self) -> int:
        return len(self.columns)

    @property
    def size_bytes(self) -> int:
        arrays = self.rows, self.starts, self.columns, self.values
        return sum(array.nbytes for array in arrays)


Blocks = Mapping[tuple[int, int], Block]
"""By (partition that sums, partition that is summed)."""


def blocks_of(matrix: Matrix, bounds: Ints) -> dict[tuple[int, int], Block]:
    """The blocks of a matrix whose rows are in the partitions' order; empty ones have none."""
    blocks: dict[tuple[int, int], Block] = {}
    for part in range(len(bounds) - 1):
        blocks.update(_of_part(matrix, bounds, part))
    return blocks


def _of_part(matrix: Matrix, bounds: Ints, part: int) -> dict[tuple[int, int], Block]:
    starts = matrix.pattern.starts
    first, last = starts[bounds[part]], starts[bounds[part + 1]]
    columns, values = matrix.pattern.columns[first:last], matrix.values[first:last]
    rows = np.repeat(
        np.arange(bounds[part + 1] - bounds[part]),
        np.diff(starts[bounds[part] : bounds[part + 1] + 1]),
    )
    source = np.searchsorted(bounds, columns, "right") - 1
    order = np.argsort(source, kind="stable")
    cuts = np.searchsorted(source[order], np.arange(len(bounds)))
    blocks: dict[tuple[int, int], Block] = {}
    for other in range(len(bounds) - 1):
        chosen = order[cuts[other] : cuts[other + 1]]
        if len(chosen):
            own = rows[chosen]
            first_of = np.flatnonzero(np.r_[True, own[1:] != own[:-1]])
            blocks[part, other] = Block(
                own[first_of].astype(np.int32),
                np.append(first_of, len(own)).astype(np.int32),
                (columns[chosen] - bounds[other]).astype(np.int32),
                np.ascontiguousarray(values[chosen]),
            )
    return blocks
