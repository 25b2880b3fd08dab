"""Tiles: parts of tensors, where they lie, and which state of the program they are.

A tensor lies in DDR. Each region of it that a kernel takes is a state; regions of a tensor that is
written must be the same or apart, and `overlapping` finds others. A buffer lies in GSM, AM or SM:
some slots that tiles take in turn, each slot a state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ratrain.errors import ProgramError
from ratrain.kernels.machine import Tier

Box = tuple[int, int, int, int]
"""Rows from, to; columns from, to."""
Array = npt.NDArray[Any]


@dataclass(slots=True)  # not frozen: programs have 100,000 of them, and these are made faster
class Tile:
    """A part of what is stored at `storage`, which is read as an array of `whole`."""

    state: int
    storage: int
    tier: Tier
    core: int  # whose memory it is in; of GSM and DDR, nobody's: -1
    dtype: np.dtype[Any]
    whole: tuple[int, int]
    box: Box
    name: str
    turned: bool = False  # read with rows and columns exchanged: scalars in SM may be

    @property
    def shape(self) -> tuple[int, int]:
        top, bottom, left, right = self.box
        rows, columns = bottom - top, right - left
        return (columns, rows) if self.turned else (rows, columns)

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def size_bytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def strided_rows(self) -> int:
        """Its rows where they are parts of longer ones; 0 where its bytes lie in one piece."""
        top, bottom, left, right = self.box
        return 0 if right - left == self.whole[1] else bottom - top

    @property
    def T(self) -> Tile:  # noqa: N802  # as numpy calls it
        """Rows and columns exchanged, which costs nothing where elements are read one by one."""
        return self._part(self.box, not self.turned)

    def __getitem__(self, index: slice | tuple[slice, slice]) -> Tile:
        """Some rows, or some rows and columns, of the same state."""
        rows, columns = index if isinstance(index, tuple) else (index, slice(None))
        top, bottom, left, right = self.box
        box = (*_inside(rows, top, bottom, self.name), *_inside(columns, left, right, self.name))
        return self._part(box, self.turned)

    def _part(self, box: Box, turned: bool) -> Tile:
        where = self.state, self.storage, self.tier, self.core
        return Tile(*where, self.dtype, self.whole, box, self.name, turned)

    @property
    def is_whole(self) -> bool:
        return self.box == (0, self.whole[0], 0, self.whole[1])

    def __str__(self) -> str:
        """For people: its name, and which part of it where it is not all."""
        top, bottom, left, right = self.box
        part = "" if self.is_whole else f"[{top}:{bottom}, {left}:{right}]"
        return f"{self.name}{part}{'^T' if self.turned else ''}"

    def array(self, memory: Mapping[int, Array]) -> Array:
        """Its elements, in an executor's memory."""
        top, bottom, left, right = self.box
        stored = memory[self.storage]
        if self.tier is not Tier.DDR:
            count = self.whole[0] * self.whole[1] * self.dtype.itemsize
            stored = stored[:count].view(self.dtype).reshape(self.whole)
        part = stored[top:bottom, left:right]
        return part.T if self.turned else part


def _inside(part: slice, first: int, end: int, name: str) -> tuple[int, int]:
    start, stop, step = part.indices(end - first)
    if step != 1 or stop <= start or (part.stop is not None and part.stop > end - first):
        raise ProgramError(
            f"{name}[{part.start}:{part.stop}] is not a part of {end - first} rows or columns",
            fix="take from `k.tiles(length, size)`, which ends with what is left over",
        )
    return first + start, first + stop


def overlapping(boxes: Iterable[Box]) -> Box | None:
    """A region that shares elements with another one, if there is any: all are painted on a grid
    whose lines are their edges."""
    known = list(dict.fromkeys(boxes))
    if len(known) < 2:
        return None
    rows = {edge: at for at, edge in enumerate(sorted({e for box in known for e in box[:2]}))}
    columns = {edge: at for at, edge in enumerate(sorted({e for box in known for e in box[2:]}))}
    painted = np.zeros((len(rows), len(columns)), bool)
    for top, bottom, left, right in known:
        part = painted[rows[top] : rows[bottom], columns[left] : columns[right]]
        if part.any():
            return top, bottom, left, right
        part[:] = True
    return None
