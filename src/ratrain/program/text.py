"""The text form: a program as a person reads it, which parses back to an equal program.

    ratrain program 1
    passes 1f1b recover-at-backward
    sharding 2
    ...
    unit a 404_766_720 809_533_440 ...          one line per kind of unit: its bytes
    replica 0 micro_batches 8 count 16
    stage 0 rank 0 recovery none output_bytes 20_971_520 units a:e b:0..3
    stage 1..14 rank 1..14 recovery none output_bytes 20_971_520 units b:4..59
    rank 0 compute 0.0F0 0.1F0 ...              one line per rank and lane

`b:4..59` are units named 4 to 59, each of kind b; stages written on one line share them evenly.
`#` starts a comment. Fields of the header that are left out have their defaults. Names with
characters that the form needs itself are written with %-escapes; `%` alone is the empty name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from ratrain.errors import ProgramError
from ratrain.program.actions import WHOLE_STAGE, Action, Lane, format_action, parse_action
from ratrain.program.program import Program
from ratrain.program.setup import Accumulation, Recovery, Replica, Setup, Stage, Unit

T = TypeVar("T")
FORMAT, VERSION = "ratrain program", 1
SIZES = ("view_bytes", "gradient_bytes", "optimizer_bytes", "input_bytes", "saved_bytes")
FLAGS = ("recoverable", "head")
"""The columns of a unit line: sizes, then yes or no."""
WHERE_SET = ("tied", "sequence_parallel")
"""Fields of the header that are written where they are yes."""
WHERE_ANY = ("scratch_bytes", "scores_bytes")
"""Last columns, as far as any unit has some."""


# ---- writing ----------------------------------------------------------------------------


def write_text(program: Program) -> str:
    """The program as text, with one line feed at its end."""
    kinds = _kinds(program.setup)
    lines = [f"{FORMAT} {VERSION}", " ".join(["passes", *map(_name, program.passes)])]
    for field in fields(program.setup):
        value = getattr(program.setup, field.name)
        if field.name != "replicas" and (value or field.name not in WHERE_SET):
            lines.append(f"{field.name} {_value(value)}")
    lines += ["", *_unit_lines(kinds)]
    for number, replica in enumerate(program.setup.replicas):
        counts = f"micro_batches {replica.micro_batches} count {replica.count}"
        lines += ["", f"replica {number} {counts}", *_stage_lines(replica, kinds)]
    last_rank = -1
    for rank, lane in sorted(program.lanes):
        if rank != last_rank:
            lines.append("")
        last_rank = rank
        lines.append(f"rank {rank} {lane.word:<8}" + "".join(_words(program, rank, lane)))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _words(program: Program, rank: int, lane: Lane) -> Iterator[str]:
    setup = program.setup
    stages = setup.replicas[setup.replica_of(rank)].stages if 0 <= rank < setup.ranks else ()
    units = [len(stage.units) for stage in stages]
    for action in program.lane(rank, lane):
        inside = action.stage < len(units) and action.unit == 0
        yield f" {format_action(action, units[action.stage] if inside else 2)}"


def _kinds(setup: Setup) -> dict[Unit, str]:
    """A letter for each sort of unit: the same bytes, whatever the name."""
    sorts = dict.fromkeys(_nameless(u) for r in setup.replicas for s in r.stages for u in s.units)
    return {
        unit: chr(ord("a") + number) if number < 26 else f"u{number}"
        for number, unit in enumerate(sorts)
    }


def _nameless(unit: Unit) -> Unit:
    return replace(unit, name="")


def _unit_lines(kinds: dict[Unit, str]) -> list[str]:
    columns = [*SIZES, *FLAGS]
    some = [any(getattr(unit, name) for unit in kinds) for name in WHERE_ANY]
    columns += WHERE_ANY[: len(some) - some[::-1].index(True)] if any(some) else ()
    rows = [["#", "kind", *columns]]
    for unit, kind in kinds.items():
        rows.append(["unit", kind, *(_value(getattr(unit, name)) for name in columns)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        " ".join(cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    ]


def _stage_lines(replica: Replica, kinds: dict[Unit, str]) -> Iterator[str]:
    rows: list[list[str]] = []
    for first, last in _equal_stages(replica.stages):
        stage = replica.stages[first]
        units = [unit for one in replica.stages[first : last + 1] for unit in one.units]
        rows.append(
            [
                f"stage {_span(first, last)}",
                f"rank {_span(stage.rank, stage.rank + last - first)}",
                f"recovery {stage.recovery}",
                f"output_bytes {stage.output_bytes:_}",
                "units " + " ".join(_named(units, kinds)),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))


def _equal_stages(stages: tuple[Stage, ...]) -> Iterator[tuple[int, int]]:
    """(first, last) of each run of stages that differ in nothing but consecutive numbers."""
    first = 0
    for number in range(1, len(stages) + 1):
        if number == len(stages) or not _follows(stages[number - 1], stages[number]):
            yield first, number - 1
            first = number


def _follows(stage: Stage, other: Stage) -> bool:
    alike = replace(other, rank=stage.rank, units=stage.units) == stage
    units = [*stage.units, *other.units]
    return (
        alike
        and other.rank == stage.rank + 1
        and len(other.units) == len(stage.units)
        and all(_next_name(one, two) for one, two in pairwise(units))
    )


def _next_name(unit: Unit, other: Unit) -> bool:
    """Whether `other` is alike and named by the number that follows."""
    if _nameless(unit) != _nameless(other) or not re.fullmatch(r"0|[1-9][0-9]*", unit.name):
        return False
    return other.name == str(int(unit.name) + 1)


def _named(units: list[Unit], kinds: dict[Unit, str]) -> Iterator[str]:
    first = 0
    for number in range(1, len(units) + 1):
        if number == len(units) or not _next_name(units[number - 1], units[number]):
            names = _name(units[first].name)
            if number - 1 > first:
                names += f"..{units[number - 1].name}"
            yield f"{kinds[_nameless(units[first])]}:{names}"
            first = number


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}..{last}"


def _value(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:_}" if isinstance(value, int) else _name(str(value))


def _name(name: str) -> str:
    escaped = quote(name, safe="+/()[]=@")
    return (escaped.replace(".", "%2E") if ".." in escaped else escaped) or "%"


# ---- reading ----------------------------------------------------------------------------


def read_text(text: str, place: str = "") -> Program:
    """The program that a text stands for; a `ProgramError` names `place`, the line and the word."""
    reader = _Reader(place)
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            reader.read(number, words)
    return reader.program()


class _Reader:
    """What has been read so far. Lives while one text is read."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._line = 0
        self._started = False
        self._passes: tuple[str, ...] = ()
        self._header: dict[str, Any] = {}
        self._kinds: dict[str, Unit] = {}
        self._replicas: list[tuple[int, int, list[Stage]]] = []
        self._lanes: dict[tuple[int, Lane], tuple[Action, ...]] = {}
        self._known: dict[str, Action] = {}

    def read(self, number: int, words: list[str]) -> None:
        """Takes one line in."""
        self._line = number
        first, *rest = words
        if not self._started:
            self._start(words)
        elif first == "rank":
            self._lane(rest)
        elif first == "stage":
            self._stage(rest)
        elif first == "unit":
            self._unit(rest)
        elif first == "replica":
            self._replica(rest)
        elif first == "passes":
            self._passes = tuple(_unname(word) for word in rest)
        elif first in _HEADER:
            self._field(first, rest)
        else:
            known = ", ".join(["passes", *_HEADER, "unit", "replica", "stage", "rank"])
            raise self._wrong(f"{first!r} starts no line of a program", f"use one of {known}")

    def program(self) -> Program:
        """What all the lines say together."""
        if not self._started:
            raise ProgramError(
                "the text is empty", place=self._file, fix=f"start it with {FORMAT} {VERSION}"
            )
        replicas = tuple(Replica(tuple(s), m, count) for m, count, s in self._replicas)
        if not replicas:
            raise ProgramError("the program has no replica", place=self._file, fix="add one")
        try:
            setup = Setup(replicas, **self._header)
        except ProgramError as error:
            raise ProgramError(error.what, place=self._file, fix=error.fix) from None
        return Program(setup, self._lanes, self._passes)

    def _wrong(self, what: str, fix: str = "") -> ProgramError:
        line = f"line {self._line}"
        return ProgramError(what, place=f"{self._file}, {line}" if self._file else line, fix=fix)

    def _start(self, words: list[str]) -> None:
        name, version = " ".join(words[:-1]), words[-1]
        if name != FORMAT:
            raise self._wrong("this is not a program's text", f"start it with {FORMAT} {VERSION}")
        if version != str(VERSION):
            raise self._wrong(f"version {version} of the format is not known", f"use {VERSION}")
        self._started = True

    def _field(self, name: str, rest: list[str]) -> None:
        if len(rest) != 1:
            raise self._wrong(f"{name} takes one value, not {len(rest)}")
        if name in self._header:
            raise self._wrong(f"{name} is given twice", "leave one of them out")
        self._header[name] = self._parsed(name, rest[0], _HEADER[name])

    def _unit(self, rest: list[str]) -> None:
        names = (*SIZES, *FLAGS)
        names += WHERE_ANY[: max(0, len(rest) - len(names) - 1)]
        if len(rest) != len(names) + 1:
            columns = " ".join(["kind", *names])
            raise self._wrong(f"a unit has {len(names) + 1} values, not {len(rest)}", columns)
        kind, *words = rest
        if kind in self._kinds:
            raise self._wrong(f"unit {kind} is described twice", "use another letter")
        values: dict[str, Any] = {
            name: self._parsed(name, word, _flag if name in FLAGS else _count)
            for name, word in zip(names, words, strict=True)
        }
        self._kinds[kind] = Unit("", **values)

    def _replica(self, rest: list[str]) -> None:
        number, values = rest[0] if rest else "", self._pairs(rest[1:], "micro_batches", "count")
        if number != str(len(self._replicas)):
            raise self._wrong(f"replica {number!r}, where {len(self._replicas)} comes next")
        micro_batches, count = (self._parsed(*value, _count) for value in values.items())
        self._replicas.append((micro_batches, count, []))

    def _stage(self, rest: list[str]) -> None:
        if not self._replicas:
            raise self._wrong("a stage stands before any replica", "write a replica line first")
        stages = self._replicas[-1][2]
        cut = rest.index("units") if "units" in rest else len(rest)
        values = self._pairs(rest[1:cut], "rank", "recovery", "output_bytes")
        numbers = self._span("stage", rest[0] if rest else "")
        ranks = self._span("rank", values["rank"])
        if numbers.start != len(stages):
            raise self._wrong(f"stage {numbers.start}, where {len(stages)} comes next")
        units = [unit for word in rest[cut + 1 :] for unit in self._units(word)]
        if len(ranks) != len(numbers) or len(units) % len(numbers) or not units:
            raise self._wrong(
                f"{len(numbers)} stages cannot share {len(ranks)} ranks and {len(units)} units",
                "write one line for each stage",
            )
        recovery = self._parsed("recovery", values["recovery"], Recovery)
        output = self._parsed("output_bytes", values["output_bytes"], _count)
        per_stage = len(units) // len(numbers)
        for index, rank in enumerate(ranks):
            own = tuple(units[index * per_stage : (index + 1) * per_stage])
            stages.append(Stage(rank, own, output, recovery))

    def _units(self, word: str) -> Iterable[Unit]:
        kind, colon, names = word.partition(":")
        if not colon or kind not in self._kinds:
            raise self._wrong(f"{word!r} names no kind of unit", "write e.g. a:e or b:0..3")
        described = self._kinds[kind]
        if ".." not in names:
            return [replace(described, name=_unname(names))]
        return [replace(described, name=str(n)) for n in self._span("units", names)]

    def _lane(self, rest: list[str]) -> None:
        if len(rest) < 2:
            raise self._wrong("a rank line names a rank and a lane", "write e.g. rank 0 compute")
        rank = self._parsed("rank", rest[0], _count)
        lane = _LANES.get(rest[1])
        if lane is None:
            raise self._wrong(f"{rest[1]!r} names no lane", f"use one of {', '.join(_LANES)}")
        if (rank, lane) in self._lanes:
            raise self._wrong(f"rank {rank} {lane.word} is given twice", "join the two lines")
        known = self._known
        for word in rest[2:]:
            if word not in known:
                known[word] = self._action(word)
        self._lanes[rank, lane] = tuple([known[word] for word in rest[2:]])

    def _action(self, word: str) -> Action:
        try:
            action = parse_action(word)
        except ProgramError as error:
            raise self._wrong(error.what, error.fix) from None
        if action.unit and action.kind in WHOLE_STAGE:
            raise self._wrong(f"{word!r}: {action.kind.name} concerns a whole stage, not one unit")
        return action

    def _pairs(self, words: list[str], *names: str) -> dict[str, str]:
        """`name value name value`, exactly these names in this order."""
        if tuple(words[::2]) != names or len(words) != 2 * len(names):
            raise self._wrong(
                f"{' '.join(words) or 'nothing'!r} stands where {' '.join(names)} should",
                " ".join(f"{name} ..." for name in names),
            )
        return dict(zip(names, words[1::2], strict=True))

    def _span(self, name: str, word: str) -> range:
        first, dots, last = word.partition("..")
        start = self._parsed(name, first, _count)
        stop = self._parsed(name, last, _count) if dots else start
        if stop < start:
            raise self._wrong(f"{name} {word} runs backwards")
        return range(start, stop + 1)

    def _parsed(self, name: str, word: str, parse: Callable[[str], T]) -> T:
        try:
            return parse(word)
        except ValueError:
            raise self._wrong(f"{word!r} is no value for {name}", _FIX.get(parse, "")) from None


def _count(word: str) -> int:
    if not re.fullmatch(r"[0-9][0-9_]*", word):
        raise ValueError(word)
    return int(word)


def _count_or_none(word: str) -> int | None:
    return None if word == "none" else _count(word)


def _flag(word: str) -> bool:
    if word not in ("yes", "no"):
        raise ValueError(word)
    return word == "yes"


def _unname(word: str) -> str:
    return "" if word == "%" else unquote(word)


_LANES = {lane.word: lane for lane in Lane}
_HEADER: dict[str, Callable[[str], object]] = {
    "tensor": _count,
    "sharding": _count,
    "accumulation": Accumulation,
    "split_backward": _flag,
    "recovery_buffer": _count,
    "transit_slots": _count,
    "bucket_bytes": _count_or_none,
    "budget_bytes": _count_or_none,
    "tier": _unname,
    "tied": _flag,
    "sequence_parallel": _flag,
}
_FIX: dict[Callable[[str], object], str] = {
    _count: "write a whole number, e.g. 404_766_720",
    _count_or_none: "write a whole number or none",
    _flag: "write yes or no",
    Accumulation: f"use one of {', '.join(Accumulation)}",
    Recovery: f"use one of {', '.join(Recovery)}",
}
