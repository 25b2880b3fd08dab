"""Lanes as columns of numbers: what building, proving and simulating need of a long program.

An action is a row of five numbers, a fifth of what it takes as an object; rows are made, moved and
counted many at a time. Whoever asks for a lane's actions gets them, made when first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import cast

import numpy as np
import numpy.typing as npt

from ratrain.program.actions import Action
from ratrain.program.kind import Kind, Lane

Rows = npt.NDArray[np.int32]
"""Actions of a lane in order: a row each, a column for each field of `Action`."""

FIELDS = len(Action._fields)
KIND, STAGE, UNIT, MICRO_BATCH, STEP = range(FIELDS)

NO_ROWS: Rows = np.zeros((0, FIELDS), dtype=np.int32)

Key = tuple[int, Lane]
LaneOps = Rows | tuple[Action, ...]


class ColumnLanes(Mapping[Key, tuple[Action, ...]]):
    """Lanes, each given as rows or as actions, and returned in either form."""

    def __init__(self, lanes: Mapping[Key, LaneOps]) -> None:
        self._lanes = dict(lanes)
        self._others: dict[Key, LaneOps] = {}  # in the form in which they were not given

    def __getitem__(self, key: Key) -> tuple[Action, ...]:
        lane = self._lanes[key]
        return lane if isinstance(lane, tuple) else cast("tuple[Action, ...]", self._other(key))

    def __iter__(self) -> Iterator[Key]:
        return iter(self._lanes)

    def __len__(self) -> int:
        return len(self._lanes)

    def rows_of(self, key: Key) -> Rows:
        """A lane as rows; none where there is no such lane."""
        lane = self._lanes.get(key, NO_ROWS)
        return cast("Rows", self._other(key)) if isinstance(lane, tuple) else lane

    def _other(self, key: Key) -> LaneOps:
        if key not in self._others:
            lane = self._lanes[key]
            self._others[key] = _rows(lane) if isinstance(lane, tuple) else _actions(lane)
        return self._others[key]

    @property
    def rows(self) -> Mapping[Key, Rows]:
        """Every lane as rows."""
        return {key: self.rows_of(key) for key in self._lanes}

    def count(self) -> int:
        """Ops of all lanes together."""
        return sum(map(len, self._lanes.values()))

    def with_lanes(self, changed: Mapping[Key, LaneOps]) -> ColumnLanes:
        """These lanes with some in place of theirs. A lane without ops is left out."""
        lanes = {**self._lanes, **changed}
        made = ColumnLanes({key: lane for key, lane in lanes.items() if len(lane)})
        made._others = {key: lane for key, lane in self._others.items() if key not in changed}
        return made


def as_columns(lanes: Mapping[Key, tuple[Action, ...]]) -> ColumnLanes:
    """The same lanes, kept as rows where that is asked for."""
    return lanes if isinstance(lanes, ColumnLanes) else ColumnLanes(lanes)


def count_ops(lanes: Mapping[Key, tuple[Action, ...]]) -> int:
    """Ops of all lanes together."""
    return as_columns(lanes).count()


def made_rows(
    kind: npt.ArrayLike, stage: npt.ArrayLike, unit: npt.ArrayLike, micro_batch: npt.ArrayLike
) -> Rows:
    """Rows of a program's first step, from their columns."""
    rows = np.zeros((len(np.asarray(kind)), FIELDS), dtype=np.int32)
    for column, numbers in ((KIND, kind), (STAGE, stage), (UNIT, unit), (MICRO_BATCH, micro_batch)):
        rows[:, column] = numbers
    return rows


def of_kinds(rows: Rows, *wanted: Kind) -> npt.NDArray[np.bool_]:
    """Which rows are of one of some kinds."""
    return np.isin(rows[:, KIND], [int(kind) for kind in wanted])


def _rows(actions: tuple[Action, ...]) -> Rows:
    numbers = chain.from_iterable(actions)
    flat = np.fromiter(numbers, dtype=np.int32, count=FIELDS * len(actions))
    return flat.reshape(-1, FIELDS)


def _actions(rows: Rows) -> tuple[Action, ...]:
    known = tuple(Kind)
    kind, *rest = cast("list[list[int]]", rows.T.tolist())
    return tuple(map(Action, map(known.__getitem__, kind), *rest))
