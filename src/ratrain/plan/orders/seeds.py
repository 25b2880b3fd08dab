"""Orders to begin a search with: each rank takes, of what is ready, what a policy likes best.

A policy says how much a rank may hold, whether backward goes before forward, and when weight
gradients are computed. It runs on a coarse clock of whole stages and messages, so an order adapts
itself to unequal stages and slow links. What the order is worth, the simulator says.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import ceil, inf
from typing import Literal

from ratrain.plan.orders.clock import Order, Orders
from ratrain.program.kind import Kind
from ratrain.program.plain import Step
from ratrain.program.skeletons import Place


@dataclass(frozen=True)
class Pipeline:
    """A pipeline as a policy sees it. Stage s stands at place s mod `places`."""

    places: int
    stages: int
    micro_batches: int
    backward: Kind  # B, or I where W follows it
    compute_s: Mapping[tuple[Kind, int], float]  # of a stage for one micro-batch
    message_s: Mapping[tuple[Kind, int], tuple[float, float]]  # of its output: on the link, latency
    held_bytes: Sequence[int]  # of a stage from forward to the end of backward
    room_bytes: Sequence[float]  # of each place for these

    @property
    def split(self) -> bool:
        return self.backward is Kind.I

    @property
    def chunks(self) -> int:
        return self.stages // self.places

    @property
    def each_place(self) -> Iterator[Place]:
        """Its places, as orders with a name see them."""
        for place in range(self.places):
            yield Place(place, self.places, self.chunks, self.micro_batches)

    @property
    def ending(self) -> Kind:
        """After which a stage holds nothing more of a micro-batch."""
        return Kind.W if self.split else self.backward

    def peak_bytes(self, order: Order) -> int:
        """The most that a rank holds in an order, of what waits for backward."""
        held = peak = 0
        for kind, stage, _ in order:
            if kind is Kind.F:
                held += self.held_bytes[stage]
                peak = max(peak, held)
            elif kind is self.ending:
                held -= self.held_bytes[stage]
        return peak


Turns = Literal["deep", "wide", "rounds"]


@dataclass(frozen=True)
class Policy:
    """What a rank does next. `ahead` is the most micro-batches of a stage that each place holds.
    `patience`: for how much of a weight gradient's time it rather waits for what comes."""

    ahead: tuple[float, ...]
    backward_first: bool
    patience: float
    turns: Turns  # of a rank's stages: the last one first, the first one first, or by rounds


def policies(pipeline: Pipeline) -> Iterator[Policy]:
    """Policies worth trying: from those that hold what memory has room for to 1F1B's depths."""
    places, chunks = pipeline.places, pipeline.chunks
    limits: list[tuple[float, ...]] = [(inf,) * places]
    limits += [(float(count),) * places for count in (2 * places, places + 1)]
    deep = [(chunks - 1) * places + min(chunks, 2) * (places - p) for p in range(places)]
    for factor, more in product((3.0, 2.0, 1.5, 1.0), (1, 0)):
        limits.append(tuple(ceil(factor * depth) + more for depth in deep))
    patiences = (0.0, 0.5, 1.0) if pipeline.split else (0.0,)
    turns: tuple[Turns, ...] = ("rounds", "deep", "wide") if chunks > 1 else ("rounds",)
    for ahead, first, turn, patience in product(limits, (True, False), turns, patiences):
        yield Policy(ahead, first, patience, turn)


def order_of(pipeline: Pipeline, policy: Policy) -> Orders:
    """The order that a policy leads to."""
    return _Greedy(pipeline, policy).run()


@dataclass
class _Place:
    """Where a rank stands: what it computed, and the next micro-batch of each of its stages."""

    stages: list[int]
    largest_bytes: int  # that one of its stages holds of a micro-batch
    order: list[Step] = field(default_factory=list[Step])
    free_s: float = 0.0
    held_bytes: int = 0
    held: int = 0


