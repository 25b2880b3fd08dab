"""Orders out of CSV files that say more than PyTorch's form: of units, and of transfers.

A row is a rank, as in PyTorch's form (`csv.py`). A cell may name a unit of its stage: `0.3F0` is
the forward of stage 0's unit 3 on micro-batch 0; then all cells of compute do. `0.3GradSync` and
`0.3PrefetchW` are reductions and gathers: where a row has some, their lanes take these turns.
A row `replica` begins the order of a replica of its own, where replicas differ.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ratrain.errors import ProgramError
from ratrain.program.kind import Kind, Lane
from ratrain.program.pipelining.csv import COMPUTE, Step, read_csv
from ratrain.program.plain import Transfer, UnitStep
from ratrain.program.skeletons import Written
from ratrain.readers.csv import csv_rows
from ratrain.readers.files import shown

TRANSFERS = (Kind.GradSync, Kind.PrefetchW)
_CELL = re.compile(r"(\d{1,6})\.(\d{1,4})([A-Za-z]{1,40})(\d{0,7})", re.ASCII)
_NAMES = {kind.name: kind for kind in (*COMPUTE, *TRANSFERS)}


@dataclass(frozen=True)
class OrderFile:
    """The order of each rank, stage by stage, and what the file says beyond."""

    steps: Mapping[int, Sequence[Step]]
    written: Written | None


REPLICA = "replica"


def read_orders(text: str, place: str = "") -> list[OrderFile]:
    """The order of each replica; of a file that does not tell them apart one for all of them."""
    parts: list[list[str]] = [[]]
    for line in text.splitlines(keepends=True):
        if line.strip() == REPLICA:
            parts.append([])
        else:
            parts[-1].append(line)
    first, *others = ("".join(lines) for lines in parts)
    if not others:
        return [read_order(first, place)]
    if first.strip():
        raise ProgramError(
            f"there are rows before the first row {REPLICA!r}",
            place=place,
            fix=f"begin the file with a row {REPLICA!r}",
        )
    orders = [
        read_order(part, f"{place} replica {number}".strip()) for number, part in enumerate(others)
    ]
    if any(order.written is not None for order in orders):
        raise ProgramError(
            "where replicas differ, an order has no turns of units and of transfers",
            place=place,
            fix="write stages alone: 0F0",
        )
    return orders


def write_orders(orders: Iterable[str]) -> str:
    """One text of the texts of several replicas."""
    return "".join(f"{REPLICA}\n{order}" for order in orders)


def read_order(text: str, place: str = "") -> OrderFile:
    """The order of a file; a `ProgramError` names the row, the cell and the word."""
    if "." not in text:
        return OrderFile(read_csv(text, place), None)
    plain_rows: list[list[str]] = []
    by_unit: dict[int, list[UnitStep]] = {}
    transfers: dict[tuple[int, Lane], list[Transfer]] = {}
    rows = (row for row in csv_rows(text, place) if row.cells)  # blank lines are no ranks
    for rank, row in enumerate(rows):
        plain_rows.append([])
        for column, cell in enumerate(row.cells):
            word = cell.strip()
            if "." not in word:
                plain_rows[-1].append(word)
                continue
            where = f"row {rank + 1}, cell {column + 1}"
            kind, *numbers = _unit_cell(word, f"{place}, {where}" if place else where)
            stage, unit, micro_batch = numbers
            if kind in COMPUTE:
                by_unit.setdefault(rank, []).append((kind, stage, unit, micro_batch))
            else:
                transfers.setdefault((rank, kind.lane), []).append((kind, stage, unit))
    if not by_unit:
        return OrderFile(read_csv(_text(plain_rows), place), Written({}, transfers))
    if any(any(row) for row in plain_rows) or len(by_unit) < len(plain_rows):
        raise ProgramError(
            "some cells of compute name a unit of their stage, and some do not",
            place=place,
            fix="write all of them with a unit (0.3F0), or none (0F0)",
        )
    steps = {rank: list(_of_stages(rank, of_rank, place)) for rank, of_rank in by_unit.items()}
    return OrderFile(steps, Written(by_unit, transfers))


def _unit_cell(word: str, place: str) -> tuple[Kind, int, int, int]:
    match = _CELL.fullmatch(word)
    if match is None or match[3] not in _NAMES:
        raise ProgramError(
            f"{shown(word)} is not an action",
            place=place,
            fix=f"write e.g. 0.3F0; kinds are {', '.join(_NAMES)}",
        )
    kind = Kind.named(match[3])
    if (kind in COMPUTE) != bool(match[4]):
        wrong = "does not name a micro-batch" if kind in COMPUTE else "names a micro-batch"
        raise ProgramError(
            f"{word!r} {wrong}",
            place=place,
            fix=f"write {word}0" if kind in COMPUTE else f"write {match[1]}.{match[2]}{match[3]}",
        )
    return kind, int(match[1]), int(match[2]), int(match[4] or 0)


def _of_stages(rank: int, steps: Sequence[UnitStep], place: str) -> Iterable[Step]:
    """Ops of units as ops of stages: a stage's op takes the place of its last unit's. Each unit of
    a stage has the same ones, backward in ascending order."""
    units: dict[int, int] = {}
    for _, stage, unit, _ in steps:
        units[stage] = max(units.get(stage, 0), unit + 1)
    done: dict[Step, list[int]] = {}
    last: dict[tuple[Kind, int, int], int] = {}
    for kind, stage, unit, micro_batch in steps:
        seen = done.setdefault((kind, stage, micro_batch), [])
        if unit in seen:
            problem, fix = "is there twice", "leave one of them out"
        elif kind is not Kind.F and last.get((kind, stage, unit), -1) > micro_batch:
            problem = "is out of order: gradients add up from micro-batch 0 on"
            fix = "let backward take micro-batches in ascending order"
        else:
            last[kind, stage, unit] = micro_batch
            seen.append(unit)
            if len(seen) == units[stage]:
                yield kind, stage, micro_batch
            continue
        word = f"{stage}.{unit}{kind.name}{micro_batch}"
        raise ProgramError(f"row {rank + 1}: {word} {problem}", place=place, fix=fix)
    for (kind, stage, micro_batch), seen in done.items():
        missing = sorted(set(range(units[stage])) - set(seen))
        if missing:
            word = f"{stage}.{missing[0]}{kind.name}{micro_batch}"
            raise ProgramError(f"row {rank + 1} has no {word}", place=place, fix="add it")


def write_order(written: Written, steps: Mapping[int, Sequence[Step]]) -> str:
    """The text of an order; what is read back is equal."""
    rows: list[list[str]] = []
    for rank in sorted(steps):
        if written.by_unit:
            cells = [f"{s}.{u}{kind.name}{m}" for kind, s, u, m in written.by_unit[rank]]
        else:
            cells = [f"{s}{kind.name}{m}" for kind, s, m in steps[rank]]
        for (place, _), lane in sorted(written.transfers.items()):
            if place == rank:
                cells += [f"{s}.{u}{kind.name}" for kind, s, u in lane]
        rows.append(cells)
    return _text(rows)


def _text(rows: Iterable[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
