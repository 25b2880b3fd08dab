"""The picture of a schedule: a row for each rank, time from left to right, in unit times.

A forward, a recovery, an input gradient and a weight gradient take one unit of time, a whole
backward two, everything else none. `F3---` is the forward of micro-batch 3 over all its stage's
units; dots are waits; `!` marks what the verifier found; ops that never run stand at the end of
their row. A rank with several stages names the stage too: `4F3`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ratrain.program.kind import Kind, Lane
from ratrain.program.units import Ints
from ratrain.program.walk import walk
from ratrain.timeline.palette import class_of

if TYPE_CHECKING:
    from rich.text import Text

    from ratrain.program.program import Program
    from ratrain.program.table import Table

NEVER = -1
LONG = 100_000
"""Ops of a program of which only what fits the picture's width is looked at."""


@dataclass(frozen=True)
class Clock:
    """When each op starts and ends, in unit times; NEVER where it cannot run."""

    start: Ints
    end: Ints


def unit_clock(table: Table) -> Clock:
    """The `Clock` of one step: every op starts as soon as all it waits for has ended."""
    n = len(table)
    takes = np.array([kind.picture_width for kind in Kind], dtype=np.int64)[table.kind]
    takes *= table.states.units.joined[table.unit]
    followers: list[list[int]] = [[] for _ in range(n)]
    sources: list[int] = table.edges.inside.source.tolist()
    targets: list[int] = table.edges.inside.target.tolist()
    for source, target in zip(sources, targets, strict=True):
        followers[source].append(target)
    order = walk(table).order
    ready, start = [0] * n, np.full(n, NEVER, dtype=np.int64)
    for together in _together(table, order[order < n].tolist()):
        begins = max(ready[op] for op in together)
        for op in together:
            start[op] = begins
            for target in followers[op]:
                ready[target] = max(ready[target], begins + int(takes[op]))
    return Clock(start, np.where(start == NEVER, NEVER, start + takes))


def _together(table: Table, order: list[int]) -> Iterator[list[int]]:
    """Ops in running order; members of a group, which stand side by side in it, as one."""
    group: list[int] = []
    for op in order:
        if group and not (table.group[op] >= 0 and table.group[op] == table.group[group[0]]):
            yield group
            group = []
        group.append(op)
    if group:
        yield group


@dataclass(frozen=True)
class Block:
    """Neighbouring ops of one kind, stage and micro-batch on a rank: what is drawn as one."""

    label: str
    kind: Kind
    start: int
    end: int  # NEVER: it does not run
    marked: bool


def draw(program: Program, mark: Collection[int] = (), width: int = 80) -> list[str]:
    """The picture as lines of at most `width` characters. `mark` holds rows of the table."""
    return [line.plain.rstrip() for line in draw_rich(program, mark, width)]


def draw_rich(program: Program, mark: Collection[int] = (), width: int = 80) -> list[Text]:
    """The picture as lines for a rich console, in colour."""
    from rich.text import Text

    table = program.table
    marks, clock = set(mark), unit_clock(table)
    # Of a long program only what can be seen: a moment takes a character at least.
    visible = width if len(table) > LONG else np.iinfo(np.int64).max
    rows = _blocks(table, clock, marks, visible)
    blocks = [block for row in rows.values() for block in row]
    drawn = [block for block in blocks if block.end != NEVER]
    # So wide that the shortest block shows its whole label and a gap.
    cell = max((-(-(len(b.label) + 1) // (b.end - b.start)) for b in drawn), default=1)
    head = len(f"rank {max(rows, default=0)}") + 1
    whole = int(clock.end[clock.end != NEVER].max(initial=0))
    tails = {rank: _blocked(row, width // 2) for rank, row in rows.items()}
    tail = max(map(len, tails.values()), default=0)
    shown = max(min(whole, (width - head - tail) // cell), 1)

    lines = [Text(_axis(head, cell, shown)[:width], style="dim")]
    for rank, row in rows.items():
        line = Text(f"rank {rank}".ljust(head))
        _fill(line, [block for block in row if block.end != NEVER], cell, shown)
        line.append(tails[rank], style="bold red")
        lines.append(line)
    lines += [Text(note[:width]) for note in _notes(table, marks, whole, shown)]
    return lines


def _fill(line: Text, row: list[Block], cell: int, shown: int) -> None:
    at = 0
    for block in row:
        if block.start >= shown:
            break
        line.append((".".ljust(cell)) * (block.start - at), style="dim")
        end = min(block.end, shown)
        room = (end - block.start) * cell
        body = block.label.ljust((block.end - block.start) * cell - 1, "-") + " "
        colour = class_of("compute", block.kind.name).terminal or "cyan"
        style = "bold reverse red" if block.marked else colour
        line.append(body[:room], style=style)
        at = end
    line.append((".".ljust(cell)) * (shown - at), style="dim")


def _blocks(table: Table, clock: Clock, marks: set[int], visible: int) -> dict[int, list[Block]]:
    """The blocks of every rank that begin before a moment or never, in the order of its compute
    lane."""
    units = table.states.units
    rows: dict[int, list[Block]] = {rank: [] for rank in range(table.setup.ranks)}
    several = {rank: len(set(units.stage[units.rank == rank].tolist())) > 1 for rank in rows}
    last: dict[int, tuple[int, ...]] = {}
    seen = (clock.start < visible) | (clock.start == NEVER)
    for op in np.flatnonzero((table.lane == Lane.COMPUTE) & seen).tolist():
        rank, action = int(table.rank[op]), table.action(op)
        if not action.kind.picture_width:
            continue
        start, end, row = int(clock.start[op]), int(clock.end[op]), rows[rank]
        key = action.kind, action.stage, action.micro_batch
        label = f"{action.kind.name}{action.micro_batch}"
        label = f"{action.stage}{label}" if several[rank] else label
        marked, before = op in marks, row[-1] if row and last.get(rank) == key else None
        if before and (before.end == start or before.end == end == NEVER):
            row.pop()
            marked |= before.marked
            start = before.start
        last[rank] = key
        row.append(Block(f"!{label}" if marked else label, action.kind, start, end, marked))
    return rows


def _blocked(row: list[Block], room: int) -> str:
    """What never runs, for the end of a row: its first blocks, and how many more there are."""
    names = [block.label for block in row if block.end == NEVER]
    if not names:
        return ""
    text, left = "| never:", len(names)
    for name in names:
        if len(text) + len(name) + 6 > room:
            break
        text, left = f"{text} {name}", left - 1
    return f"{text} +{left}" if left else text


def _axis(head: int, cell: int, shown: int) -> str:
    line = "time".ljust(head)
    apart = next(step for step in (1, 2, 5, 10, 20, 50, 100) if step * cell >= 6 or step == 100)
    for time in range(0, shown, apart):
        line = line.ljust(head + time * cell) + str(time)
    return line


def _notes(table: Table, marks: set[int], whole: int, shown: int) -> Iterator[str]:
    if shown < whole:
        yield f"first {shown} of {whole} time units shown"
    for op in sorted(marks):
        if op >= 0 and Kind(int(table.kind[op])).lane is not Lane.COMPUTE:
            yield f"! {table.word(op)} on rank {table.rank[op]}, lane {_lane(table, op)}"


def _lane(table: Table, op: int) -> str:
    return Lane(int(table.lane[op])).word