class _Greedy:
    def __init__(self, pipeline: Pipeline, policy: Policy) -> None:
        self.pipeline, self.policy = pipeline, policy
        of_places = [range(p, pipeline.stages, pipeline.places) for p in range(pipeline.places)]
        self.places = [
            _Place(list(stages), max(pipeline.held_bytes[stage] for stage in stages))
            for stages in of_places
        ]
        self.following: dict[tuple[Kind, int], int] = {
            (kind, stage): 0
            for kind in (Kind.F, pipeline.backward, Kind.W)
            for stage in range(pipeline.stages)
        }
        self.arrived_s: dict[Step, float] = {
            (Kind.F, 0, m): 0.0 for m in range(pipeline.micro_batches)
        }
        self.link_free_s: dict[tuple[Kind, int], float] = {}
        self.events: list[tuple[float, int]] = [(0.0, place) for place in range(pipeline.places)]

    def run(self) -> Orders:
        kinds = 3 if self.pipeline.split else 2
        pieces = self.pipeline.stages * self.pipeline.micro_batches * kinds
        done = 0
        while done < pieces:
            if self.events:
                now, number = heapq.heappop(self.events)
                if self.places[number].free_s > now:
                    continue
                piece = self._choice(number, now)
            else:  # all wait for room: the forward that is furthest on goes in spite of it
                number, piece, now = self._pressed()
            if piece is not None:
                self._compute(number, piece, now)
                done += 1
        return tuple(tuple(place.order) for place in self.places)

    def _ready_s(self, kind: Kind, stage: int) -> tuple[float, Step]:
        """When the next piece of a kind can begin at a stage; never, where nobody knows yet."""
        piece = kind, stage, self.following[kind, stage]
        if kind is Kind.W:
            known = piece[2] < self.following[self.pipeline.backward, stage]
            return (0.0 if known else inf), piece
        return self.arrived_s.get(piece, inf), piece

    def _choice(self, number: int, now: float) -> Step | None:
        place, backward = self.places[number], self.pipeline.backward
        kinds = [backward, Kind.F] if self.policy.backward_first else [Kind.F, backward]
        soonest = inf
        for kind in kinds:
            if kind is Kind.F and not self._has_room(number):
                continue
            ready: list[Step] = []
            for stage in place.stages:
                ready_s, piece = self._ready_s(kind, stage)
                if ready_s <= now:
                    ready.append(piece)
                soonest = min(soonest, ready_s)
            if ready:
                return min(ready, key=self._turn)
        if not self.pipeline.split:
            return None
        for stage in reversed(place.stages):
            ready_s, piece = self._ready_s(Kind.W, stage)
            if ready_s <= now:
                weight_s = self.pipeline.compute_s[Kind.W, stage]
                return None if soonest - now < self.policy.patience * weight_s else piece
        return None

    def _has_room(self, number: int) -> bool:
        place, room_bytes = self.places[number], self.pipeline.room_bytes[number]
        fits = place.held_bytes + place.largest_bytes <= room_bytes
        return fits and place.held < self.policy.ahead[number]

    def _turn(self, piece: Step) -> tuple[int, ...]:
        kind, stage, micro_batch = piece
        onward = stage if kind is Kind.F else -stage
        if self.policy.turns == "deep":
            return -onward, micro_batch
        if self.policy.turns == "wide":
            return onward, micro_batch
        return micro_batch // self.pipeline.places, onward, micro_batch

    def _pressed(self) -> tuple[int, Step, float]:
        stages = reversed(range(self.pipeline.stages))
        for stage in stages:
            ready_s, piece = self._ready_s(Kind.F, stage)
            if ready_s < inf:
                number = stage % self.pipeline.places
                return number, piece, max(ready_s, self.places[number].free_s)
        raise AssertionError("a pipeline always has something to compute")

    def _compute(self, number: int, piece: Step, now: float) -> None:
        kind, stage, micro_batch = piece
        place, pipeline = self.places[number], self.pipeline
        place.order.append(piece)
        place.free_s = now + pipeline.compute_s[kind, stage]
        heapq.heappush(self.events, (place.free_s, number))
        self.following[kind, stage] += 1
        if kind is Kind.F:
            place.held += 1
            place.held_bytes += pipeline.held_bytes[stage]
        elif kind is pipeline.ending:
            place.held -= 1
            place.held_bytes -= pipeline.held_bytes[stage]
        if kind is Kind.W:
            return
        last = pipeline.stages - 1
        if kind is Kind.F and stage == last:
            self.arrived_s[pipeline.backward, stage, micro_batch] = place.free_s
        other = stage + (1 if kind is Kind.F else -1)
        if 0 <= other <= last:
            arrived_s = self._sent(piece, place.free_s)
            self.arrived_s[kind, other, micro_batch] = arrived_s
            receiver = other % pipeline.places
            # A forward that was pressed may end before what its receiver has computed since.
            looks_s = max(arrived_s, self.places[receiver].free_s)
            heapq.heappush(self.events, (looks_s, receiver))

    def _sent(self, piece: Step, ready_s: float) -> float:
        """When what a piece makes has arrived: messages of a place follow each other."""
        kind, stage, _ = piece
        link_s, latency_s = self.pipeline.message_s.get((kind, stage), (0.0, 0.0))
        link = kind, stage % self.pipeline.places
        ended_s = max(ready_s, self.link_free_s.get(link, 0.0)) + link_s
        self.link_free_s[link] = ended_s
        return ended_s + latency_s
