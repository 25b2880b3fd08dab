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
from functools import cached_property
from math import gcd, lcm, prod
from typing import Protocol

import torch
from torch import Tensor

from ratrain.cost.scratch import CHUNK_BYTES
from ratrain.models.division import COLUMNS, ROWS, Division, cut_dim
from ratrain.models.parameters import ALIGN, Parameter, UnitParameters, aligned, lay_out
from ratrain.program.kind import Lane
from ratrain.runtime.seats import Holders
from ratrain.runtime.step.collective import Tensors
from ratrain.runtime.step.sums import add_up


class Swaps(Protocol):
    """What slots need of a network."""

    def swap(self, lane: Lane, holders: Holders, leaving: Tensors, landing: Tensors) -> None: ...


@dataclass(frozen=True)
class Stored:
    """What a rank writes of a slot to a checkpoint: elements begin .. end of the slot's own buffer,
    which are some columns of a run of the rank's buffer, with rows of `width` elements, and zeros
    behind them."""

    slot: Division
    begin: int
    end: int
    run: slice
    width: int
    columns: slice

    def pieces(self, values: Tensor) -> Iterator[Tensor]:
        """The elements, of what the run holds, piece by piece."""
        rows = values[: self.run.stop - self.run.start].view(-1, self.width)[:, self.columns]
        for piece in rows.split(max(1, CHUNK_BYTES // (4 * self.width))):
            yield piece.reshape(-1)
        padding = self.end - self.begin - rows.numel()
        if padding:
            yield values.new_zeros(padding)


@dataclass(frozen=True)
class Unlike:
    """A view that holders have in different dtypes. `dtypes`: of each place among the holders;
    `master`: of a run that this rank owns the fp32 weights."""

    dtypes: Sequence[torch.dtype]
    master: Callable[[slice], Tensor]


@dataclass(frozen=True)
class _Item:
    """A parameter, and which of how many pieces of every replica's rows."""

    parameter: int
    piece: int
    pieces: int


class Slots:
    """A unit of `count` slots as one rank holds it. `layout`: its own; `groups`: of each replica
    the world ranks that hold it, one of which is `world`."""

    def __init__(
        self, layout: UnitParameters, groups: Sequence[Sequence[int]], world: int, count: int
    ) -> None:
        self._layout = layout
        self._groups = [tuple(group) for group in groups]
        self.holders: Holders = tuple(rank for group in groups for rank in group)
        self._place = next(d for d, group in enumerate(groups) if world in group)
        self._rank = self._groups[self._place].index(world)
        self.count = count
        whole = [(parameter.name, parameter.whole_shape) for parameter in layout.parameters]
        self._slot = lay_out(whole, Division(0, self.count))

    # ---- who owns what ------------------------------------------------------------------

    @property
    def owned(self) -> tuple[slice, ...]:
        """The ranges of this rank's buffer that it owns."""
        return self._runs(self._place)

    @property
    def replicas(self) -> int:
        """How many groups hold the unit."""
        return len(self._groups)

    @property
    def slot_size(self) -> int:
        """Elements of a slot's own buffer."""
        return self._slot.size

    @cached_property
    def runs(self) -> tuple[slice, ...]:
        """Those that any replica's ranks own: together the buffer, but for what fills it up."""
        return tuple(run for place in range(len(self._groups)) for run in self._runs(place))

    def rows_of(self, parameter: str) -> Iterator[tuple[Division, slice]]:
        """The runs of a parameter that is cut by rows, each with the slot that it is part of: slot
        by slot, replica by replica."""
        names = [own.name for own, _ in self._parameters]
        number = names.index(parameter)
        _, part = self._parameters[number]
        for slot in self._slots:
            for place in range(len(self._groups)):
                run = self._run(number, slot, *self._rows(part, place))
                if run.start < run.stop:
                    yield Division(slot, self.count), run

    def stored(self) -> Iterator[Stored]:
        """What this rank writes of its slots."""
        for slot in self._slots:
            for number, (held, part) in enumerate(self._parameters):
                first, last = self._rows(part, self._place)
                width = _width(part)
                end = part.offset + last * width
                if self._place == len(self._groups) - 1:
                    end = part.offset + aligned(part.elements)
                begin = part.offset + first * width
                if begin == end:
                    continue
                columns = slice(0, width)
                if cut_dim(part.name) == COLUMNS:
                    column = self._local(slot) * width
                    columns = slice(column, column + width)
                run = self._run(number, slot, first, last)
                division = Division(slot, self.count)
                yield Stored(division, begin, end, run, _width(held), columns)

    def _runs(self, place: int) -> tuple[slice, ...]:
        """What a replica owns of this rank's buffer, as far as it is not empty."""
        runs: list[slice] = []
        for number, (held, part) in enumerate(self._parameters):
            rows = self._rows(part, place)
            slots = self._slots if cut_dim(part.name) == ROWS else self._slots[:1]
            of_slots = [self._run(number, slot, *rows) for slot in slots]
            if cut_dim(part.name) == COLUMNS and place == len(self._groups) - 1:
                of_slots = [slice(of_slots[0].start, held.offset + aligned(held.elements))]
            runs += of_slots
        return tuple(run for run in runs if run.start < run.stop)

    def _run(self, number: int, slot: int, first: int, last: int) -> slice:
        """Rows of a slot of a parameter, as wide as they are in this rank's buffer."""
        held, part = self._parameters[number]
        before = self._local(slot) * part.shape[0] if cut_dim(part.name) == ROWS else 0
        width = _width(held)
        return slice(held.offset + (before + first) * width, held.offset + (before + last) * width)

    def _rows(self, part: Parameter, place: int, item: _Item | None = None) -> tuple[int, int]:
        """The rows of a slot's parameter that a replica owns; of an item, its piece of them."""
        first, last = self._boundary(part, place), self._boundary(part, place + 1)
        if item is None:
            return first, last
        count = last - first
        begin, end = (count * (item.piece + more) // item.pieces for more in (0, 1))
        return first + begin, first + end

    def _boundary(self, part: Parameter, place: int) -> int:
        """The row with which a replica's begin. Rows that are cut have another width at each
        degree: there what is owned is made of whole blocks of the optimizer at all of them, since
        its last elements, outside of a block, could get other bits."""
        rows, replicas = part.shape[0], len(self._groups)
        if place == replicas:
            return rows
        step = 1
        if cut_dim(part.name) == COLUMNS:
            widths = {_width(part) * self.count // len(group) for group in self._groups}
            step = lcm(*(ALIGN // gcd(ALIGN, width) for width in widths))
        return place * rows // replicas // step * step

    @property
    def _slots(self) -> range:
        """Those that this rank holds."""
        each = self.count // len(self._groups[self._place])
        return range(self._rank * each, (self._rank + 1) * each)

    def _local(self, slot: int) -> int:
        return slot - self._slots.start

    @cached_property
    def _parameters(self) -> list[tuple[Parameter, Parameter]]:
        """Each as this rank holds it, and as a slot does."""
        return [(held, self._slot.by_name[held.name]) for held in self._layout.parameters]

    # ---- sums and copies ----------------------------------------------------------------

    def reduce(self, network: Swaps, flat: Tensor) -> None:
        """Adds up all replicas' `flat` in the order of replicas, where this rank owns it; nothing
        else of it is written."""
        for items in self._turns:
            leaving: dict[int, list[Tensor]] = defaultdict(list)
            landing: dict[int, list[Tensor]] = defaultdict(list)
            sums: list[tuple[Tensor, dict[int, Tensor]]] = []
            for slot, item in self._each(items):
                here = self._view(flat, slot, item, self._place)
                parts = {self._place: here}
                for place, peer, goes, comes in self._peers(slot, item):
                    if goes:
                        theirs = self._view(flat, slot, item, place)
                        if theirs.numel():
                            leaving[peer].append(theirs.contiguous())
                    if comes and here.numel():
                        parts[place] = torch.empty_like(here, memory_format=torch.contiguous_format)
                        landing[peer].append(parts[place])
                if len(parts) > 1:
                    sums.append((here, parts))
            network.swap(Lane.REDUCE, self.holders, leaving, landing)
            for total, parts in sums:
                add_up([parts[place] for place in sorted(parts)], total)

    def gather(
        self, network: Swaps, lane: Lane, flat: Tensor, unlike: Unlike | None = None
    ) -> None:
        """Fills `flat` with what other replicas' ranks own of it; the own part is already there.
        `unlike`: in their dtypes."""
        for items in self._turns:
            leaving: dict[int, list[Tensor]] = defaultdict(list)
            landing: dict[int, list[Tensor]] = defaultdict(list)
            copies: list[tuple[Tensor, Tensor]] = []
            for slot, item in self._each(items):
                here = self._view(flat, slot, item, self._place)
                for place, peer, goes, comes in self._peers(slot, item):
                    if goes and here.numel():
                        leaving[peer].append(
                            here.contiguous()
                            if unlike is None
                            else self._narrowed(unlike, slot, item, peer)
                        )
                    theirs = self._view(flat, slot, item, place)
                    if comes and theirs.numel():
                        room = theirs if theirs.is_contiguous() else theirs.contiguous()
                        landing[peer].append(room)
                        copies.append((theirs, room))
            network.swap(lane, self.holders, leaving, landing)
            for theirs, room in copies:
                if theirs.data_ptr() != room.data_ptr():
                    theirs.copy_(room)

    def _each(self, items: Sequence[_Item]) -> Iterator[tuple[int, _Item]]:
        """The order within a turn, the same at both ends of every pair."""
        return ((slot, item) for slot in self._slots for item in items)

    def _peers(self, slot: int, item: _Item) -> Iterator[tuple[int, int, bool, bool]]:
        """Of every other replica: its number, the place among the holders of its rank that has the
        slot, and whether something goes there and comes from there."""
        whole = cut_dim(self._parameters[item.parameter][1].name) is None
        comes = not whole or slot == self._slots.start
        first = 0
        for place, group in enumerate(self._groups):
            if place != self._place:
                peer = slot * len(group) // self.count
                goes = not whole or slot == peer * self.count // len(group)
                yield place, first + peer, goes, comes
            first += len(group)

    def _view(self, flat: Tensor, slot: int, item: _Item, place: int) -> Tensor:
        """The rows of a slot that a replica owns, in this rank's buffer."""
        return self._columns(flat[self._run_of(slot, item, place)], slot, item)

    def _narrowed(self, unlike: Unlike, slot: int, item: _Item, peer: int) -> Tensor:
        """The rows of a slot that this rank owns, as they leave for a holder."""
        mine = unlike.master(self._run_of(slot, item, self._place))
        return self._columns(mine, slot, item).to(unlike.dtypes[peer]).contiguous()

    def _run_of(self, slot: int, item: _Item, place: int) -> slice:
        """The rows of a slot that a replica owns, as a run of this rank's buffer."""
        _, part = self._parameters[item.parameter]
        return self._run(item.parameter, slot, *self._rows(part, place, item))

    def _columns(self, run: Tensor, slot: int, item: _Item) -> Tensor:
        """What is the slot's, of a run of this rank's buffer."""
        held, part = self._parameters[item.parameter]
        rows, width = run.view(-1, _width(held)), _width(part)
        if cut_dim(part.name) == COLUMNS:
            return rows[:, self._local(slot) * width : (self._local(slot) + 1) * width]
        return rows

    @cached_property
    def _turns(self) -> list[list[_Item]]:
        """What goes at once, the same on all ranks: what a rank holds of it beside its buffer fits
        into what the proof counts for a reduction."""
        limit, replicas = CHUNK_BYTES // (4 * self.count), len(self._groups)
        turns: list[list[_Item]] = [[]]
        filled = 0
        for number, (_, part) in enumerate(self._parameters):
            width = _width(part)
            owned = [self._rows(part, place) for place in range(replicas)]
            rows = max(last - first for first, last in owned)
            pieces = min(rows, -(-rows * width // limit))
            for piece in range(pieces):
                size = -(-rows // pieces) * width
                if filled and filled + size > limit:
                    turns.append([])
                    filled = 0
                turns[-1].append(_Item(number, piece, pieces))
                filled += size
        return turns


def _width(parameter: Parameter) -> int:
    """Elements of a row."""
    return prod(parameter.shape[1:])
