"""Drafts: parts put together to whole plans, ranked by about how long they take.

Each part alone says what a further micro-batch costs it, so many parts that share a batch level
like water: all end together at

    T = (S + sum of A r) / sum of r

with S sequences, r sequences per second of each part, and A its ramp. Mixes are grown part by part;
of those that take the same devices in the same number of parts a few of the best are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heapreplace, nsmallest
from math import inf

import numpy as np

from ratrain.cost.algorithms import DIRECT
from ratrain.cost.collectives import reduction_loss, ring_half
from ratrain.describe.job import JobSpec
from ratrain.plan.layout.enumerate import StateMode, kinds_of_block
from ratrain.plan.layout.sizes import gathered_bytes_per_param, trains_tied
from ratrain.plan.search.aligned import (
    Route,
    Runs,
    common_order,
    cut_alike,
    pool_order,
    route_of,
)
from ratrain.plan.search.effort import Bounds
from ratrain.plan.search.parts import Part, part_of, recut, steps_s
from ratrain.plan.search.pools import Shape, degrees_of, round_counts, used_of
from ratrain.plan.search.stages import Stages
from ratrain.program.units import Bools

RECUT_SHAPES = 12
"""Of those that take the same devices, shapes whose layers are first moved from stage to stage,
where no bundle repeats."""
SINGLE_MIXES = 40
"""Mixes of one part that are kept."""
BRANCHES = 24
"""Parts that are put to a mix at most."""


@dataclass(frozen=True)
class Draft:
    """A plan before it has devices: parts, each with its micro-batches."""

    parts: tuple[Part, ...]
    shares: tuple[int, ...]
    state: StateMode
    estimate_s: float
    trainable: bool  # whether processes can run replicas that differ so: see `trainable`

    @property
    def alone_s(self) -> float:
        """How long its slowest part takes, without what replicas send each other."""
        return max(part.step_s(share) for part, share in zip(self.parts, self.shares, strict=True))

    @property
    def divided(self) -> bool:
        """Whether its tensor groups divide sequences."""
        return any(post.divided for part in self.parts for post in part.shape)

    @property
    def ops(self) -> int:
        """About as many ops as its program has; long ones repeat themselves and are kept short."""
        return sum(
            min(share, 64) * (2 * sum(part.layers) + 4 * len(part.shape))
            for part, share in dict.fromkeys(zip(self.parts, self.shares, strict=True))
        )

    @cached_property
    def key(self) -> object:
        """What tells drafts apart: the order of parts does not."""
        return self.work, self.state

    @cached_property
    def work(self) -> object:
        """What is the same of drafts that differ in how states are shared alone."""
        parts = Counter(
            (part.shape, part.micro_batch, part.layers, part.recovery, share)
            for part, share in zip(self.parts, self.shares, strict=True)
        )
        return frozenset(parts.items())

    @cached_property
    def family(self) -> object:
        """What is the same of drafts that differ in cuts and shares alone."""
        return frozenset(Counter(part.shape for part in self.parts).items()), self.state

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The micro-batch of each part, ascending."""
        return tuple(sorted(part.micro_batch for part in self.parts))


def drafts(
    stages: Stages,
    shapes: Sequence[Shape],
    micro_batch: int,
    states: Sequence[StateMode],
    bounds: Sequence[Bounds],
) -> Iterator[Draft]:
    """The best drafts of micro-batches of one size; `states`: what replicas that share states may
    do, the first first, and a replica alone the last. Mixes are grown within each of `bounds`."""
    for many in (False, True):
        state = states[0] if many else states[-1]
        data = 2 if many else 1
        library = _library(stages, shapes, micro_batch, data, state, bounds[0])
        for parts in _mixes(stages, library, micro_batch, bounds if many else ()):
            for cut in (parts, *cut_alike(stages, parts, state)):
                draft = draft_of(stages, cut, state)
                if draft is not None:
                    yield draft


def draft_of(stages: Stages, parts: Sequence[Part], state: StateMode) -> Draft | None:
    """Parts with their shares of the step; None where the batch cannot be shared so."""
    shares = shares_of(parts, stages.job.batch.sequences)
    if shares is None:
        return None
    return shared(stages, parts, shares, state)


def shared(stages: Stages, parts: Sequence[Part], shares: Sequence[int], state: StateMode) -> Draft:
    """Parts with given shares."""
    sides = dict.fromkeys(zip(parts, shares, strict=True))
    pipe_s = max(part.step_s(share) for part, share in sides)
    tail_s = _tail_s(stages, parts, state) if len(parts) > 1 else 0.0
    trainable = _is_trainable(stages.job, parts)
    return Draft(tuple(parts), tuple(shares), state, pipe_s + tail_s, trainable)


