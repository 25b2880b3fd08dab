"""Who holds which part of a tensor, who needs which, and the copies that follow from it.

A block is some rows and columns of a matrix of a name, and where they lie in a holder's flat
buffer; what has one dimension is a block of one row, or of one column. Blocks of holders and blocks
that are needed may be cut in any way: where two overlap is a copy. All ranks derive the same list
from the same holdings, so that nobody has to ask for anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from ratrain.errors import SpecError

Span = tuple[int, int]
"""From the first to before the last."""


@dataclass(frozen=True, slots=True)
class Block:
    """`offset`: of the first element in the holder's buffer; `stride`: from there to the first of
    the next row."""

    name: str
    rows: Span
    columns: Span
    offset: int
    stride: int

    @property
    def height(self) -> int:
        return self.rows[1] - self.rows[0]

    @property
    def width(self) -> int:
        return self.columns[1] - self.columns[0]

    @property
    def elements(self) -> int:
        return self.height * self.width

    @property
    def end(self) -> int:
        """Behind the last element in the holder's buffer."""
        return self.offset + (self.height - 1) * self.stride + self.width if self.elements else 0

    def part(self, rows: Span, columns: Span) -> Block:
        """Some of its rows and columns."""
        down, right = rows[0] - self.rows[0], columns[0] - self.columns[0]
        offset = self.offset + down * self.stride + right
        return Block(self.name, rows, columns, offset, self.stride)

    def run(self, begin: int, end: int) -> Iterator[Block]:
        """Its elements begin .. end, counted row by row: whole rows, and parts of rows before and
        behind them."""
        while begin < end:
            row, column = divmod(begin, self.width)
            last = row + 1 if column or end - begin < self.width else end // self.width
            upto = min(end, last * self.width)
            right = self.columns[0] + (column + upto - begin if last == row + 1 else self.width)
            rows = self.rows[0] + row, self.rows[0] + last
            yield self.part(rows, (self.columns[0] + column, right))
            begin = upto

    def piece(self, number: int, count: int) -> Block:
        """One of `count` pieces of its rows, equal but for one."""
        first, last = part_of(self.height, number, count)
        return self.part((self.rows[0] + first, self.rows[0] + last), self.columns)


class Copy(NamedTuple):
    """The same rows and columns, as the source holds and as the target needs them."""

    source: int
    target: int
    held: Block
    needed: Block

    def piece(self, number: int, count: int) -> Copy:
        held, needed = self.held.piece(number, count), self.needed.piece(number, count)
        return self._replace(held=held, needed=needed)


def line(name: str, begin: int, end: int, offset: int) -> Block:
    """Elements begin .. end of a tensor of one dimension."""
    return Block(name, (0, 1), (begin, end), offset, 0)


def part_of(count: int, number: int, parts: int) -> Span:
    """One of so many parts of `count` things in a row, equal but for one."""
    return number * count // parts, (number + 1) * count // parts


def common(one: Span, other: Span) -> Span:
    """What both have; the last is not before the first."""
    first = max(one[0], other[0])
    return first, max(first, min(one[1], other[1]))


def overlap(held: Block, needed: Block) -> tuple[Block, Block] | None:
    """What both have, in the one's and in the other's buffer."""
    if held.name != needed.name:
        return None
    rows, columns = common(held.rows, needed.rows), common(held.columns, needed.columns)
    if rows[0] == rows[1] or columns[0] == columns[1]:
        return None
    return held.part(rows, columns), needed.part(rows, columns)


def overlaps(held: Iterable[Block], needed: Iterable[Block]) -> list[tuple[Block, Block]]:
    """All that one holder has of what is needed, in the order in which it is."""
    by_name = _by_name(held)
    pairs = (overlap(block, wanted) for wanted in needed for block in by_name[wanted.name])
    return [pair for pair in pairs if pair is not None]


