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
A stage of several members has a line for each, with the micro-batches that it `serves`. A member's
`tensor` degree is written where the header's is not everybody's. Of a long program that repeats
itself the text is short: `repeats 2 998` says that what is in each lane between `(` and `)` is
there 998 times more, each time with micro-batches that are 2 later.
`#` starts a comment. Fields of the header that are left out have their defaults. Names with
characters that the form needs itself are written with %-escapes; `%` alone is the empty name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any, TypeVar, cast
from urllib.parse import quote, unquote

from ratrain.errors import ProgramError
from ratrain.program.actions import Action, format_action, parse_action
from ratrain.program.kind import Lane
from ratrain.program.program import Program
from ratrain.program.repeating import Middle, Repeating, checked
from ratrain.program.setup import (
    Accumulation,
    Budget,
    Member,
    Recovery,
    Replica,
    Setup,
    Stage,
    Unit,
)
from ratrain.readers.files import shown
from ratrain.readers.numbers import whole

T = TypeVar("T")
FORMAT, VERSION = "ratrain program", 1
SIZES = ("view_bytes", "gradient_bytes", "optimizer_bytes", "input_bytes", "saved_bytes")
FLAGS = ("recoverable", "head")
"""The columns of a unit line: sizes, then yes or no."""
WHERE_SET = (
    "tied",
    "sequence_parallel",
    "arrival_places",
    "gathers_per_pass",
    "averages",
    "forward_only",
    "backward_sends",
    "notes",
)
"""Fields of the header that are written where they are yes, or not empty."""
ELSEWHERE = ("replicas", "budgets")
"""Fields of the setup that have lines of their own."""
WHERE_ANY = ("scratch_bytes", "scores_bytes")
"""Last columns, as far as any unit has some."""
MOST_BYTES, MOST_COUNT, MOST_UNITS = 1 << 53, 1_000_000, 200_000
"""The largest size, number of anything, and number of units that are read."""


# ---- writing ----------------------------------------------------------------------------


def write_text(program: Program | Repeating) -> str:
    """The program as text, with one line feed at its end."""
    if isinstance(program, Repeating):
        return _written(program.short, program)
    return _written(program, None)


def _written(program: Program, long: Repeating | None) -> str:
    kinds = _kinds(program.setup)
    lines = [f"{FORMAT} {VERSION}", " ".join(["passes", *map(_name, program.passes)])]
    tensor = _common_tensor(program.setup)
    lines += [f"tensor {tensor}", *_header_lines(program.setup)]
    lines += [f"repeats {long.stride} {long.times}"] if long else []
    lines += ["", *_unit_lines(kinds)]
    for number, replica in enumerate(program.setup.replicas):
        counts = f"micro_batches {replica.micro_batches} count {replica.count}"
        lines += ["", f"replica {number} {counts}", *_stage_lines(replica, kinds, tensor)]
    last_rank = -1
    for rank, lane in sorted(program.lanes):
        if rank != last_rank:
            lines.append("")
        last_rank = rank
        words = list(_words(program, rank, lane))
        middle = long.middles[rank, lane] if long else None
        if middle:
            words.insert(middle.end, " )")
            words.insert(middle.begin, " (")
        lines.append(f"rank {rank} {lane.word:<8}" + "".join(words))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _common_tensor(setup: Setup) -> int:
    """Every member's tensor degree, where they agree."""
    degrees = {member.tensor for member in setup.members}
    return degrees.pop() if len(degrees) == 1 else 1


def _header_lines(setup: Setup) -> Iterator[str]:
    for field in fields(setup):
        value = getattr(setup, field.name)
        written = bool(value) if field.name in WHERE_SET else value != 1 or field.name != "period"
        if field.name not in ELSEWHERE and written:
            yield f"{field.name} {_value(value)}"
    for budget in setup.budgets:
        ranks = _span(budget.first_rank, budget.last_rank)
        yield f"budget {ranks} {_name(budget.tier)} {budget.size_bytes:_}"


