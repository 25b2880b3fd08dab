"""Skeletons: the compute order of a pipeline, and nothing else.

A skeleton yields, for one rank, (kind, stage, micro-batch) in the order in which the rank
computes. Messages, state work and everything else come from `plain_program` and from passes.
To write a schedule: write a function like `one_f_one_b`, and declare it with what it needs.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm

from ratrain.errors import ProgramError
from ratrain.plugins import Registry
from ratrain.program.kind import Kind, Lane
from ratrain.program.plain import Transfer, UnitStep, plain_program
from ratrain.program.program import Program
from ratrain.program.replicas import Replica, Stage
from ratrain.program.setup import Setup

Steps = Iterator[tuple[Kind, int, int]]
F, B, I, W = Kind.F, Kind.B, Kind.I, Kind.W  # noqa: E741


@dataclass(frozen=True)
class Place:
    """A rank's position in the pipeline. Where a stage has several members, `rank` is the place
    that they share: each computes, of the order of the whole stage, what it serves. So members
    cannot wait for each other in a circle, whichever micro-batches they serve. `beside`: members
    that compute, in this stage and the later ones, beyond one of each. Where a stage computes
    several micro-batches at once, `micro_batches` counts these as one, and `beside` says how many
    more of them it must have begun than stages follow. `replica`: which of those that differ; only
    an order out of a file says something else of each."""

    rank: int
    ranks: int
    chunks: int  # stages a rank holds; stage numbers are rank, rank + ranks, ...
    micro_batches: int
    beside: int = 0
    replica: int = 0


def gpipe(place: Place) -> Steps:
    """All forwards, then all backwards. Huang et al. 2019, arXiv 1811.06965."""
    for micro_batch in range(place.micro_batches):
        yield F, place.rank, micro_batch
    for micro_batch in range(place.micro_batches):
        yield B, place.rank, micro_batch


def one_f_one_b(place: Place) -> Steps:
    """As many forwards ahead as stages follow, then one forward, one backward in turn.

    PipeDream-flush, Narayanan et al. 2021, arXiv 2006.09503. Stage s holds at most
    min(stages - s, micro-batches) micro-batches. Each further member of it, and of the stages that
    follow, adds one, so that all of them can be at work.
    """
    ahead = min(place.ranks - place.rank - 1 + place.beside, place.micro_batches)
    for micro_batch in range(ahead):
        yield F, place.rank, micro_batch
    for micro_batch in range(ahead, place.micro_batches):
        yield F, place.rank, micro_batch
        yield B, place.rank, micro_batch - ahead
    for micro_batch in range(place.micro_batches - ahead, place.micro_batches):
        yield B, place.rank, micro_batch


def interleaved(place: Place) -> Steps:
    """1F1B over several stages per rank, micro-batches in groups of the pipeline's length.

    Narayanan et al. 2021, arXiv 2104.04473, section 2.2. Shorter ramps, more messages.
    """
    if place.micro_batches % place.ranks:
        raise ProgramError(
            f"interleaved 1F1B needs micro-batches in multiples of {place.ranks} ranks, "
            f"not {place.micro_batches}",
            fix=f"use {-(-place.micro_batches // place.ranks) * place.ranks} micro-batches",
        )
    total = place.micro_batches * place.chunks
    group = place.ranks * place.chunks

    def step(index: int, *, forward: bool) -> tuple[int, int]:
        chunk = index % group // place.ranks
        if not forward:
            chunk = place.chunks - 1 - chunk
        micro_batch = index // group * place.ranks + index % place.ranks
        return chunk * place.ranks + place.rank, micro_batch

    ahead = (place.chunks - 1) * place.ranks + 2 * (place.ranks - 1 - place.rank)
    ahead = min(ahead, total)
    for index in range(ahead):
        yield F, *step(index, forward=True)
    for index in range(ahead, total):
        yield F, *step(index, forward=True)
        yield B, *step(index - ahead, forward=False)
    for index in range(total - ahead, total):
        yield B, *step(index, forward=False)


def zb_h1(place: Place) -> Steps:
    """1F1B with backward split: the input gradient leaves at once, weight gradients fill waits.

    Qi et al. 2023, arXiv 2401.10241, section 3.1. Rank i keeps i weight gradients outstanding,
    so that it holds no more activations than 1F1B's first stage does.
    """
    waiting: deque[int] = deque()

    def backward(micro_batch: int) -> Steps:
        yield I, place.rank, micro_batch
        waiting.append(micro_batch)
        if len(waiting) > place.rank:
            yield W, place.rank, waiting.popleft()

    for kind, _, micro_batch in one_f_one_b(place):
        if kind is F:
            yield F, place.rank, micro_batch
        else:
            yield from backward(micro_batch)
    while waiting:
        yield W, place.rank, waiting.popleft()


def breadth_first(place: Place) -> Steps:
    """All micro-batches of a stage, then the rank's next stage; backward the other way round.

    Lamy-Poirier 2022, arXiv 2211.05953 (LoopedBFS). Backward goes in ascending micro-batch order
    as everywhere here, so that gradients have the same bits. A unit's gradient is complete early,
    and its view is used by all micro-batches at once; every micro-batch is held.
    """
    for chunk in range(place.chunks):
        for micro_batch in range(place.micro_batches):
            yield F, chunk * place.ranks + place.rank, micro_batch
    for chunk in reversed(range(place.chunks)):
        for micro_batch in range(place.micro_batches):
            yield B, chunk * place.ranks + place.rank, micro_batch


def layer_major(together: int) -> Callable[[Place], Steps]:
    """1F1B with so many micro-batches together: between 1F1B (1) and breadth-first (all).

    Every rank is `together - 1` forwards further ahead than in 1F1B, so that a step begins with at
    least so many forwards in a row and ends with as many backwards. Of these, each layer computes
    all before the next layer does (`Skeleton.together`): a view is gathered while the layers before
    it compute so many micro-batches, and a gradient is complete so many micro-batches earlier.
    That pays where a rank holds the whole model. In a pipeline the last micro-batch's gradient
    comes when it comes, and the first output leaves no sooner.
    """

    def order(place: Place) -> Steps:
        return one_f_one_b(replace(place, beside=place.beside + together - 1))

    order.__doc__ = f"1F1B whose first and last {together} micro-batches go layer by layer."
    return order


Held = Callable[[Place], list[tuple[int, ...]]]
"""The fullest moments of a rank: for each how many micro-batches it holds of each of its stages."""


@dataclass(frozen=True)
class Fixed:
    """For what alone an order out of a file exists. `others`: where the file has an order for each
    of several replicas that differ, the ranks and micro-batches of all but the first."""

    file: str
    ranks: int
    chunks: int
    micro_batches: int
    others: tuple[tuple[int, int], ...] = ()

    @property
    def words(self) -> str:
        each = "" if self.chunks == 1 else f" of {self.chunks} stages each"
        first = f"{self.ranks} ranks{each} and {self.micro_batches} micro-batches"
        if not self.others:
            return first
        rest = (f", {ranks} and {micro_batches}" for ranks, micro_batches in self.others)
        return f"{1 + len(self.others)} replicas of {first}{''.join(rest)}"


@dataclass(frozen=True)
class Written:
    """What an order out of a file says beyond the turns of stages. `by_unit`: of each place what it
    computes, unit by unit (none: stage by stage). `transfers`: of a lane of each place, its
    reductions or gathers in turn, each (kind, stage, unit); other lanes keep to compute's order."""

    by_unit: Mapping[int, Sequence[UnitStep]]
    transfers: Mapping[tuple[int, Lane], Sequence[Transfer]]


