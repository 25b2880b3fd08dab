"""Drafts that differ from another by one change, and the draft of a plan of alike replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations, product
from math import gcd

from ratrain.plan.layout.candidate import Candidate
from ratrain.plan.layout.enumerate import StateMode, divisors_of
from ratrain.plan.price.kind_speed import LARGEST_MICRO_BATCH
from ratrain.plan.search.aligned import moved_alike
from ratrain.plan.search.mixes import Draft, draft_of, shared
from ratrain.plan.search.parts import Part, part_of
from ratrain.plan.search.pools import Post, Shape, divisions_of, in_division
from ratrain.plan.search.stages import Stages

MOST_STAGES, FULLEST = 16, 6
"""Stages up to which any gives a layer to any; of more, so many give and so many take."""


def changed(stages: Stages, draft: Draft, states: Sequence[StateMode]) -> Iterator[Draft]:
    """Every draft one change away."""
    yield from _of_shares(stages, draft)
    for number, part in enumerate(draft.parts):
        if part in draft.parts[:number]:
            continue
        for other in _of_part(stages, draft, part):
            yield from _with(stages, draft, number, part, other)
    if len(draft.parts) > 1:
        for state in states:
            if state != draft.state:
                yield from _in_state(stages, draft, state)
    yield from _of_other_sizes(stages, draft)
    if stages.links.nearer_inside and len(set(draft.parts)) > 1:
        for parts in moved_alike(stages, draft.parts, draft.state):
            yield from _of_parts(stages, draft, parts)
    other = in_other_division(stages, draft)
    if other is not None:
        yield other


def in_other_division(stages: Stages, draft: Draft) -> Draft | None:
    """The same with sequence parallelism in its tensor groups, or without; None where the job has
    not both."""
    if len(divisions_of(stages.job, (part.shape for part in draft.parts))) < 2:
        return None
    parts = [
        part_of(
            stages,
            in_division(part.shape, not draft.divided),
            part.micro_batch,
            len(draft.parts),
            draft.state,
            part.layers,
        )
        for part in draft.parts
    ]
    fitting = [part for part in parts if part is not None]
    if len(fitting) < len(parts):
        return None
    return shared(stages, fitting, draft.shares, draft.state)


def _of_shares(stages: Stages, draft: Draft) -> Iterator[Draft]:
    """A micro-batch of one part given to another; as many of all alike parts given to all of
    another sort as comes out even."""
    sides = [*zip(draft.parts, draft.shares, strict=True)]
    places: dict[tuple[Part, int], list[int]] = {}
    for place, side in enumerate(sides):
        places.setdefault(side, []).append(place)
    twice = [place for same in places.values() for place in same[:2]]
    seen: set[tuple[int, int]] = set()
    for source, target in permutations(twice, 2):
        first = places[sides[source]][0], places[sides[target]][0]
        same_size = sides[source][0].micro_batch == sides[target][0].micro_batch
        if same_size and sides[source][1] > 1 and first not in seen:
            seen.add(first)
            shares = list(draft.shares)
            shares[source] -= 1
            shares[target] += 1
            yield shared(stages, draft.parts, shares, draft.state)
    for source, target in permutations(places, 2):
        few = gcd(len(places[source]), len(places[target]))
        given, taken = len(places[target]) // few, len(places[source]) // few
        same_size = source[0].micro_batch == target[0].micro_batch
        if same_size and given < source[1] and (given, taken) != (1, 1):
            shares = [
                share - given if side == source else share + taken if side == target else share
                for side, share in zip(sides, draft.shares, strict=True)
            ]
            yield shared(stages, draft.parts, shares, draft.state)


def _of_part(stages: Stages, draft: Draft, part: Part) -> Iterator[Part]:
    """A layer in another stage; two neighbours in the other order. Of many stages, the busiest give
    layers and the least busy take them."""
    count = len(part.layers)
    busiest = sorted(range(count), key=lambda stage: -part.works[stage].busy_s)
    givers, takers = sorted(busiest[:FULLEST]), sorted(busiest[-FULLEST:])
    if count <= MOST_STAGES:
        givers = takers = list(range(count))
    for source, target in product(givers, takers):
        if source != target and part.layers[source] > 1:
            layers = list(part.layers)
            layers[source] -= 1
            layers[target] += 1
            yield from _made(stages, draft, part.shape, part.micro_batch, tuple(layers))
    for stage in range(len(part.shape) - 1):
        if part.shape[stage] != part.shape[stage + 1]:
            shape = list(part.shape)
            shape[stage : stage + 2] = reversed(shape[stage : stage + 2])
            yield from _made(stages, draft, tuple(shape), part.micro_batch, None)


def _made(
    stages: Stages, draft: Draft, shape: Shape, micro_batch: int, layers: tuple[int, ...] | None
) -> Iterator[Part]:
    data = len(draft.parts)
    part = part_of(stages, shape, micro_batch, data, draft.state, layers)
    if part is not None:
        yield part


def _with(stages: Stages, draft: Draft, number: int, part: Part, other: Part) -> Iterator[Draft]:
    """The other part in place of one, and in place of all that are like it: with the shares as they
    are, and shared anew."""
    alone = [*draft.parts[:number], other, *draft.parts[number + 1 :]]
    every = [other if known == part else known for known in draft.parts]
    for parts in (alone, every) if alone != every else (alone,):
        yield from _of_parts(stages, draft, parts)


def _of_parts(stages: Stages, draft: Draft, parts: Sequence[Part]) -> Iterator[Draft]:
    """Other parts, of the same micro-batches: with the shares as they are, and shared anew."""
    yield shared(stages, parts, draft.shares, draft.state)
    anew = draft_of(stages, parts, draft.state)
    if anew is not None and anew.shares != draft.shares:
        yield anew


def _in_state(stages: Stages, draft: Draft, state: StateMode) -> Iterator[Draft]:
    """The same with states shared otherwise."""
    parts = [
        part_of(stages, part.shape, part.micro_batch, len(draft.parts), state, part.layers)
        for part in draft.parts
    ]
    fitting = [part for part in parts if part is not None]
    if len(fitting) == len(parts):
        yield shared(stages, fitting, draft.shares, state)


def _of_other_sizes(stages: Stages, draft: Draft) -> Iterator[Draft]:
    """Half or twice the micro-batch, of one part or of all; a part's layers as they are."""
    firsts = [n for n, part in enumerate(draft.parts) if part not in draft.parts[:n]]
    for number in (None, *firsts):
        for up in (False, True):
            parts = [
                _resized(stages, draft, part, up) if number in (None, place) else part
                for place, part in enumerate(draft.parts)
            ]
            fitting = [part for part in parts if part is not None]
            if len(fitting) == len(parts):
                made = draft_of(stages, fitting, draft.state)
                if made is not None:
                    yield made