def _words(program: Program, rank: int, lane: Lane) -> Iterator[str]:
    setup = program.setup
    stages = setup.replicas[setup.replica_of(rank)].stages if 0 <= rank < setup.ranks else ()
    units = [len(stage.names) for stage in stages]
    for action in program.lane(rank, lane):
        inside = action.stage < len(units) and action.unit == 0
        yield f" {format_action(action, units[action.stage] if inside else 2)}"


def _kinds(setup: Setup) -> dict[Unit, str]:
    """A letter for each sort of unit: the same bytes, whatever the name."""
    sorts = dict.fromkeys(_nameless(unit) for member in setup.members for unit in member.units)
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


def _stage_lines(replica: Replica, kinds: dict[Unit, str], tensor: int) -> Iterator[str]:
    rows: list[list[str]] = []
    for first, last in _equal_stages(replica.stages):
        for place, member in enumerate(replica.stages[first].members):
            units = [
                unit
                for stage in replica.stages[first : last + 1]
                for unit in stage.members[place].units
            ]
            rows.append(
                [
                    f"stage {_span(first, last)}",
                    f"rank {_span(member.rank, member.rank + last - first)}",
                    f"recovery {member.recovery}",
                    f"output_bytes {member.output_bytes:_}",
                    *_where_it_differs(member, tensor),
                    "units " + " ".join(_named(units, kinds)),
                ]
            )
    widths = _column_widths(rows)
    for row in rows:
        yield " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))


def _where_it_differs(member: Member, tensor: int) -> Iterator[str]:
    if member.tensor != tensor:
        yield f"tensor {member.tensor}"
    if member.serves is not None:
        yield f"serves {_list(member.serves)}"
    if member.offloads:
        yield "offloads yes"


def _column_widths(rows: list[list[str]]) -> list[int]:
    """Of the columns that all rows have; where rows differ, the last ones stand as wide as they
    are."""
    shared = min(map(len, rows)) if len({len(row) for row in rows}) == 1 else 4
    widths = [max(map(len, column)) for column in zip(*(row[:shared] for row in rows), strict=True)]
    return widths + [0] * (max(map(len, rows)) - shared)


def _list(numbers: Sequence[int]) -> str:
    """0,1,2,7 as 0..2,7."""
    parts: list[str] = []
    first = 0
    for place in range(1, len(numbers) + 1):
        if place == len(numbers) or numbers[place] != numbers[place - 1] + 1:
            parts.append(_span(numbers[first], numbers[place - 1]))
            first = place
    return ",".join(parts)


def _equal_stages(stages: tuple[Stage, ...]) -> Iterator[tuple[int, int]]:
    """(first, last) of each run of stages that differ in nothing but consecutive numbers."""
    first = 0
    for number in range(1, len(stages) + 1):
        if number == len(stages) or not _follows(stages[number - 1], stages[number]):
            yield first, number - 1
            first = number


