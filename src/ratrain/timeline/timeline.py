"""The timeline: one format for predicted and measured runs, written and read as a file.

The file is JSON: a header, then columns. `spans` has one row an op that ran: step, rank, lane,
word (as in a program's text), start and end in seconds. `memory` has one curve a rank and tier:
bytes from each time on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from ratrain.describe.amounts import Name
from ratrain.describe.strict import load
from ratrain.errors import SpecError, TimelineError
from ratrain.readers.files import shown
from ratrain.readers.json import as_table, read_json_table
from ratrain.readers.limits import TIMELINE_BYTES
from ratrain.readers.place import Place
from ratrain.readers.writing import write_whole

FORMAT = "ratrain-timeline"
VERSION = 1
_MOST = 10**15
"""No second, byte or number of a rank is more."""

Kinds = tuple[type[Any], ...]
"""Types that the values of a column may have."""

_CURVE = {"time_s": (int, float), "size_bytes": (int,)}
_COLUMNS = {
    "step": (int,),
    "rank": (int,),
    "lane": (str,),
    "word": (str,),
    "start_s": (int, float),
    "end_s": (int, float),
}


@dataclass(frozen=True, slots=True)
class Span:
    """One op that ran."""

    step: int
    rank: int
    lane: str
    word: str
    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class MemoryCurve:
    """A rank's bytes in one tier, from each time on until the next."""

    rank: int
    tier: str
    time_s: tuple[float, ...]
    size_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Timeline:
    """Spans and memory of a run. `source` is "simulate" or "runtime"."""

    source: str
    spans: tuple[Span, ...]
    memory: tuple[MemoryCurve, ...] = ()


def write_timeline(timeline: Timeline, path: Path) -> None:
    """Writes the file; complete or, if writing fails, absent."""
    columns = {
        "step": [span.step for span in timeline.spans],
        "rank": [span.rank for span in timeline.spans],
        "lane": [span.lane for span in timeline.spans],
        "word": [span.word for span in timeline.spans],
        "start_s": [span.start_s for span in timeline.spans],
        "end_s": [span.end_s for span in timeline.spans],
    }
    memory = [
        {"rank": c.rank, "tier": c.tier, "time_s": c.time_s, "size_bytes": c.size_bytes}
        for c in timeline.memory
    ]
    body = {
        "format": FORMAT,
        "version": VERSION,
        "source": timeline.source,
        "spans": columns,
        "memory": memory,
    }
    write_whole(path, json.dumps(body))


def read_timeline(path: Path) -> Timeline:
    """The timeline of a file; a `TimelineError` says what is wrong with it."""
    try:
        table, place = read_json_table(path, TIMELINE_BYTES)
        if table.get("format") != FORMAT or table.get("version") != VERSION:
            raise SpecError(
                f"is not a {FORMAT} file of version {VERSION}",
                place=str(path),
                fix="write it again with this version of ratrain",
            )
        file = load(_File, table, place)
        columns = _columns(file.spans, _COLUMNS, place.at("spans"))
        _check_times(columns[-2], columns[-1], place.at("spans", "end_s"))
        spans = tuple(Span(*row) for row in zip(*columns, strict=True))
        return Timeline(file.source, spans, tuple(_curves(file.memory, place.at("memory"))))
    except SpecError as error:
        raise TimelineError(
            error.what, place=error.place, fix=error.fix, more=error.more
        ) from error


@dataclass(frozen=True)
class _File:
    format: Literal["ratrain-timeline"]
    version: Literal[1]
    source: Name
    spans: Any
    memory: Any


def _curves(rows: Any, place: Place) -> Iterator[MemoryCurve]:
    if not isinstance(rows, list):
        raise _wrong(f"{shown(rows)} is not a list", place)
    for number, row in enumerate(cast("list[Any]", rows)):
        curve, here = as_table(row, place.at(number))
        rank, tier = curve.get("rank"), curve.get("tier")
        if type(rank) is not int or not 0 <= rank < _MOST:
            raise _wrong(f"{shown(rank)} is not a rank", here.at("rank"))
        if not isinstance(tier, str):
            raise _wrong(f"{shown(tier)} is not a tier", here.at("tier"))
        time_s, size_bytes = _columns(curve, _CURVE, here)
        yield MemoryCurve(rank, tier, tuple(time_s), tuple(size_bytes))


def _columns(value: Any, kinds: Mapping[str, Kinds], place: Place) -> list[list[Any]]:
    """The columns of a table, in the order of `kinds`: equally long, each value of its kind."""
    table, _ = as_table(value, place)
    columns = [_column(table.get(key), kind, place.at(key)) for key, kind in kinds.items()]
    for key, column in zip(kinds, columns, strict=True):
        if len(column) != len(columns[0]):
            raise _wrong(
                f"has {len(column)} rows, {next(iter(kinds))} has {len(columns[0])}", place.at(key)
            )
    return columns


def _column(column: Any, types: Kinds, place: Place) -> list[Any]:
    if not isinstance(column, list):
        raise _wrong(f"{shown(column)} is not a list", place)
    for row, value in enumerate(cast("list[Any]", column)):
        kind = cast("type[Any]", type(value))
        if kind not in types or (kind is not str and not -_MOST < value < _MOST):
            raise _wrong(f"{shown(value)} is not allowed there", place.at(row))
        if kind is int and float not in types and value < 0:
            raise _wrong(f"{value} is below 0", place.at(row))
    return cast("list[Any]", column)


def _check_times(starts_s: list[float], ends_s: list[float], place: Place) -> None:
    for row, (start_s, end_s) in enumerate(zip(starts_s, ends_s, strict=True)):
        if end_s < start_s:
            raise _wrong(f"an op ends at {end_s} s and begins at {start_s} s", place.at(row))


def _wrong(what: str, place: Place) -> SpecError:
    return SpecError(what, place=str(place), fix="write it again: this file is damaged")
