"""Who averages which elements of a unit with whom, where sites average weights.

At each site a tensor group may cut the unit's parameters, and the ranks of one number there own
equal parts of their flat buffers, in their order. Sites may do so otherwise than each other: one
replica that has it all, beside three that have a third each; a whole matrix, beside two halves of
it. What one rank of each site owns together is a range, which these ranks average: each adds up one
part of it in the order of sites, so all get the same bits however sites divide it.

Sites of one tensor degree have buffers of one layout, whose ranges are runs of elements that are
averaged in their own place. At unlike degrees a range has rows and columns of the model's
parameters, which are copied into one row and back, `TAKEN_BYTES` at a time; what every rank of a
tensor group has whole is averaged by the first of it, who tells the others.

All ranks go through the ranges in the same order, which is one of rounds: in a round no rank has
two of them, so that ranges of other ranks are on their way at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from ratrain.cost.algorithms import DIRECT
from ratrain.describe.average_wires import TAKEN_BYTES
from ratrain.describe.parameters import LOGITS
from ratrain.models.division import WHOLE, Division
from ratrain.models.embedding import TABLE
from ratrain.models.parameters import ALIGN, UnitParameters, aligned, lay_out
from ratrain.program.kind import Lane
from ratrain.ranges import Block, copies, cut, line, overlaps
from ratrain.runtime.seats import Groups, Holders
from ratrain.runtime.step.blocks import blocks_of, blocks_within, view_of
from ratrain.runtime.step.exchange.collective import Tensors
from ratrain.runtime.step.exchange.integers import Averaging, Integers
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.optimizer import owned_range

_NAME, _NOBODY = "unit", -1
_TIED = TABLE, LOGITS
"""Matrices that are in ranges of their own: so both copies of a tied one are rounded alike."""


class Range(NamedTuple):
    """Elements of a unit, and who owns them: a rank of each site, in their order."""

    holders: Holders
    pieces: tuple[Block, ...]


@dataclass(frozen=True)
class OwnRange:
    """A range as one rank has it. `blocks`: where the pieces lie in its flat buffer."""

    holders: Holders
    blocks: tuple[Block, ...]

    @cached_property
    def size(self) -> int:
        """Elements of a row of them that all holders have equal parts of."""
        return aligned(sum(aligned(each.elements) for each in self.blocks), self._together)

    @property
    def _together(self) -> int:
        return ALIGN * len(self.holders)

    def part(self, place: int) -> slice:
        """Of this row what one of the holders adds up, and writes to a checkpoint where all have
        the same."""
        each = self.size // len(self.holders)
        return slice(place * each, (place + 1) * each)

    def taken(self, flat: Tensor, first: int) -> Tensor:
        """Its elements in a row, of a tensor that begins with element `first` of the buffer: in
        their own memory, where they are a row there."""
        if self._is_row:
            (block,) = self.blocks
            return flat[block.offset - first : block.end - first]
        row = flat.new_zeros(self.size)
        for place, block in self._places():
            values = row[place : place + block.elements].view(block.height, block.width)
            values.copy_(view_of(flat, block, begin=first))
        return row

    def put(self, row: Tensor, flat: Tensor, first: int) -> None:
        """Writes such a row to where it was taken from."""
        for place, block in () if self._is_row else self._places():
            values = row[place : place + block.elements].view(block.height, block.width)
            view_of(flat, block, begin=first).copy_(values)

    @property
    def _is_row(self) -> bool:
        return len(self.blocks) == 1 and self.blocks[0].stride == 0

    def _places(self) -> Iterator[tuple[int, Block]]:
        at = 0
        for block in self.blocks:
            yield at, block
            at += aligned(block.elements)


@dataclass(frozen=True)
class Shared:
    """A unit that sites average. `sites`: of each, number by number in its tensor groups, the ranks
    that hold it; where all have one tensor degree, those of the own number alone. `sizes`: elements
    of a flat buffer at each. `shapes`: of the model's parameters, where degrees are unlike."""

    sites: tuple[Groups, ...]
    sizes: tuple[int, ...]
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    taken_bytes: int = TAKEN_BYTES

    @property
    def is_unlike(self) -> bool:
        """Whether sites cut parameters otherwise than each other."""
        return bool(self.shapes)

    def layout(self, division: Division) -> UnitParameters:
        return _layout(self.shapes, division)

    def blocks(self, division: Division, begin: int, end: int) -> list[Block]:
        """Elements begin .. end of the buffer of a rank."""
        if self.is_unlike:
            return list(blocks_within(self.layout(division), begin, end))
        return [line(_NAME, begin, end, begin)]

    def owned(self, site: int) -> dict[int, list[Block]]:
        """What each rank of a site averages for it."""
        held: dict[int, list[Block]] = {}
        for number, ranks in enumerate(self.sites[site]):
            division = Division(number, len(self.sites[site]))
            for place, rank in enumerate(ranks):
                run = owned_range(self.sizes[site], len(ranks), place)
                blocks = self.blocks(division, *run)
                held[rank] = [each for each in blocks if not number or self.cuts(each, division)]
        return held

    def cuts(self, block: Block, division: Division) -> bool:
        """Whether other ranks of the group have others of a parameter's elements."""
        return not self.is_unlike or self.layout(division).by_name[block.name].cut is not None

    def whole(self) -> list[Block]:
        """All elements of the unit."""
        if self.is_unlike:
            return blocks_of(self.layout(WHOLE))
        return [line(_NAME, 0, self.sizes[0], 0)]

    def ranges(self) -> tuple[Range, ...]:
        """The ranges, round by round. Each element is in one of them; raises SpecError where a site
        has nobody for it."""
        return _ranges(self)

    def held(self, division: Division, begin: int, end: int) -> Iterator[tuple[int, OwnRange]]:
        """Those of which a rank has all elements, which holds these of its buffer, whoever averages
        them; each with its number among all."""
        blocks = self.blocks(division, begin, end)
        for number, each in enumerate(self.ranges()):
            found = _within(blocks, each)
            if _elements(found) == _elements(each.pieces):
                yield number, OwnRange(each.holders, found)