def _follows(stage: Stage, other: Stage) -> bool:
    """Whether the other stage is one member like this one's, a rank further."""
    if len(stage.members) != 1 or len(other.members) != 1:
        return False
    here, there = stage.only, other.only
    alike = replace(there, rank=here.rank, units=here.units) == here
    units = [*here.units, *there.units]
    return (
        alike
        and there.rank == here.rank + 1
        and len(there.units) == len(here.units)
        and all(_next_name(unit, following) for unit, following in pairwise(units))
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
    if isinstance(value, tuple):
        return ",".join(map(_name, cast("tuple[str, ...]", value)))
    return f"{value:_}" if isinstance(value, int) else _name(str(value))


def _name(name: str) -> str:
    escaped = quote(name, safe="+/()[]=@")
    return (escaped.replace(".", "%2E") if ".." in escaped else escaped) or "%"


# ---- reading ----------------------------------------------------------------------------


def read_text(text: str, place: str = "") -> Program:
    """The program that a text stands for, written out; a `ProgramError` names `place`, the line and
    the word."""
    program = read_any(text, place)
    return program.written_out() if isinstance(program, Repeating) else program


def read_any(text: str, place: str = "") -> Program | Repeating:
    """The program that a text stands for, long ones as short as their text."""
    reader = _Reader(place)
    for number, line in enumerate(text.split("\n"), start=1):
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
        self._tensor = 1
        self._budgets: list[Budget] = []
        self._replicas: list[tuple[int, int, list[list[Member]]]] = []
        self._lanes: dict[tuple[int, Lane], tuple[Action, ...]] = {}
        self._known: dict[str, Action] = {}
        self._repeats: tuple[int, int] | None = None
        self._middles: dict[tuple[int, Lane], Middle] = {}
        self._units_read = 0

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
        elif first == "tensor":
            self._tensor = self._parsed("tensor", " ".join(rest), _count)
        elif first == "budget":
            self._budget(rest)
        elif first == "repeats":
            self._repetition(rest)
        elif first in _HEADER:
            self._field(first, rest)
        else:
            lines = ["passes", "tensor", *_HEADER, "budget", "repeats", "unit", "replica"]
            known = ", ".join([*lines, "stage", "rank"])
            raise self._wrong(
                f"{shown(first)} does not start any line of a program", f"use one of {known}"
            )

    def program(self) -> Program | Repeating:
        """What all the lines say together."""
        if not self._started:
            raise ProgramError(
                "the text is empty", place=self._file, fix=f"start it with {FORMAT} {VERSION}"
            )
        replicas = tuple(
            Replica(tuple(Stage(tuple(members)) for members in stages), micro_batches, count)
            for micro_batches, count, stages in self._replicas
        )
        if not replicas:
            raise ProgramError(
                "the program has no replica",
                place=self._file,
                fix="add a line such as: replica 0 micro_batches 8 count 1",
            )
        try:
            setup = Setup(replicas, **self._header, budgets=tuple(self._budgets))
        except ProgramError as error:
            raise ProgramError(error.what, place=self._file, fix=error.fix) from None
        self._check_enough(setup)
        program = Program(setup, self._lanes, self._passes)
        return program if self._repeats is None else self._long(program, *self._repeats)

    def _long(self, short: Program, stride: int, times: int) -> Repeating:
        most = max(replica.micro_batches for replica in short.setup.replicas) + stride * times
        if most > MOST_COUNT:
            raise ProgramError(
                f"with its repeats it has {most:,} micro-batches; at most {MOST_COUNT:,} are read",
                place=self._file,
                fix="correct the line that starts with repeats",
            )
        try:
            return checked(Repeating(short, self._middles, stride, times))
        except ProgramError as error:
            raise ProgramError(error.what, place=self._file, fix=error.fix) from None

    def _check_enough(self, setup: Setup) -> None:
        """Refuses ops of a few micro-batches under a header of very many: each needs an op."""
        ops = sum(map(len, self._lanes.values()))
        most = max(replica.micro_batches for replica in setup.replicas)
        if self._lanes and ops < most:
            raise ProgramError(
                f"{most:,} micro-batches, and {ops:,} ops in all",
                place=self._file,
                fix="correct micro_batches in the replica line, or write all ops",
            )

    def _wrong(self, what: str, fix: str) -> ProgramError:
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
            raise self._wrong(f"{name} takes one value, not {len(rest)}", f"write {name} VALUE")
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
            raise self._wrong(f"unit {shown(kind)} is described twice", "use another letter")
        values: dict[str, Any] = {
            name: self._parsed(name, word, _flag if name in FLAGS else _size)
            for name, word in zip(names, words, strict=True)
        }
        self._kinds[kind] = Unit("", **values)

    def _replica(self, rest: list[str]) -> None:
        number, values = rest[0] if rest else "", self._pairs(rest[1:], "micro_batches", "count")
        if number != str(len(self._replicas)):
            expected = len(self._replicas)
            raise self._wrong(
                f"replica {shown(number)}, where {expected} comes next", f"write {expected}"
            )
        micro_batches, count = (self._parsed(*value, _count) for value in values.items())
        self._replicas.append((micro_batches, count, []))

    def _stage(self, rest: list[str]) -> None:
        if not self._replicas:
            raise self._wrong("a stage appears before any replica", "write a replica line first")
        stages = self._replicas[-1][2]
        cut = rest.index("units") if "units" in rest else len(rest)
        values = self._pairs(rest[1:7], "rank", "recovery", "output_bytes")
        further = self._further(rest[7:cut])
        numbers = self._span("stage", rest[0] if rest else "")
        ranks = self._span("rank", values["rank"])
        beside = (
            numbers == range(len(stages) - 1, len(stages)) and further.get("serves") is not None
        )
        if numbers.start != len(stages) and not beside:
            raise self._wrong(
                f"stage {numbers.start}, where {len(stages)} comes next", f"write {len(stages)}"
            )
        units = [unit for word in rest[cut + 1 :] for unit in self._units(word)]
        if len(ranks) != len(numbers) or len(units) % len(numbers) or not units:
            raise self._wrong(
                f"{len(numbers)} stages cannot share {len(ranks)} ranks and {len(units)} units",
                "write one line for each stage",
            )
        recovery = self._parsed("recovery", values["recovery"], Recovery)
        output = self._parsed("output_bytes", values["output_bytes"], _size)
        per_stage = len(units) // len(numbers)
        for index, rank in enumerate(ranks):
            held = tuple(units[index * per_stage : (index + 1) * per_stage])
            further.setdefault("tensor", self._tensor)
            member = Member(rank, held, output, recovery, **further)
            if beside:
                stages[-1].append(member)
            else:
                stages.append([member])

    def _further(self, words: list[str]) -> dict[str, Any]:
        """What a stage line says of its member besides what all of them say."""
        values: dict[str, Any] = {}
        for name, word in zip(words[::2], [*words[1::2], ""], strict=False):
            if name not in _MEMBER or name in values:
                known = ", ".join(_MEMBER)
                raise self._wrong(
                    f"{shown(name)} is not a property of a stage", f"use one of {known}"
                )
            values[name] = self._parsed(name, word, _MEMBER[name])
        return values

    def _repetition(self, rest: list[str]) -> None:
        if self._repeats is not None:
            raise self._wrong("repeats is given twice", "leave one of them out")
        if len(rest) != 2:
            raise self._wrong(
                f"repeats takes micro-batches and times, not {len(rest)} words",
                "write e.g. repeats 1 998",
            )
        stride, times = (self._parsed("repeats", word, _count) for word in rest)
        self._repeats = stride, times

    def _budget(self, rest: list[str]) -> None:
        if len(rest) != 3:
            raise self._wrong(
                "a budget names ranks, a tier and bytes", "write e.g. budget 0..3 memory 8_000"
            )
        ranks = self._span("budget", rest[0])
        size = self._parsed("budget", rest[2], _size)
        self._budgets.append(Budget(ranks.start, ranks.stop - 1, _unname(rest[1]), size))

    def _units(self, word: str) -> Iterable[Unit]:
        kind, colon, names = word.partition(":")
        if not colon or kind not in self._kinds:
            raise self._wrong(
                f"{shown(word)} does not name a kind of unit", "write e.g. a:e or b:0..3"
            )
        described = self._kinds[kind]
        span = self._span("units", names) if ".." in names else None
        self._units_read += len(span) if span else 1
        if self._units_read > MOST_UNITS:
            raise self._wrong(
                f"more than {MOST_UNITS:,} units", "divide the model into fewer units"
            )
        if span is None:
            return [replace(described, name=_unname(names))]
        return [replace(described, name=str(n)) for n in span]

    def _lane(self, rest: list[str]) -> None:
        if len(rest) < 2:
            raise self._wrong("a rank line names a rank and a lane", "write e.g. rank 0 compute")
        rank = self._parsed("rank", rest[0], _count)
        lane = _LANES.get(rest[1])
        if lane is None:
            raise self._wrong(
                f"{shown(rest[1])} does not name a lane", f"use one of {', '.join(_LANES)}"
            )
        if (rank, lane) in self._lanes:
            raise self._wrong(f"rank {rank} {lane.word} is given twice", "join the two lines")
        words = rest[2:]
        begin, end = self._marks(words)
        self._middles[rank, lane] = Middle(begin, end)
        known = self._known
        for word in words:
            if word not in known:
                known[word] = self._action(word)
        self._lanes[rank, lane] = tuple([known[word] for word in words])

    def _marks(self, words: list[str]) -> tuple[int, int]:
        """Where the middle of a lane lies; its marks are taken out of the words."""
        if "(" not in words and ")" not in words:
            return 0, 0
        if words.count("(") != 1 or words.count(")") != 1 or words.index("(") > words.index(")"):
            raise self._wrong(
                "a lane's middle is enclosed in one ( and one )", "write each of them once"
            )
        if self._repeats is None:
            raise self._wrong(
                "a middle is marked, and no line above says how often it repeats",
                "write e.g. repeats 1 998 above the first rank line, or remove ( and )",
            )
        begin = words.index("(")
        words.remove("(")
        end = words.index(")")
        words.remove(")")
        return begin, end

    def _action(self, word: str) -> Action:
        try:
            action = parse_action(word)
        except ProgramError as error:
            raise self._wrong(error.what, error.fix) from None
        if action.unit and action.kind.whole_stage:
            raise self._wrong(
                f"{shown(word)}: {action.kind.name} concerns a whole stage, not one unit",
                f"leave .{action.unit} out",
            )
        return action

    def _pairs(self, words: list[str], *names: str) -> dict[str, str]:
        """`name value name value`, exactly these names in this order."""
        if tuple(words[::2]) != names or len(words) != 2 * len(names):
            raise self._wrong(
                f"expected {' '.join(names)}, not {shown(' '.join(words) or 'nothing')}",
                " ".join(f"{name} ..." for name in names),
            )
        return dict(zip(names, words[1::2], strict=True))

    def _span(self, name: str, word: str) -> range:
        first, dots, last = word.partition("..")
        start = self._parsed(name, first, _count)
        stop = self._parsed(name, last, _count) if dots else start
        if stop < start:
            raise self._wrong(f"{name} {word} runs backwards", f"write {last}..{first}")
        return range(start, stop + 1)

    def _parsed(self, name: str, word: str, parse: Callable[[str], T]) -> T:
        try:
            return parse(word)
        except ValueError:
            fix = _FIX.get(parse, "write one word")
            raise self._wrong(f"{shown(word)} is not a value for {name}", fix) from None


def _count(word: str) -> int:
    return whole(word, 0, MOST_COUNT)


def _size(word: str) -> int:
    return whole(word, 0, MOST_BYTES)


def _size_or_none(word: str) -> int | None:
    return None if word == "none" else _size(word)


def _flag(word: str) -> bool:
    if word not in ("yes", "no"):
        raise ValueError(word)
    return word == "yes"


def _numbers(word: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in word.split(","):
        first, dots, last = part.partition("..")
        start = _count(first)
        stop = _count(last) if dots else start
        if stop < start or len(numbers) + stop - start >= MOST_COUNT:
            raise ValueError(word)
        numbers += range(start, stop + 1)
    return tuple(numbers)


def _unname(word: str) -> str:
    return "" if word == "%" else unquote(word)


def _names(word: str) -> tuple[str, ...]:
    return tuple(map(_unname, word.split(",")))


_LANES = {lane.word: lane for lane in Lane}
_MEMBER: dict[str, Callable[[str], object]] = {
    "tensor": _count,
    "serves": _numbers,
    "offloads": _flag,
}
"""What a stage line may say of a member besides rank, recovery and output_bytes."""
_HEADER: dict[str, Callable[[str], object]] = {
    "sharding": _count,
    "accumulation": Accumulation,
    "split_backward": _flag,
    "recovery_buffer": _count,
    "transit_slots": _count,
    "bucket_bytes": _size_or_none,
    "budget_bytes": _size_or_none,
    "tier": _unname,
    "tied": _flag,
    "sequence_parallel": _flag,
    "arrival_places": _flag,
    "gathers_per_pass": _flag,
    "period": _count,
    "averages": _flag,
    "forward_only": _flag,
    "backward_sends": _flag,
    "notes": _names,
}
_FIX: dict[Callable[[str], object], str] = {
    _count: f"write a whole number from 0 to {MOST_COUNT:_}",
    _size: f"write a whole number of bytes up to {MOST_BYTES:_}, e.g. 404_766_720",
    _size_or_none: f"write a whole number of bytes up to {MOST_BYTES:_}, or none",
    _flag: "write yes or no",
    _numbers: "write whole numbers, e.g. 0..3,7",
    Accumulation: f"use one of {', '.join(Accumulation)}",
    Recovery: f"use one of {', '.join(Recovery)}",
}