@dataclass(frozen=True)
class Skeleton:
    """A compute order, and what it declares of itself.

    `held`: what a rank keeps in flight; None: read off the order. `arrival_places`: gradients of
    outputs arrive long before backward takes them, so that two slots would block the sender.
    `together`: so many of the first forwards, and of the last backwards, go layer by layer.
    `joins`: stages may compute several micro-batches at once, each another number of them.
    `multiple`: what the micro-batches must be a multiple of, for that many ranks; None: any number.
    `repeats`: after how many micro-batches the middle of the order repeats itself, for that many
    ranks and chunks; None: it has no such middle, and a shorter program says nothing of a longer
    one. `fixed`: for what alone it exists; None: for all. `written`: what its file says of units
    and of transfers.
    """

    order: Callable[[Place], Steps]
    split_backward: bool = False  # it uses I and W in place of B
    chunks: bool = False  # a rank may hold several stages
    arrival_places: bool = False
    together: int = 1
    held: Held | None = None
    multiple: Callable[[int], int] | None = None
    repeats: Callable[[int, int], int] | None = None
    fixed: Fixed | None = None
    joins: bool = False
    written: Written | None = field(default=None, hash=False)

    def takes(self, micro_batches: int, ranks: int, chunks: int) -> bool:
        """Whether the order exists for that many micro-batches, ranks and stages per rank."""
        if self.fixed is not None:
            asked = ranks, chunks, micro_batches
            known = self.fixed.ranks, self.fixed.chunks, self.fixed.micro_batches
            return asked == known and not self.fixed.others
        return self.multiple is None or micro_batches % self.multiple(ranks) == 0

    def stride(self, ranks: int, chunks: int) -> int | None:
        """After how many micro-batches the order repeats itself and exists again; None: never. A
        short program does not show where the ends that go layer by layer are over."""
        if self.repeats is None or self.together > 1:
            return None
        return lcm(self.repeats(ranks, chunks), self.multiple(ranks) if self.multiple else 1)

    def shortened(self, micro_batches: int, wanted: int, ranks: int, chunks: int) -> int:
        """As many micro-batches less some repetitions: about as many as wanted, and at least two
        repetitions. All of them, where the order has none."""
        stride = self.stride(ranks, chunks)
        if stride is None:
            return micro_batches
        left_out = max(0, micro_batches - max(wanted, 2 * stride)) // stride
        return micro_batches - left_out * stride

    @property
    def doc(self) -> str:
        """What it is, in one line."""
        return (self.order.__doc__ or "").strip().partition("\n")[0]


