"""A program from its text; a mistake names its line and word."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from ratrain.errors import ProgramError
from ratrain.program.actions import Action, parse_action
from ratrain.program.kind import Lane
from ratrain.program.program import Program
from ratrain.program.repeating import Middle, Repeating, checked
from ratrain.program.replicas import Member, Recovery, Replica, Stage, Unit
from ratrain.program.setup import Budget, Setup
from ratrain.program.text.form import (
    FLAGS,
    FORMAT,
    MOST_COUNT,
    MOST_UNITS,
    SIZES,
    VERSION,
    WHERE_ANY,
    YES_OR_NO,
)
from ratrain.program.text.values import (
    FIXES,
    HEADER_FIELDS,
    MEMBER_FIELDS,
    count_of,
    flag_of,
    name_of,
    size_of,
)
from ratrain.readers.files import shown

T = TypeVar("T")


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
        self._replicas: list[tuple[list[int], list[list[Member]]]] = []
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
            self._passes = tuple(name_of(word) for word in rest)
        elif first == "tensor":
            self._tensor = self._parsed("tensor", " ".join(rest), count_of)
        elif first == "budget":
            self._budget(rest)
        elif first == "repeats":
            self._repetition(rest)
        elif first in HEADER_FIELDS:
            self._field(first, rest)
        else:
            lines = ["passes", "tensor", *HEADER_FIELDS, "budget", "repeats", "unit", "replica"]
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
            Replica(tuple(Stage(tuple(members)) for members in stages), *numbers)
            for numbers, stages in self._replicas
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
        self._header[name] = self._parsed(name, rest[0], HEADER_FIELDS[name])

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
            name: self._parsed(name, word, flag_of if name in YES_OR_NO else size_of)
            for name, word in zip(names, words, strict=True)
        }
        self._kinds[kind] = Unit("", **values)

    def _replica(self, rest: list[str]) -> None:
        number, named = rest[0] if rest else "", ("micro_batches", "count")
        values = self._pairs(rest[1:], *named, *(("site",) if len(rest) > 5 else ()))
        if number != str(len(self._replicas)):
            expected = len(self._replicas)
            raise self._wrong(
                f"replica {shown(number)}, where {expected} comes next", f"write {expected}"
            )
        numbers = [self._parsed(*value, count_of) for value in values.items()]
        self._replicas.append((numbers, []))

    def _stage(self, rest: list[str]) -> None:
        if not self._replicas:
            raise self._wrong("a stage appears before any replica", "write a replica line first")
        stages = self._replicas[-1][1]
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
        output = self._parsed("output_bytes", values["output_bytes"], size_of)
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
            if name not in MEMBER_FIELDS or name in values:
                known = ", ".join(MEMBER_FIELDS)
                raise self._wrong(
                    f"{shown(name)} is not a property of a stage", f"use one of {known}"
                )
            values[name] = self._parsed(name, word, MEMBER_FIELDS[name])
        return values

    def _repetition(self, rest: list[str]) -> None:
        if self._repeats is not None:
            raise self._wrong("repeats is given twice", "leave one of them out")
        if len(rest) != 2:
            raise self._wrong(
                f"repeats takes micro-batches and times, not {len(rest)} words",
                "write e.g. repeats 1 998",
            )
        stride, times = (self._parsed("repeats", word, count_of) for word in rest)
        self._repeats = stride, times

    def _budget(self, rest: list[str]) -> None:
        if len(rest) != 3:
            raise self._wrong(
                "a budget names ranks, a tier and bytes", "write e.g. budget 0..3 memory 8_000"
            )
        ranks = self._span("budget", rest[0])
        size = self._parsed("budget", rest[2], size_of)
        self._budgets.append(Budget(ranks.start, ranks.stop - 1, name_of(rest[1]), size))

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
            return [replace(described, name=name_of(names))]
        return [replace(described, name=str(n)) for n in span]

    def _lane(self, rest: list[str]) -> None:
        if len(rest) < 2:
            raise self._wrong("a rank line names a rank and a lane", "write e.g. rank 0 compute")
        rank = self._parsed("rank", rest[0], count_of)
        if not (rest[1].islower() and Lane.has(rest[1].upper())):
            known = ", ".join(lane.word for lane in Lane)
            raise self._wrong(f"{shown(rest[1])} does not name a lane", f"use one of {known}")
        lane = Lane.named(rest[1].upper())
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
        """Where the middle of a lane is; its marks are taken out of the words."""
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
        start = self._parsed(name, first, count_of)
        stop = self._parsed(name, last, count_of) if dots else start
        if stop < start:
            raise self._wrong(f"{name} {word} runs backwards", f"write {last}..{first}")
        return range(start, stop + 1)

    def _parsed(self, name: str, word: str, parse: Callable[[str], T]) -> T:
        try:
            return parse(word)
        except ValueError:
            fix = FIXES.get(parse, "write one word")
            raise self._wrong(f"{shown(word)} is not a value for {name}", fix) from None
