"""A program as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import cast
from urllib.parse import quote

from ratrain.program.actions import format_action
from ratrain.program.kind import Lane
from ratrain.program.program import Program
from ratrain.program.repeating import Repeating
from ratrain.program.replicas import Member, Replica, Stage, Unit
from ratrain.program.setup import Setup
from ratrain.program.text.form import FLAGS, FORMAT, SIZES, VERSION, WHERE_ANY
from ratrain.program.tiers import SETTINGS

_WHERE_SET = (
    "tied",
    "sequence_parallel",
    "arrival_places",
    "gathers_per_pass",
    "averages",
    "outer",
    "average_wire",
    "forward_only",
    "backward_sends",
    "error_feedback",
    "mirrored",
    "network_in_turn",
    "notes",
)
"""Fields of the header that are written where they are yes, or not empty."""
_WHERE_SEVERAL = ("period", "together")
"""Fields of the header that are written where they are not 1."""
_ELSEWHERE = ("replicas", "budgets")
"""Fields of the setup that have lines of their own."""


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
        counts += "" if replica.site is None else f" site {replica.site}"
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
        several = value != 1 or field.name not in _WHERE_SEVERAL
        written = bool(value) if field.name in _WHERE_SET else several
        if field.name not in _ELSEWHERE and written:
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
    for setting in SETTINGS:
        if tier := getattr(member, setting):
            yield f"{setting} {tier}"
    if member.joined > 1:
        yield f"joined {member.joined}"


def _column_widths(rows: list[list[str]]) -> list[int]:
    """Of the columns that all rows have; where rows differ, the last ones stand as wide as they
    are."""
    shared = min(map(len, rows)) if len({len(row) for row in rows}) == 1 else 4
    widths = [max(map(len, column)) for column in zip(*(row[:shared] for row in rows), strict=True)]
    return widths + [0] * (max(map(len, rows)) - shared)


def _list(numbers: Sequence[int]) -> str:
    """0,1,2,7 as 0..2,7; nothing as none."""
    if not numbers:
        return "none"
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
