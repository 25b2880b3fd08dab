"""CSV: rows of cells with their lines, and tables in which every row has every column."""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ratrain.errors import SpecError
from ratrain.readers.files import shown
from ratrain.readers.limits import CELL_CHARS


@dataclass(frozen=True)
class Row:
    """One row and the line it ends on; it is a row of `file`."""

    file: str
    line: int
    cells: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def cell_place(self, number: int) -> str:
        """The place of the cell of that number, counted from 0."""
        return f"{self.place}, cell {number + 1}"


def csv_rows(text: str, file: str) -> Iterator[Row]:
    """The rows of a text, blank ones too; a SpecError names the line that cannot be read."""
    reader = csv.reader(io.StringIO(text), strict=True)
    # The library's own limit is one for the whole process; a longer cell is an error either way.
    line = 0
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise SpecError(
                f"not valid CSV: {error}",
                place=f"{file}:{max(reader.line_num, line + 1)}",
                fix='close quotes with ", and write " inside quotes as ""',
            ) from None
        if cells is None:
            return
        line = reader.line_num
        row = Row(file, line, tuple(cells))
        for number, cell in enumerate(cells):
            if len(cell) > CELL_CHARS:
                raise SpecError(
                    f"a cell of {len(cell):,} characters; at most {CELL_CHARS:,} are read",
                    place=row.cell_place(number),
                    fix="close a quote, or put commas between cells",
                )
        yield row


def csv_table(
    text: str, file: str, known: Collection[str] | None = None
) -> Iterator[tuple[dict[str, str], Row]]:
    """Each row below the header as {column: cell}, blanks around cells removed. A SpecError names
    a column that is not `known` (any is, without) or appears twice, and a row with another number
    of cells."""
    rows = csv_rows(text, file)
    header = next(rows, None)
    if header is None:
        raise SpecError("is empty", place=file, fix="write a line with the names of its columns")
    columns = [cell.strip() for cell in header.cells]
    for number, column in enumerate(columns):
        if known is not None and column not in known:
            near = difflib.get_close_matches(column.lower(), list(known), n=1, cutoff=0.5)
            lead = f'did you mean "{near[0]}"? ' if near else ""
            raise SpecError(
                f"unknown column {shown(column)}",
                place=header.cell_place(number),
                fix=f"{lead}valid: {', '.join(known)}",
            )
        if columns.index(column) < number:
            raise SpecError(
                f"the column {shown(column)} appears twice: cells {columns.index(column) + 1} "
                f"and {number + 1}",
                place=header.place,
                fix="leave one of them out",
            )
    for row in rows:
        if not any(cell.strip() for cell in row.cells):
            continue
        if len(row.cells) != len(columns):
            raise SpecError(
                f"{len(row.cells)} cells, the header has {len(columns)}",
                place=row.place,
                fix="give each column one cell, which may be empty",
            )
        yield dict(zip(columns, (cell.strip() for cell in row.cells), strict=True)), row
