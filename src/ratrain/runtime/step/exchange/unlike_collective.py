"""Views gathered by a collective of several rounds among ranks that compute in different dtypes.

A part travels in the dtype that its receiver and all ranks behind it compute in, where that is one,
and else in fp32, as its owner has it; whoever needs it in 16 bits rounds it. Rounding fp32 is the
same wherever it is done, so a view has the bits of a direct gather.

Pieces follow each other as in `collective`. What a rank holds of them beside its view fits into
what `cost.scratch` counts for the lane of gathers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ratrain.cost.exchanges import Exchange, Turn
from ratrain.cost.scratch import ON_CPU
from ratrain.runtime.step.exchange.collective import Step, Swap, wave
from ratrain.runtime.step.exchange.unlike_views import UnlikeView

WIDE = torch.float32
_ROOM_BYTES = 2 * ON_CPU.narrowed

Dtypes = tuple[torch.dtype, ...]


def gather_unlike_by(exchange: Exchange, view: UnlikeView, swap: Swap) -> None:
    """Fills a view with every holder's part by an exchange, the other way round."""
    travel = Travel(exchange, view.dtypes)
    gathering = _Gathering(travel, view)
    for steps in wave(exchange, view.parts, travel.piece_elements):
        landing = gathering.landing(steps)
        swap(gathering.leaving(steps), landing)
        gathering.landed(steps)


@dataclass(frozen=True)
class Travel:
    """In which dtype each part goes to each place, and what places hold of it meanwhile."""

    exchange: Exchange
    dtypes: Dtypes

    @cached_property
    def turns(self) -> tuple[tuple[Turn, ...], ...]:
        """Of each place, round by round. What leaves in a reduction arrives in a gather."""
        return tuple(
            tuple(Turn(turn.arriving, turn.leaving) for turn in reversed(turns))
            for turns in self.exchange.turns
        )

    @cached_property
    def of_part(self) -> tuple[tuple[torch.dtype, ...], ...]:
        """For each place, in what every part arrives there; the owner has it in fp32."""
        needed = [[{dtype} for _ in self.dtypes] for dtype in self.dtypes]
        # From the last round to the first: those behind a receiver are known before it.
        for number in reversed(range(self.exchange.rounds)):
            for place, turns in enumerate(self.turns):
                for parcel in turns[number].leaving:
                    for part in parcel.parts:
                        needed[place][part] |= needed[parcel.peer][part]
        return tuple(
            tuple(
                next(iter(dtypes)) if len(dtypes) == 1 and part != place else WIDE
                for part, dtypes in enumerate(of_place)
            )
            for place, of_place in enumerate(needed)
        )

    @cached_property
    def last_rounds(self) -> tuple[tuple[int, ...], ...]:
        """For each place, the round in which it sends each part for the last time; -1: it sends it
        to nobody."""
        last = [[-1] * len(self.dtypes) for _ in self.dtypes]
        for place, turns in enumerate(self.turns):
            for number, turn in enumerate(turns):
                for parcel in turn.leaving:
                    for part in parcel.parts:
                        last[place][part] = number
        return tuple(map(tuple, last))

    @cached_property
    def piece_elements(self) -> int:
        """Of one piece, the same at all places."""
        most_bytes = max(map(self._held_bytes, range(len(self.dtypes))))
        return max(1, _ROOM_BYTES // max(1, most_bytes))

    def _held_bytes(self, place: int) -> int:
        """The most that a place holds for an element of every piece under way: parts in fp32 from
        their arrival until they have left, and what is rounded to leave."""
        own, last, held = self.dtypes[place], self.last_rounds[place], 0
        for number, turn in enumerate(self.turns[place]):
            for parcel in turn.arriving:
                for part in parcel.parts:
                    if self.of_part[place][part] != own:
                        held += 4 * (last[part] - number + 1)
            for parcel in turn.leaving:
                dtypes = (self.of_part[parcel.peer][part] for part in parcel.parts)
                held += sum(2 for dtype in dtypes if dtype not in (own, WIDE))
        return held


class _Gathering:
    """One gather, as one place carries it out."""

    def __init__(self, travel: Travel, view: UnlikeView) -> None:
        self._travel, self._view = travel, view
        self._turns = travel.turns[view.place]
        self._wide: dict[tuple[int, int], Tensor] = {}  # (piece, part) -> in fp32, until it left

    def landing(self, steps: list[Step]) -> dict[int, list[Tensor]]:
        """Where what arrives in a turn is put."""
        rooms: dict[int, list[Tensor]] = defaultdict(list)
        for step in steps:
            for parcel in self._turns[step.round].arriving:
                rooms[parcel.peer] += [self._room(step, part) for part in parcel.parts]
        return rooms

    def _room(self, step: Step, part: int) -> Tensor:
        here = self._view.parts[part][step.piece]
        if self._travel.of_part[self._view.place][part] == here.dtype:
            return here
        room = torch.empty_like(here, dtype=WIDE)
        self._wide[step.number, part] = room
        return room

    def leaving(self, steps: list[Step]) -> dict[int, list[Tensor]]:
        """What leaves in a turn."""
        sent: dict[int, list[Tensor]] = defaultdict(list)
        for step in steps:
            for parcel in self._turns[step.round].leaving:
                of_part = self._travel.of_part[parcel.peer]
                sent[parcel.peer] += [self._sent(step, p, of_part[p]) for p in parcel.parts]
        return sent

    def _sent(self, step: Step, part: int, dtype: torch.dtype) -> Tensor:
        here = self._view.parts[part][step.piece]
        if dtype == here.dtype:
            return here
        if part == self._view.place:
            return self._view.master[step.piece].to(dtype)
        return self._wide.get((step.number, part), here).to(dtype)

    def landed(self, steps: list[Step]) -> None:
        """Rounds into the view what arrived wider, and lets go what leaves no more."""
        last = self._travel.last_rounds[self._view.place]
        for step in steps:
            for parcel in self._turns[step.round].arriving:
                for part in parcel.parts:
                    if (step.number, part) in self._wide:
                        wide = self._wide[step.number, part]
                        self._view.parts[part][step.piece].copy_(wide)
            for part, round_ in enumerate(last):
                if round_ <= step.round:
                    self._wide.pop((step.number, part), None)
