"""A unit that is shared at different tensor degrees: who owns what, reduced and gathered.

The unit is divided into slots, as many as the least common multiple of the degrees at which
replicas hold it, and at which the ends of a pipeline hold the two copies of a tied matrix: a rank
of a smaller group holds several, side by side in each parameter that is cut. Of each slot one rank
of each replica has a copy, and those are what a reduction adds up, in the order of replicas. Of
each parameter of a slot every replica owns an equal number of rows, to within a block, so what a
rank owns are ranges of its own buffer. What every rank of a group has whole counts once per
replica: a rank adds it up, and receives it, with the first of its slots.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import gcd, lcm, prod
from typing import Protocol

import torch
from torch import Tensor

from ratrain.cost.scratch import CHUNK_BYTES
from ratrain.models.division import COLUMNS, ROWS, Division, cut_dim
from ratrain.models.parameters import ALIGN, UnitParameters, aligned, lay_out
from ratrain.program.kind import Lane
from ratrain.ranges import Block, Copy, copies, cut, turns
from ratrain.runtime.seats import Holders
from ratrain.runtime.step.blocks import blocks_of, view_of
from ratrain.runtime.step.exchange.collective import Tensors
from ratrain.runtime.step.exchange.stored import Stored, stored_in
from ratrain.runtime.step.exchange.sums import add_up


class Swaps(Protocol):
    """What slots need of a network."""

    def swap(self, lane: Lane, holders: Holders, leaving: Tensors, landing: Tensors) -> None: ...


@dataclass(frozen=True)
class Unlike:
    """A view that holders have in different dtypes. `dtypes`: of each place among the holders;
    `master`: of a run that this rank owns the fp32 weights."""

    dtypes: Sequence[torch.dtype]
    master: Callable[[slice], Tensor]


@dataclass(frozen=True)
class _Shared:
    """A unit and the groups that share it, the same for all ranks. `shapes`: of the model's
    parameters; `groups`: of each replica the world ranks that hold it; `count`: slots."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    groups: tuple[Holders, ...]
    count: int

    def layout(self, division: Division) -> UnitParameters:
        return lay_out(self.shapes, division)

    def members(self, place: int) -> Iterator[tuple[int, Division]]:
        """The world ranks of a replica, each with its part of the unit."""
        group = self.groups[place]
        for number, rank in enumerate(group):
            yield rank, Division(number, len(group))

    def owned(self, place: int, division: Division) -> Iterator[Block]:
        """What a replica owns of the buffer of a part of the unit."""
        each = self.count // division.degree
        for block in blocks_of(self.layout(division)):
            first, last = self.rows(block.name, place), self.rows(block.name, place + 1)
            if first == last:
                continue
            if cut_dim(block.name) != ROWS:
                yield block.part((first, last), block.columns)
                continue
            height = block.height // each
            for begin in range(*block.rows, height):
                yield block.part((begin + first, begin + last), block.columns)

    def rows(self, name: str, place: int) -> int:
        """The row of a slot's parameter with which a replica's begin. Rows that are cut have
        another width at each degree: there what is owned is made of whole blocks of the optimizer
        at all of them, since its last elements, outside of a block, could get other bits."""
        slot = self.layout(Division(0, self.count)).by_name[name]
        if place == len(self.groups):
            return slot.shape[0]
        step = 1
        if cut_dim(name) == COLUMNS:
            width = prod(slot.shape[1:])
            widths = {width * self.count // len(group) for group in self.groups}
            step = lcm(*(ALIGN // gcd(ALIGN, width) for width in widths))
        return place * slot.shape[0] // len(self.groups) // step * step

    def reduced(self) -> Iterator[Copy]:
        """What owners are sent. All terms of an element are cut at the same places."""
        windows = self._windows
        cuts = [block for of_place in windows for blocks in of_place.values() for block in blocks]
        for place, other in self._pairs():
            needed = {
                rank: [piece for block in self.owned(place, part) for piece in cut(block, cuts)]
                for rank, part in self.members(place)
            }
            yield from copies(windows[other], needed)

    def gathered(self) -> Iterator[Copy]:
        """What owners send."""
        for place, other in self._pairs():
            held = {rank: list(self.owned(other, part)) for rank, part in self.members(other)}
            needed = {rank: list(self.owned(other, part)) for rank, part in self.members(place)}
            yield from copies(held, needed)

    @property
    def _windows(self) -> list[dict[int, list[Block]]]:
        return [
            {rank: blocks_of(self.layout(part)) for rank, part in self.members(place)}
            for place in range(len(self.groups))
        ]

    def _pairs(self) -> Iterator[tuple[int, int]]:
        places = range(len(self.groups))
        return ((place, other) for place in places for other in places if place != other)


@lru_cache(maxsize=64)
def _turns(shared: _Shared, rank: int, limit: int, *, reduces: bool) -> list[list[Copy]]:
    """The turns of a reduction or of a gather, as far as they are a rank's."""
    of_all = turns(list(shared.reduced() if reduces else shared.gathered()), limit)
    return [[copy for copy in turn if rank in copy[:2]] for turn in of_all]


class Slots:
    """A unit of `count` slots as one rank holds it. `layout`: its own; `groups`: of each replica
    the world ranks that hold it, one of which is `world`."""

    def __init__(
        self, layout: UnitParameters, groups: Sequence[Sequence[int]], world: int, count: int
    ) -> None:
        shapes = tuple((parameter.name, parameter.whole_shape) for parameter in layout.parameters)
        self._shared = _Shared(shapes, tuple(map(tuple, groups)), count)
        self._layout, self._world, self.count = layout, world, count
        self.holders: Holders = tuple(rank for group in groups for rank in group)
        self._place = next(d for d, group in enumerate(groups) if world in group)
        self._place_of = {rank: d for d, group in enumerate(groups) for rank in group}
        group = self._shared.groups[self._place]
        self._division = Division(group.index(world), len(group))

    # ---- who owns what ------------------------------------------------------------------

    @property
    def owned(self) -> tuple[slice, ...]:
        """The ranges of this rank's buffer that it owns."""
        return tuple(self._run(block, self._place) for block in self._owned(self._place))

    @property
    def replicas(self) -> int:
        """How many groups hold the unit."""
        return len(self._shared.groups)

    @property
    def slot_size(self) -> int:
        """Elements of a slot's own buffer."""
        return self._shared.layout(Division(0, self.count)).size

    @cached_property
    def runs(self) -> tuple[slice, ...]:
        """Those that any replica's ranks own: together the buffer, but for what fills it up."""
        places = range(self.replicas)
        return tuple(self._run(block, place) for place in places for block in self._owned(place))

    def rows_of(self, parameter: str) -> Iterator[tuple[Division, slice]]:
        """The runs of a parameter that is cut by rows, each with the slot that it is part of: slot
        by slot, replica by replica."""
        height = self._shared.rows(parameter, self.replicas)
        found = [
            (block.rows[0] // height, place, self._run(block, place))
            for place in range(self.replicas)
            for block in self._owned(place)
            if block.name == parameter
        ]
        for slot, _, run in sorted(found, key=lambda each: each[:2]):
            yield Division(slot, self.count), run

    def stored(self) -> Iterator[Stored]:
        """What this rank writes of its slots."""
        owned = ((block, self._run(block, self._place)) for block in self._owned(self._place))
        return stored_in(self._shared.layout, self._division, self.count, owned)

    def _owned(self, place: int) -> Iterator[Block]:
        """What a replica owns of this rank's buffer."""
        return self._shared.owned(place, self._division)

    def _run(self, block: Block, place: int) -> slice:
        """Whole rows of this rank's buffer; behind the last columns also what fills it up."""
        end = block.offset + block.height * block.stride
        if cut_dim(block.name) == COLUMNS and place == self.replicas - 1:
            held = self._layout.by_name[block.name]
            end = held.offset + aligned(held.elements)
        return slice(block.offset, end)

    # ---- sums and copies ----------------------------------------------------------------

    def reduce(self, network: Swaps, flat: Tensor) -> None:
        """Adds up all replicas' `flat` in the order of replicas, where this rank owns it; nothing
        else of it is written."""
        for turn in self._turns(reduces=True):
            leaving: dict[int, list[Tensor]] = defaultdict(list)
            landing: dict[int, list[Tensor]] = defaultdict(list)
            sums: dict[Block, dict[int, Tensor]] = defaultdict(dict)
            for source, target, held, needed in turn:
                if source == self._world:
                    leaving[self._peer(target)].append(view_of(flat, held).contiguous())
                else:
                    room = flat.new_empty(needed.height, needed.width)
                    landing[self._peer(source)].append(room)
                    sums[needed][self._place_of[source]] = room
            network.swap(Lane.REDUCE, self.holders, leaving, landing)
            for block, parts in sums.items():
                parts[self._place] = total = view_of(flat, block)
                add_up([parts[place] for place in sorted(parts)], total)

    def gather(
        self, network: Swaps, lane: Lane, flat: Tensor, unlike: Unlike | None = None
    ) -> None:
        """Fills `flat` with what other replicas' ranks own of it; the own part is already there.
        `unlike`: in their dtypes."""
        for turn in self._turns(reduces=False):
            leaving: dict[int, list[Tensor]] = defaultdict(list)
            landing: dict[int, list[Tensor]] = defaultdict(list)
            arrived: list[tuple[Tensor, Tensor]] = []
            for source, target, held, needed in turn:
                if source == self._world:
                    here = view_of(flat, held)
                    if unlike is not None:
                        master = unlike.master(slice(held.offset, held.end))
                        dtype = unlike.dtypes[self._peer(target)]
                        here = view_of(master, held, begin=held.offset).to(dtype)
                    leaving[self._peer(target)].append(here.contiguous())
                else:
                    theirs = view_of(flat, needed)
                    arrived.append((theirs, theirs.contiguous()))
                    landing[self._peer(source)].append(arrived[-1][1])
            network.swap(lane, self.holders, leaving, landing)
            for theirs, room in arrived:
                if theirs.data_ptr() != room.data_ptr():
                    theirs.copy_(room)

    def _turns(self, *, reduces: bool) -> list[list[Copy]]:
        """What goes at once, the same on all ranks: what a rank holds of it beside its buffer fits
        into what the proof counts for a reduction."""
        limit = CHUNK_BYTES // 4 * (self.replicas - 1)
        return _turns(self._shared, self._world, limit, reduces=reduces)

    def _peer(self, rank: int) -> int:
        """A world rank's place among the holders."""
        return self.holders.index(rank)
