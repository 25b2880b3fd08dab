"""Lanes as columns of numbers: what proving and simulating need of a long program.

An action is a row of five numbers, a fifth of what it takes as an object; rows are lengthened and
counted many at a time. Whoever asks for a lane's actions gets them, made on the spot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import cast

import numpy as np
import numpy.typing as npt

from ratrain.program.actions import Action
from ratrain.program.kind import Lane, kinds

Rows = npt.NDArray[np.int32]
"""Actions of a lane in order: a row each, a column for each field of `Action`."""

FIELDS = len(Action._fields)
KIND, STAGE, UNIT, MICRO_BATCH, _STEP = range(FIELDS)

Key = tuple[int, Lane]


class ColumnLanes(Mapping[Key, tuple[Action, ...]]):
    """Lanes that are kept as rows."""

    def __init__(self, rows: Mapping[Key, Rows]) -> None:
        self._rows = rows

    def __getitem__(self, key: Key) -> tuple[Action, ...]:
        return _actions(self._rows[key])

    def __iter__(self) -> Iterator[Key]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> Mapping[Key, Rows]:
        return self._rows


def as_columns(lanes: Mapping[Key, tuple[Action, ...]]) -> ColumnLanes:
    """The same lanes, kept as rows."""
    if isinstance(lanes, ColumnLanes):
        return lanes
    return ColumnLanes({key: _rows(actions) for key, actions in lanes.items()})


def count_ops(lanes: Mapping[Key, tuple[Action, ...]]) -> int:
    """Ops of all lanes together."""
    if isinstance(lanes, ColumnLanes):
        return sum(map(len, lanes.rows.values()))
    return sum(map(len, lanes.values()))


def _rows(actions: tuple[Action, ...]) -> Rows:
    numbers = chain.from_iterable(actions)
    flat = np.fromiter(numbers, dtype=np.int32, count=FIELDS * len(actions))
    return flat.reshape(-1, FIELDS)


def _actions(rows: Rows) -> tuple[Action, ...]:
    known = tuple(kinds())
    listed = cast("list[list[int]]", rows.tolist())
    return tuple(Action(known[kind], *rest) for kind, *rest in listed)
