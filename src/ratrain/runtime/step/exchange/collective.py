"""A collective of several rounds, carried out piece by piece, on any network.

While a piece is in its second round the next one is in its first: links inside hosts and links
between hosts are in use at once. In each turn of this loop a rank sends each peer one frame with
everything that the turn has for it, and sums what arrives in the order of places.

Gradients are sent in the dtype of the wire. A partial sum is sent on in fp32, so that it is rounded
once, by its owner, as in a direct exchange.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ratrain.cost.exchanges import Exchange, Parcel
from ratrain.cost.scratch import CHUNK_BYTES, reduction_chunks
from ratrain.runtime.step.exchange.sums import add_up

Tensors = Mapping[int, Sequence[Tensor]]
"""By the place of a peer."""
Swap = Callable[[Tensors, Tensors], None]
"""Sends peers the first, and fills the second with what they send, at once."""


@dataclass(frozen=True)
class Step:
    """A round and the piece that is in it."""

    round: int
    piece: slice
    number: int  # of the piece


def reduce_by(exchange: Exchange, place: int, flat: Tensor, out: Tensor, swap: Swap) -> None:
    """Adds up every place's `flat` by an exchange; the own part of the sum goes to `out`, which may
    be at its place in `flat`. Nothing else in `flat` is written."""
    _Reduction(exchange, place, flat, out, swap).run()


def gather_by(exchange: Exchange, place: int, flat: Tensor, swap: Swap) -> None:
    """Fills `flat` with every place's part: the exchange the other way round."""
    parts = flat.view(len(exchange.turns), -1)
    turns = exchange.turns[place][::-1]
    for steps in wave(exchange, parts, _piece_elements(exchange)):
        leaving: dict[int, list[Tensor]] = defaultdict(list)
        landing: dict[int, list[Tensor]] = defaultdict(list)
        for step in steps:
            turn = turns[step.round]
            for towards, parcels in ((leaving, turn.arriving), (landing, turn.leaving)):
                for parcel in parcels:
                    towards[parcel.peer] += [parts[part][step.piece] for part in parcel.parts]
        swap(leaving, landing)


class _Reduction:
    """One reduction, as one place carries it out."""

    def __init__(
        self, exchange: Exchange, place: int, flat: Tensor, out: Tensor, swap: Swap
    ) -> None:
        self._exchange, self._place, self._out, self._swap = exchange, place, out, swap
        self._parts = flat.view(len(exchange.turns), -1)
        self._wide = torch.promote_types(flat.dtype, torch.float32)
        self._came: dict[tuple[int, int], Tensor] = {}  # (piece, part) -> what is summed so far
        self._gone: set[tuple[int, int]] = set()  # own numbers that have left
        self._turns = exchange.turns[place]
        self._last = max(
            number
            for number, turn in enumerate(self._turns)
            if any(place in parcel.parts for parcel in turn.arriving)
        )

    def run(self) -> None:
        for steps in wave(self._exchange, self._parts, _piece_elements(self._exchange)):
            arrived = self._exchanged(steps)
            while arrived:
                self._add(*arrived.pop(0))

    def _exchanged(self, steps: list[Step]) -> list[tuple[Step, dict[int, dict[int, Tensor]]]]:
        """What arrives in each of a turn's steps; what leaves in them is let go."""
        leaving: dict[int, list[Tensor]] = defaultdict(list)
        landing: dict[int, list[Tensor]] = defaultdict(list)
        arrived = [(step, self._rooms(step, landing)) for step in steps]
        for step in steps:
            for parcel in self._turns[step.round].leaving:
                for part in parcel.parts:
                    leaving[parcel.peer] += self._take(step, part)
        self._swap(leaving, landing)
        return arrived

    def _rooms(self, step: Step, landing: dict[int, list[Tensor]]) -> dict[int, dict[int, Tensor]]:
        """Room for what arrives in a step: {part: {place: tensor}}."""
        rooms: dict[int, dict[int, Tensor]] = defaultdict(dict)
        for parcel in self._turns[step.round].arriving:
            for part, room in zip(parcel.parts, self._new(step, parcel), strict=True):
                rooms[part][parcel.peer] = room
                landing[parcel.peer].append(room)
        return rooms

    def _new(self, step: Step, parcel: Parcel) -> Iterator[Tensor]:
        part_here = self._parts[self._place][step.piece]
        for summed in parcel.summed:
            yield torch.empty_like(part_here, dtype=self._wide if summed else part_here.dtype)

    def _take(self, step: Step, part: int) -> list[Tensor]:
        """What this place has of a part, which it lets go; nothing where that has left already."""
        key = step.number, part
        if key in self._came:
            return [self._came.pop(key)]
        if key in self._gone:
            return []
        self._gone.add(key)
        return [self._parts[part][step.piece]]

    def _add(self, step: Step, arrived: dict[int, dict[int, Tensor]]) -> None:
        while arrived:
            part, by_place = arrived.popitem()
            by_place.update((self._place, part_here) for part_here in self._take(step, part))
            terms = [by_place[place] for place in sorted(by_place)]
            if part == self._place and step.round == self._last:
                add_up(terms, self._out[step.piece])
            elif len(terms) == 1:
                self._came[step.number, part] = terms[0]
            else:
                total = torch.empty_like(terms[0], dtype=self._wide)
                add_up(terms, total)
                self._came[step.number, part] = total


def wave(exchange: Exchange, parts: Tensor, elements: int) -> Iterator[list[Step]]:
    """Turn by turn the pieces under way, of so many elements: each is one round later than the one
    before it."""
    begins = range(0, parts.shape[1], elements)
    pieces = [slice(begin, min(begin + elements, parts.shape[1])) for begin in begins]
    for turn in range(len(pieces) + exchange.rounds - 1):
        first = max(0, turn - len(pieces) + 1)
        rounds = range(first, min(turn + 1, exchange.rounds))
        yield [Step(number, pieces[turn - number], turn - number) for number in rounds]


def _piece_elements(exchange: Exchange) -> int:
    """Of one piece, the same at all places: what is held at once fits into what the proof counts
    for a reduction."""
    room_bytes = reduction_chunks(len(exchange.turns)) * CHUNK_BYTES
    return max(1, room_bytes // (4 * exchange.tensors_held()))