def _resized(stages: Stages, draft: Draft, part: Part, up: bool) -> Part | None:
    size = part.micro_batch * 2 if up else part.micro_batch // 2
    if not 0 < size <= min(LARGEST_MICRO_BATCH, stages.job.batch.sequences):
        return None
    return part_of(stages, part.shape, size, len(draft.parts), draft.state, part.layers)


def in_best_sizes(stages: Stages, draft: Draft) -> Draft | None:
    """The same shares of the step, each part in the micro-batch in which it is fastest; None where
    that is how it is."""
    sides = [*zip(draft.parts, draft.shares, strict=True)]
    best: dict[tuple[Part, int], Part] = {}
    for part, share in dict.fromkeys(sides):
        sequences = part.micro_batch * share
        sizes = [size for size in divisors_of(sequences) if size <= LARGEST_MICRO_BATCH]
        made = [part_of(stages, part.shape, size, len(draft.parts), draft.state) for size in sizes]
        fitting = [each for each in made if each is not None]
        best[part, share] = min(
            fitting, key=lambda each, whole=sequences: each.step_s(whole // each.micro_batch)
        )
    parts = [best[side] for side in sides]
    shares = [part.micro_batch * share // best[part, share].micro_batch for part, share in sides]
    if parts == list(draft.parts):
        return None
    return shared(stages, parts, shares, draft.state)


def leaner(stages: Stages, draft: Draft, ranks: Sequence[int]) -> Draft | None:
    """The draft with the next recovery mode on stages whose memory is short; None where one has no
    leaner mode. `ranks`: of the program, which counts parts that are alike once."""
    sides = list(zip(draft.parts, draft.shares, strict=True))
    made: dict[tuple[Part, int], Part] = {side: side[0] for side in sides}
    places = [(side, stage) for side in made for stage in range(len(side[0].shape))]
    for rank in ranks:
        key, stage = places[rank]
        work = made[key].works[stage]
        place = stages.modes.index(work.recovery) + 1
        if place >= len(stages.modes):
            return None
        last = len(made[key].shape) - 1
        lean = stages.work(
            made[key].shape[stage],
            made[key].micro_batch,
            made[key].layers[stage],
            stage == 0,
            stage == last,
            stages.modes[place],
        )
        works = (*made[key].works[:stage], lean, *made[key].works[stage + 1 :])
        made[key] = replace(made[key], works=works)
    return shared(stages, [made[side] for side in sides], draft.shares, draft.state)


def of_candidate(stages: Stages, candidate: Candidate) -> Draft | None:
    """The draft of a plan of alike replicas; None where drafts cannot say it."""
    layout = candidate.layout
    if layout.virtual > 1:
        return None
    pool_of = {d.index: n for n, pool in enumerate(stages.pools) for d in pool.devices}
    parts = [
        part_of(
            stages,
            tuple(
                Post(
                    pool_of[candidate.placement.device(stage, data).index],
                    layout.tensor,
                    layout.sequence_parallel,
                )
                for stage in range(layout.pipeline)
            ),
            candidate.job.batch.micro_batch,
            layout.data,
            candidate.mode,
            candidate.layers,
        )
        for data in range(layout.data)
    ]
    fitting = [part for part in parts if part is not None]
    if len(fitting) < len(parts):
        return None
    return shared(stages, fitting, [candidate.micro_batches] * layout.data, candidate.mode)