SKELETONS: Registry[Skeleton] = Registry("skeleton")


def declare_skeleton(name: str, skeleton: Skeleton) -> None:
    """Makes a compute order known by a name."""
    SKELETONS.declare(name, skeleton)


def _every_micro_batch(_ranks: int, _chunks: int) -> int:
    return 1


def _every_round(ranks: int, _chunks: int) -> int:
    return ranks


def _held_1f1b(place: Place) -> list[tuple[int, ...]]:
    return [(min(place.ranks - place.rank + place.beside, place.micro_batches),)]


def _held_all(place: Place) -> list[tuple[int, ...]]:
    return [(place.micro_batches,) * place.chunks]


declare_skeleton("gpipe", Skeleton(gpipe, held=_held_all, joins=True))
declare_skeleton(
    "1f1b", Skeleton(one_f_one_b, held=_held_1f1b, repeats=_every_micro_batch, joins=True)
)
declare_skeleton(
    "interleaved",
    Skeleton(interleaved, chunks=True, multiple=lambda ranks: ranks, repeats=_every_round),
)
declare_skeleton(
    "zb-h1", Skeleton(zb_h1, split_backward=True, repeats=_every_micro_batch, joins=True)
)
declare_skeleton(
    "breadth-first",
    Skeleton(breadth_first, chunks=True, arrival_places=True, held=_held_all, joins=True),
)
TOGETHER = (2, 4, 8, 16, 32)
"""How many micro-batches the layer-major orders take together that are tried unasked."""
_LAYER_MAJOR = re.compile(r"layer-major-([2-9]|[1-9]\d{1,3})")


def layer_major_name(together: int) -> str:
    """The skeleton that takes so many micro-batches together."""
    return f"layer-major-{together}"


def exists(name: str) -> bool:
    """Whether there is a skeleton of that name. There is a layer-major order for each number from 2
    to 9999: it is declared when it is first asked for."""
    if name not in SKELETONS and (match := _LAYER_MAJOR.fullmatch(name)):
        _declare_layer_major(int(match[1]))
    return name in SKELETONS


def unknown_fix(name: str) -> str:
    """What to write in place of a number that no layer-major order has; "" for other names."""
    layer_by_layer = name.startswith("layer-major-")
    return 'use "layer-major-K" with K from 2 to 9999' if layer_by_layer else ""


def _held_layer_major(together: int) -> Held:
    def held(place: Place) -> list[tuple[int, ...]]:
        return _held_1f1b(replace(place, beside=place.beside + together - 1))

    return held


def _declare_layer_major(together: int) -> None:
    order, held = layer_major(together), _held_layer_major(together)
    skeleton = Skeleton(order, arrival_places=True, together=together, held=held)
    declare_skeleton(layer_major_name(together), skeleton)


for _together in TOGETHER:
    _declare_layer_major(_together)