def cut(needed: Block, along: Iterable[Block]) -> list[Block]:
    """A block in pieces, each of which any of the others has whole or not at all."""
    rows, columns = set(needed.rows), set(needed.columns)
    for other in along:
        if overlap(other, needed):
            rows.update(common(other.rows, needed.rows))
            columns.update(common(other.columns, needed.columns))
    in_rows, in_columns = sorted(rows), sorted(columns)
    return [
        needed.part((top, bottom), (left, right))
        for top, bottom in pairwise(in_rows)
        for left, right in pairwise(in_columns)
    ]


def copies(
    held: Mapping[int, Sequence[Block]], needed: Mapping[int, Sequence[Block]]
) -> list[Copy]:
    """What brings everybody every element that is needed, once. Who has it itself takes that, else
    of those who have it the one that was asked for the least so far."""
    by_name = {source: _by_name(blocks) for source, blocks in held.items()}
    asked = dict.fromkeys(sorted(held), 0)
    made: list[Copy] = []
    for target, wanted in sorted(needed.items()):
        for whole in wanted:
            near = [block for source in asked for block in by_name[source][whole.name]]
            for piece in cut(whole, near) if whole.elements else ():
                copy = _copy(target, piece, by_name, asked)
                asked[copy.source] += piece.elements if copy.source != target else 0
                made.append(copy)
    return made


def turns(wanted: Sequence[Copy], limit: int) -> list[list[Copy]]:
    """The copies in turns, in none of which a rank takes or gives more than `limit` elements, but
    where a row has more. What is called the same is cut in as many pieces everywhere."""
    of_name: dict[str, list[Copy]] = {}
    for copy in wanted:
        of_name.setdefault(copy.needed.name, []).append(copy)
    cut_up: list[list[Copy]] = [[]]
    filled = 0
    for of_one in of_name.values():
        most = max(copy.needed.height for copy in of_one)
        count = min(most, -(-_most_moved(of_one) // limit))
        for number in range(count):
            pieces = [copy.piece(number, count) for copy in of_one]
            pieces = [copy for copy in pieces if copy.needed.elements]
            size = _most_moved(pieces)
            if filled and filled + size > limit:
                cut_up.append([])
                filled = 0
            cut_up[-1] += pieces
            filled += size
    return cut_up


def joined(pairs: Iterable[tuple[Block, Block]]) -> list[tuple[Block, Block]]:
    """Of one row each; those that follow each other at both ends are one."""
    whole: list[tuple[Block, Block]] = []
    for held, needed in pairs:
        if whole and whole[-1][0].end == held.offset and whole[-1][1].end == needed.offset:
            before = whole[-1]
            whole[-1] = _longer(before[0], held), _longer(before[1], needed)
        else:
            whole.append((held, needed))
    return whole


def _longer(block: Block, by: Block) -> Block:
    return replace(block, columns=(block.columns[0], block.columns[1] + by.width))


def _by_name(blocks: Iterable[Block]) -> Mapping[str, list[Block]]:
    by_name: dict[str, list[Block]] = defaultdict(list)
    for block in blocks:
        by_name[block.name].append(block)
    return by_name


def _copy(
    target: int,
    piece: Block,
    by_name: Mapping[int, Mapping[str, Sequence[Block]]],
    asked: Mapping[int, int],
) -> Copy:
    best: Copy | None = None
    for source in asked:
        for block in by_name[source][piece.name]:
            pair = overlap(block, piece)
            if pair is not None and (
                best is None or source == target or asked[source] < asked[best.source]
            ):
                best = Copy(source, target, *pair)
        if best is not None and best.source == target:
            return best
    if best is None:
        rows, columns = piece.rows, piece.columns
        raise SpecError(
            f"nobody has rows {rows[0]} to {rows[1]}, columns {columns[0]} to {columns[1]} of "
            f"{piece.name}, which {target} needs"
        )
    return best


def _most_moved(wanted: Iterable[Copy]) -> int:
    """The most elements that a rank takes or gives."""
    taken: dict[tuple[bool, int], int] = defaultdict(int)
    for copy in wanted:
        taken[True, copy.target] += copy.needed.elements
        taken[False, copy.source] += copy.needed.elements
    return max(taken.values(), default=0)
