"""The timeline: one format for predicted and measured runs, written and read as a file.

The file is JSON: a header, then columns. `spans` has one row an op that ran: step, rank, lane,
word (as in a program's text), start and end in seconds. `memory` has one curve a rank and tier:
bytes from each time on.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ratrain.errors import TimelineError

FORMAT = "ratrain-timeline"
VERSION = 1

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


def write_whole(path: Path, text: str) -> None:
    """Writes a file under another name and renames it, so that no half file is ever seen."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise TimelineError(
            f"cannot be written: {error.strerror}",
            place=str(path),
            fix="name a folder that exists and has room",
        ) from error


def read_timeline(path: Path) -> Timeline:
    """The timeline of a file; a `TimelineError` says what is wrong with it."""
    try:
        body = cast(dict[str, Any], json.loads(path.read_text()))
        if body.get("format") != FORMAT or body.get("version") != VERSION:
            raise TimelineError(
                f"is not a {FORMAT} file of version {VERSION}",
                place=str(path),
                fix="write it anew with this version of ratrain",
            )
        rows = zip(*(_column(body["spans"], key) for key in _COLUMNS), strict=True)
        return Timeline(
            source=str(body["source"]),
            spans=tuple(Span(*row) for row in rows),
            memory=tuple(
                MemoryCurve(c["rank"], c["tier"], *(tuple(_column(c, key)) for key in _CURVE))
                for c in body["memory"]
            ),
        )
    except OSError as error:
        raise TimelineError(f"cannot be read: {error.strerror}", place=str(path)) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TimelineError(
            f"is damaged ({type(error).__name__}: {error})",
            place=str(path),
            fix="write it anew",
        ) from error


def _column(columns: dict[str, Any], key: str) -> list[Any]:
    """A column of a file, all of the type that it must have."""
    types = _CURVE.get(key) or _COLUMNS[key]
    column = columns[key]
    for row, value in enumerate(column):
        if type(value) not in types:
            raise TypeError(f"{key} of row {row} is {value!r}")
    return column