def build(name: str, setup: Setup) -> Program:
    """The plain program of a skeleton for a setup."""
    skeleton = SKELETONS[name]
    for what in ("split_backward", "arrival_places", "together"):
        needed = getattr(skeleton, what)
        if getattr(setup, what) != needed:
            word = needed if what == "together" else "yes" if needed else "no"
            raise ProgramError(f"{name} needs {what} {word}", fix=f"set {what} to {word}")
    orders: dict[int, Steps] = {}
    by_unit: dict[int, Sequence[UnitStep]] = {}
    for index, replica in enumerate(setup.replicas):
        for rank, order in _orders(name, skeleton, replica, index).items():
            orders[setup.first_rank[index] + rank] = order
            if skeleton.written is not None and skeleton.written.by_unit:
                by_unit[setup.first_rank[index] + rank] = skeleton.written.by_unit[rank]
    return plain_program(setup, orders, name, by_unit)


def joining_skeletons() -> list[str]:
    """The names of those whose stages may compute several micro-batches at once."""
    return [name for name, skeleton in SKELETONS.items() if skeleton.joins]


def _orders(name: str, skeleton: Skeleton, replica: Replica, index: int) -> dict[int, Steps]:
    """The compute order of each rank of a replica of that number."""
    places = _places(replica)
    stages, positions = len(replica.stages), 1 + max(places.values())
    if any(
        places[member.rank] != number % positions
        for number, stage in enumerate(replica.stages)
        for member in stage.members
    ):
        raise ProgramError("stages must be placed on the ranks in order")
    if stages % positions or (stages > positions and not skeleton.chunks):
        raise ProgramError(
            f"{name} cannot place {stages} stages on {positions} ranks",
            fix="use one stage per rank, or a skeleton with several, such as interleaved",
        )
    if replica.most_joined > 1 and not skeleton.joins:
        raise ProgramError(
            f"{name} has no order for stages that compute other numbers of micro-batches at once",
            fix=f"use one of {', '.join(joining_skeletons())}, or micro-batches of one size",
        )
    orders: dict[int, Steps] = {}
    for rank, position in places.items():
        beside = _beside(replica, position, positions)
        joined = replica.stages[position].members[0].joined
        count = replica.micro_batches // joined
        place = Place(position, positions, stages // positions, count, beside, index)
        held = range(position, stages, positions)
        served = {number: _share(replica.stages[number], rank) for number in held}
        orders[rank] = _served(_joining(skeleton.order(place), joined), served)
    return orders


def _share(stage: Stage, rank: int) -> frozenset[int] | None:
    """The micro-batches that a rank computes of a stage; None: all."""
    member = stage.member_at(rank)
    if member is None:
        return frozenset()
    return None if member.serves is None else frozenset(member.serves)


def _joining(steps: Steps, joined: int) -> Steps:
    """Steps of as many micro-batches at once, each named by the first."""
    return ((kind, stage, turn * joined) for kind, stage, turn in steps)


def _beside_joined(replica: Replica, position: int) -> int:
    """The same where stages compute several micro-batches at once. A stage has as many under way as
    the next one, and beyond them as many as the one of both takes that takes more: then both are at
    work. Fewer than the next one needs before it hands a gradient back would be a circle."""
    under_way, behind = 0, 0
    for stage in reversed(replica.stages[position:]):
        joined = stage.members[0].joined
        members = sum(bool(replica.serves(member)) for member in stage.members)
        under_way += max(joined, behind) + (members - 1)
        under_way += -under_way % joined
        behind = joined
    return under_way // behind - (len(replica.stages) - position)


def _beside(replica: Replica, position: int, positions: int) -> int:
    """Members that compute, at a position of the pipeline and behind it, beyond one of each."""
    if replica.most_joined > 1:
        return _beside_joined(replica, position)
    return sum(
        sum(bool(replica.serves(member)) for member in stage.members) - 1
        for stage in replica.stages[position:positions]
    )


def _places(replica: Replica) -> dict[int, int]:
    """For each rank the first stage that it is a member of."""
    places: dict[int, int] = {}
    for number, stage in enumerate(replica.stages):
        for member in stage.members:
            places.setdefault(member.rank, number)
    return dict(sorted(places.items()))


def _served(steps: Steps, served: Mapping[int, frozenset[int] | None]) -> Steps:
    """Of the steps of whole stages those that a rank serves; None: all."""
    for step in steps:
        of_stage = served.get(step[1])
        if of_stage is None or step[2] in of_stage:
            yield step