def alike(sites: Groups, elements: int) -> Shared:
    """A unit of so many elements that sites hold at one tensor degree. `sites`: who at each."""
    return Shared(tuple((site,) for site in sites), (elements,) * len(sites))


@dataclass(frozen=True)
class Meeting:
    """A rank's part in the averages of a unit: at which site it is, its place among those of its
    number there, the part of the unit that its tensor group gives it, what it owns of its buffer,
    and with which element the tensors begin that are averaged."""

    shared: Shared
    site: int
    place: int
    division: Division
    owned: slice
    first: int

    @property
    def rank(self) -> int:
        numbers = self.shared.sites[self.site]
        return numbers[self.division.rank if self.shared.is_unlike else 0][self.place]

    @property
    def ranges(self) -> list[OwnRange]:
        """What it owns, cut where owners of other sites change, in the order of averages."""
        blocks, rank = self._blocks(), self.rank
        every = self.shared.ranges()
        return [OwnRange(r.holders, _within(blocks, r)) for r in every if rank in r.holders]

    def average(self, network: Network, flat: Tensor) -> None:
        """Of a tensor the mean over all sites, in the place of what it owns. Each part is added up
        in the order of sites by one of its owners."""
        for each in self.ranges:
            mine, part = each.taken(flat, self.first), each.part(self.site)
            network.reduce(mine, mine[part], each.holders, DIRECT, Lane.AVERAGE)
            mine[part] /= len(each.holders)
            network.gather(Lane.AVERAGE, mine, each.holders)
            each.put(mine, flat, self.first)
        self._tell(network, flat)

    def average_learnt(
        self, network: Network, integers: Integers, learnt: Tensor, kept: Tensor
    ) -> None:
        """The same of what sites learnt, which is sent as integers. `kept`: what this rank had not
        sent before, and then now."""
        for each in self.ranges:
            averaging = Averaging(network, Lane.AVERAGE, each.holders, self.site)
            rows = [each.taken(flat, self.first) for flat in (learnt, kept)]
            averaging.average(integers, *rows)
            for row, flat in zip(rows, (learnt, kept), strict=True):
                each.put(row, flat, self.first)
        self._tell(network, learnt)

    def _tell(self, network: Network, flat: Tensor) -> None:
        """The first of a tensor group tells the others what all of them have whole."""
        numbers, number = self.shared.sites[self.site], self.division.rank
        told = [each for each in self._blocks() if not self.shared.cuts(each, self.division)]
        if len(numbers) == 1 or not told:
            return
        rows = [view_of(flat, block, begin=self.first) for block in told]
        row = torch.cat([values.reshape(-1) for values in rows])
        leaving: Tensors = {place: [row] for place in range(1, len(numbers)) if not number}
        group = tuple(ranks[self.place] for ranks in numbers)
        network.swap(Lane.AVERAGE, group, leaving, {0: [row]} if number else {})
        sizes = [block.elements for block in told]
        for values, arrived in zip(rows, row.split(sizes), strict=True):
            values.copy_(arrived.view(values.shape))

    def _blocks(self) -> list[Block]:
        return self.shared.blocks(self.division, self.owned.start, self.owned.stop)


_layout = lru_cache(maxsize=256)(lay_out)


@lru_cache(maxsize=256)
def _ranges(shared: Shared) -> tuple[Range, ...]:
    held = [shared.owned(site) for site in range(len(shared.sites))]
    every = [block for site in held for blocks in site.values() for block in blocks]
    needed = {_NOBODY: [piece for block in shared.whole() for piece in cut(block, every)]}
    together: dict[tuple[Holders, bool], list[Block]] = defaultdict(list)
    for of_piece in zip(*(copies(site, needed) for site in held), strict=True):
        holders, piece = tuple(copy.source for copy in of_piece), of_piece[0].needed
        together[holders, piece.name in _TIED].append(piece)
    ranges = [
        Range(holders, tuple(turn))
        for (holders, _), pieces in together.items()
        for turn in (_in_turns(pieces, shared.taken_bytes // 4) if shared.is_unlike else [pieces])
    ]
    return tuple(_in_rounds(ranges))


def _in_turns(pieces: Sequence[Block], most: int) -> Iterator[list[Block]]:
    """The pieces, cut between rows, as many at a time as have so many elements; more where a row
    does."""
    turn, filled = list[Block](), 0
    for piece in pieces:
        count = min(piece.height, -(-piece.elements // most))
        for part in (piece.piece(number, count) for number in range(count)):
            if turn and filled + part.elements > most:
                yield turn
                turn, filled = [], 0
            turn.append(part)
            filled += part.elements
    yield turn


def _within(blocks: list[Block], of_range: Range) -> tuple[Block, ...]:
    return tuple(held for held, _ in overlaps(blocks, of_range.pieces))


def _elements(blocks: Sequence[Block]) -> int:
    return sum(block.elements for block in blocks)


def _in_rounds(ranges: list[Range]) -> list[Range]:
    """Each in the first round in which none of its ranks has another one."""
    taken: dict[int, set[int]] = defaultdict(set)
    placed: list[tuple[int, Range]] = []
    for each in ranges:
        turn = next(n for n in count() if not any(n in taken[rank] for rank in each.holders))
        for rank in each.holders:
            taken[rank].add(turn)
        placed.append((turn, each))
    return [each for _, each in sorted(placed, key=lambda entry: entry[0])]