def _is_trainable(job: JobSpec, parts: Sequence[Part]) -> bool:
    kinds = dict.fromkeys(parts)
    ends = {post.tensor for part in kinds for post in (part.shape[0], part.shape[-1])}
    alike = len({_degrees_of_units(part) for part in kinds}) == 1
    if len(ends) > 1 < len(parts) and trains_tied(job):
        alike = False
    return alike or (job.collective == DIRECT and not job.schedule.error_feedback)


def _degrees_of_units(part: Part) -> tuple[int, ...]:
    """The tensor degree of embedding, each layer and head."""
    layers = [
        post.tensor
        for post, count in zip(part.shape, part.layers, strict=True)
        for _ in range(count)
    ]
    return part.shape[0].tensor, *layers, part.shape[-1].tensor


def _library(
    stages: Stages,
    shapes: Sequence[Shape],
    micro_batch: int,
    data: int,
    state: StateMode,
    bounds: Bounds,
) -> list[Part]:
    """The parts of shapes, the best of those that take the same."""
    share = max(1, stages.job.batch.sequences // (data * micro_batch))
    made = [
        (number, part)
        for number, shape in enumerate(shapes)
        if (part := part_of(stages, shape, micro_batch, data, state)) is not None
    ]
    times_s = steps_s([part for _, part in made], share)
    alike: dict[object, list[tuple[float, int, Part]]] = {}
    for time_s, (number, part) in zip(times_s, made, strict=True):
        key = used_of(part.shape, len(stages.pools)), degrees_of(part.shape)
        alike.setdefault(key, []).append((time_s, number, part))
    if not bounds.repeated:
        near = [(key, entry) for key in alike for entry in nsmallest(RECUT_SHAPES, alike[key])]
        parts = recut(stages, [part for _, (_, _, part) in near], data, state, share)
        alike = {key: [] for key in alike}
        for (key, (_, number, _)), part in zip(near, parts, strict=True):
            alike[key].append((part.step_s(share), number, part))
    best = [entry for entries in alike.values() for entry in nsmallest(bounds.shapes, entries)]

    def waste(entry: tuple[float, int, Part]) -> float:
        return entry[0] * stages.speed_of(used_of(entry[2].shape, len(stages.pools)))

    return [part for _, _, part in nsmallest(bounds.library, best, key=waste)]


def _mixes(
    stages: Stages, library: Sequence[Part], micro_batch: int, bounds: Sequence[Bounds]
) -> Iterator[tuple[Part, ...]]:
    """The best mixes of two parts and more within each of `bounds`; of one part without them."""
    sequences = stages.job.batch.sequences
    if not bounds:
        share = sequences // micro_batch
        best = nsmallest(SINGLE_MIXES, library, key=lambda part: part.step_s(share))
        yield from ((part,) for part in best)
        return
    if not library:
        return
    for of_bounds in bounds:
        yield from _grown(stages, library, micro_batch, of_bounds)


def _grown(
    stages: Stages, library: Sequence[Part], micro_batch: int, bounds: Bounds
) -> Iterator[tuple[Part, ...]]:
    """The best mixes of two parts and more."""
    grower = _Grower(stages, library, micro_batch, bounds)
    level = grower.alone()
    devices = sum(len(pool.devices) for pool in stages.pools)
    most = stages.job.batch.sequences // micro_batch
    for bundles in range(1, 1 + min(bounds.bundles, devices, most)):
        if bundles > 1:
            level = grower.longer(level)
        for route in Route:
            mixes = (
                mix for key, of_key in level.items() if route_of(key[2]) is route for mix in of_key
            )
            several = (mix for mix in mixes if 1 < grower.parts(mix) <= most)
            best = nsmallest(5 * bounds.kept, several, key=grower.level_s)
            yield from (grower.parts_of(mix) for mix in best)


@dataclass(frozen=True)
class _Mix:
    """Bundles by their numbers, ascending; what they add up to."""

    numbers: tuple[int, ...]
    rate: float  # sequences per second
    ramped: float  # sum of A r


_Taken = tuple[tuple[int, ...], frozenset[int], Runs]
_Level = dict[_Taken, list[_Mix]]
"""Mixes of equally many bundles, by the devices of each pool that they take, by their tensor
degrees, and by what is common to the orders in which their parts go through pools: those of one
degree, which can be trained, are kept beside the rest, and so are those whose reductions, or the
last of these, may stay inside pools. Levels say nothing of reductions."""


class _Grower:
    """Mixes made longer by one bundle: a part, or so many of it."""

    def __init__(
        self, stages: Stages, library: Sequence[Part], micro_batch: int, bounds: Bounds
    ) -> None:
        self._stages, self._bounds = stages, bounds
        self._sequences = stages.job.batch.sequences
        self._free = np.array([len(pool.devices) for pool in stages.pools])
        self._bundles = [
            (part, times)
            for part in library
            for times in (self._times(part, micro_batch) if bounds.repeated else (1,))
        ]
        parts = [part for part, _ in self._bundles]
        times = np.array([times for _, times in self._bundles])
        used = np.array([used_of(part.shape, len(stages.pools)) for part in parts])
        self._used = used * times[:, None]
        share = max(1, self._sequences // (2 * micro_batch))
        slots = np.array([part.slot_s for part in parts])
        ramps = np.array([part.step_s(share) for part in parts]) - share * slots
        self._worth = np.array([stages.speed_of(used) for used in self._used.tolist()])
        self._batch_share = self._sequences / stages.speed_of(self._free.tolist())
        self._degrees = [degrees_of(part.shape) for part in parts]
        nearer = stages.links.nearer_inside
        self._orders = [pool_order(part.shape) if nearer else () for part in parts]
        self._begins = nearer if bounds.begun else frozenset[int]()
        self._rates = times * micro_batch / slots
        self._ramped = ramps * self._rates

    def _times(self, part: Part, micro_batch: int) -> list[int]:
        """How often a bundle may hold a part."""
        used = used_of(part.shape, len(self._free))
        fits = min(
            free // count for free, count in zip(self._free.tolist(), used, strict=True) if count
        )
        return round_counts(min(fits, self._sequences // micro_batch))

    def parts(self, mix: _Mix) -> int:
        """How many parts a mix has."""
        return sum(self._bundles[number][1] for number in mix.numbers)

    def parts_of(self, mix: _Mix) -> tuple[Part, ...]:
        """The parts of a mix."""
        bundles = [self._bundles[number] for number in mix.numbers]
        return tuple(part for part, times in bundles for _ in range(times))

    def alone(self) -> _Level:
        """Each bundle by itself."""
        level: _Level = {}
        for number, used in enumerate(self._used.tolist()):
            mix = _Mix((number,), float(self._rates[number]), float(self._ramped[number]))
            key = tuple(used), self._degrees[number], self._orders[number]
            level.setdefault(key, []).append(mix)
        return self._of_best_sets(level)

    def longer(self, level: _Level) -> _Level:
        """The mixes of one bundle more. Numbers ascend, so that each set of them comes once."""
        grown: dict[_Taken, list[tuple[float, _Mix]]] = {}
        for (used, degrees, order), mixes in level.items():
            together = self._used + np.array(used)
            fits: Bools = np.all(together <= self._free, axis=1)
            for mix in mixes:
                for number in self._promising(mix, used, fits):
                    taken = tuple(together[number].tolist())
                    rate = mix.rate + float(self._rates[number])
                    ramped = mix.ramped + float(self._ramped[number])
                    longer = _Mix((*mix.numbers, number), rate, ramped)
                    common = common_order(order, self._orders[number], self._begins)
                    key = taken, degrees | self._degrees[number], common
                    grown.setdefault(key, []).append((self._part_s(taken, longer), longer))
        return self._of_best_sets(
            {
                taken: [mix for _, mix in nsmallest(self._bounds.kept, mixes, key=_first)]
                for taken, mixes in grown.items()
            }
        )

    def _of_best_sets(self, level: _Level) -> _Level:
        """The mixes of those sets of devices that make the most of them, and of those that would
        end the whole batch first."""
        if len(level) <= self._bounds.sets:
            return level
        sets = list(level)
        part_s = {taken: min(self._part_s(taken[0], mix) for mix in level[taken]) for taken in sets}
        whole_s = {taken: min(map(self.level_s, level[taken])) for taken in sets}
        half = self._bounds.sets // 2
        best = dict.fromkeys(
            [
                *nsmallest(half, sets, key=whole_s.__getitem__),
                *nsmallest(half, sets, key=part_s.__getitem__),
            ]
        )
        return {taken: level[taken] for taken in best}

    def _promising(self, mix: _Mix, used: tuple[int, ...], fits: Bools) -> list[int]:
        """The bundles that go with a mix and fit, those that make the most of what both take; where
        bundles repeat parts, also those with which the whole batch would end first."""
        places = np.flatnonzero(fits)
        places = places[places >= mix.numbers[-1]]
        if len(places) > BRANCHES:
            worth = (self._stages.speed_of(used) + self._worth[places]) * self._batch_share
            level_s = (worth + mix.ramped + self._ramped[places]) / (mix.rate + self._rates[places])
            order = np.argsort(level_s, kind="stable")
            if self._bounds.repeated:
                whole_s = self._sequences + mix.ramped + self._ramped[places]
                whole_s /= mix.rate + self._rates[places]
                most = np.argsort(whole_s, kind="stable")[: BRANCHES // 2]
                order = np.array(list(dict.fromkeys([*most.tolist(), *order.tolist()])))
            places = places[order[:BRANCHES]]
        return places.tolist()

    def _part_s(self, taken: tuple[int, ...], mix: _Mix) -> float:
        """The level where these parts take as much of the batch as their devices are worth."""
        return (self._stages.speed_of(taken) * self._batch_share + mix.ramped) / mix.rate

    def level_s(self, mix: _Mix) -> float:
        return (self._sequences + mix.ramped) / mix.rate


def _first(pair: tuple[float, _Mix]) -> float:
    return pair[0]


def shares_of(parts: Sequence[Part], sequences: int) -> tuple[int, ...] | None:
    """Micro-batches of each part, one at least: each next one goes to the part that will end first
    with it. None where that does not come to the whole batch."""
    shares = _begun_shares(parts, sequences)
    left = sequences - sum(n * part.micro_batch for n, part in zip(shares, parts, strict=True))
    heap = [(part.step_s(shares[place] + 1), place) for place, part in enumerate(parts)]
    heapify(heap)
    while left > 0 and heap[0][0] < inf:
        place = heap[0][1]
        if parts[place].micro_batch > left:
            heapreplace(heap, (inf, place))
            continue
        shares[place] += 1
        left -= parts[place].micro_batch
        heapreplace(heap, (parts[place].step_s(shares[place] + 1), place))
    return tuple(shares) if left == 0 else None


def _begun_shares(parts: Sequence[Part], sequences: int) -> list[int]:
    """Micro-batches that each part gets in any case, so that few are left to hand out one by one.

    A part's time T(n) is convex in its micro-batches n. With s the slope of very many, N sequences,
    T(1) + s (n - 1) >= T(n) >= T(N) - s (N - n). The right bound gives a time before which the
    whole batch cannot end, the left one how many micro-batches each part has done by then.
    """
    slopes_s = [part.step_s(sequences + 1) - part.step_s(sequences) for part in parts]
    above_s = [part.step_s(1) - slope_s for part, slope_s in zip(parts, slopes_s, strict=True)]
    below_s = [
        part.step_s(sequences) - sequences * slope_s
        for part, slope_s in zip(parts, slopes_s, strict=True)
    ]
    rates = [part.micro_batch / slope_s for part, slope_s in zip(parts, slopes_s, strict=True)]
    rest = sequences - sum(part.micro_batch for part in parts)
    end_s = (
        rest + sum(rate * at_none_s for rate, at_none_s in zip(rates, below_s, strict=True))
    ) / sum(rates)
    return [
        max(1, int((end_s - at_none_s) / slope_s) - 1)
        for at_none_s, slope_s in zip(above_s, slopes_s, strict=True)
    ]


def _tail_s(stages: Stages, parts: Sequence[Part], state: StateMode) -> float:
    """About what reductions and gathers add behind the last backward of several parts."""
    alike, holders = dict.fromkeys(parts), 0
    for part in alike:
        holders |= stages.holders(part.shape, part.layers)
    used = {stages.pools[post.pool].kind for part in alike for post in part.shape}
    gathered = gathered_bytes_per_param(stages.job, used)
    return max(_tail_of(stages, part, len(parts), holders, gathered, state) for part in alike)


def _tail_of(
    stages: Stages, part: Part, data: int, holders: int, weight_bytes: int, state: StateMode
) -> float:
    """The same of one of them; `holders`: the pools of each layer, `weight_bytes`: of a gathered
    parameter."""
    embedding, layer, head = (block.params for block in kinds_of_block(stages.job))
    last, longest = len(part.shape) - 1, 0.0
    for s, (post, work, count) in enumerate(zip(part.shape, part.works, part.layers, strict=True)):
        bits = count * len(stages.pools)
        link = stages.reduction_link(holders & (1 << bits) - 1)
        holders >>= bits
        params = count * layer + (s == 0) * embedding + (s == last) * head
        whole_s, unit_s = (
            ring_half(weight_bytes * size / post.tensor, data, link).alone_s(
                link.bandwidth_bytes_per_s
            )
            for size in (params, max(layer, (s == 0) * embedding))
        )
        twice = 1 if state.sharding else 2
        reduced_s = max(twice * whole_s - work.backward_s, twice * unit_s)
        gathered_s = max(whole_s - work.forward_s, unit_s) if state.sharding else 0.0
        whole = ring_half(weight_bytes * params / post.tensor, data, link).times(2)
        driving_s = reduction_loss(stages.pools[post.pool].kind).of(whole)
        longest = max(longest, reduced_s + gathered_s, driving_s + 2 * unit_s)
    return longest
