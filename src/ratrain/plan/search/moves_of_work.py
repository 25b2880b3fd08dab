"""Moves of the search that leave devices where they are: shares, layers, sizes, states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice, pairwise, permutations, product
from math import gcd, inf
from operator import attrgetter

from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.parts import Part, cut_of, layers_moved, part_of, rows_of
from ratrain.plan.draft.pools import Post, Shape, in_division
from ratrain.plan.draft.space import Drafts, Side, Space, sides_of, sorts_of
from ratrain.plan.draft.stages import Stages
from ratrain.plan.layout.enumerate import StateMode, divisions_of
from ratrain.plan.search.climb import climbed
from ratrain.plan.search.limits import FULLEST, MOST_MOVED, MOST_SEQUENCES, MOST_STAGES

Runs = tuple[int, ...]
"""Layers of runs of neighbouring posts of one pool."""


def a_micro_batch(space: Space, draft: Draft) -> Drafts:
    """A micro-batch of one replica given to another; as many of all alike ones given to all of
    another sort as comes out even."""
    sides, sorts = sides_of(draft), sorts_of(draft)
    for source, target in permutations([place for same in sorts for place in same[:2]], 2):
        if sides[source].micro_batch == sides[target].micro_batch:
            yield space.draft(_given(sides, {source: -1, target: 1}), draft.state)
    for givers, takers in permutations(sorts, 2):
        few = gcd(len(givers), len(takers))
        given, taken = len(takers) // few, len(givers) // few
        if sides[givers[0]].micro_batch == sides[takers[0]].micro_batch and given + taken > 2:
            moved = dict.fromkeys(givers, -given) | dict.fromkeys(takers, taken)
            yield space.draft(_given(sides, moved), draft.state)


def _given(sides: list[Side], moved: dict[int, int]) -> list[Side]:
    return [
        side._replace(share=(side.share or 0) + moved.get(place, 0))
        for place, side in enumerate(sides)
    ]


def a_layer(space: Space, draft: Draft) -> Drafts:
    """A layer in another stage. Of many stages, the busiest give and the least busy take."""
    for places in sorts_of(draft):
        for layers in _layers_moved(draft.parts[places[0]]):
            yield from _in_place(space, draft, places, layers=layers)


def _layers_moved(part: Part) -> Iterator[tuple[int, ...]]:
    count = len(part.layers)
    if count <= MOST_STAGES:
        return layers_moved(part.layers)
    busiest = sorted(range(count), key=lambda stage: -part.stage_s[stage])
    return layers_moved(part.layers, product(sorted(busiest[:FULLEST]), sorted(busiest[-FULLEST:])))


def two_neighbours(space: Space, draft: Draft) -> Drafts:
    """Two neighbouring stages in the other order."""
    for places in sorts_of(draft):
        members = draft.parts[places[0]].members
        for stage, (here, there) in enumerate(pairwise(members)):
            if here != there:
                swapped = (*members[:stage], there, here, *members[stage + 2 :])
                yield from _in_place(space, draft, places, members=swapped, layers=None)


def _in_place(space: Space, draft: Draft, places: list[int], **fields: object) -> Drafts:
    """One replica changed, and all that are like it: with the shares as they are, and anew."""
    sides = sides_of(draft)
    for some in (places[:1], places) if len(places) > 1 else (places,):
        made = [
            side._replace(**fields) if place in some else side for place, side in enumerate(sides)
        ]
        yield space.draft(made, draft.state)
        yield space.draft([side._replace(share=None) for side in made], draft.state)


def half_or_twice_the_micro_batch(space: Space, draft: Draft) -> Drafts:
    """Half or twice the micro-batch, of replicas that are alike or of all."""
    sides = sides_of(draft)
    for places, up in product([*sorts_of(draft), list(range(len(sides)))], (False, True)):
        some = set(places)
        sized = [
            side._replace(micro_batch=side.micro_batch * 2 if up else side.micro_batch // 2)
            if place in some
            else side
            for place, side in enumerate(sides)
        ]
        yield space.draft([side._replace(share=None) for side in sized], draft.state)


def layers_between_hosts(space: Space, draft: Draft) -> Drafts:
    """Layers moved from one pool of devices to another in all replicas at once, so that what is
    reduced stays inside pools."""
    if not space.stages.links.nearer_inside:
        return
    for parts in cut_together(space.stages, draft.parts, draft.state):
        sides = [
            side._replace(layers=part.layers)
            for side, part in zip(sides_of(draft), parts, strict=True)
        ]
        yield space.draft(sides, draft.state)
        yield space.draft([side._replace(share=None) for side in sides], draft.state)


def cut_together(
    stages: Stages, parts: Sequence[Part], state: StateMode
) -> Iterator[tuple[Part, ...]]:
    """The parts cut at the same layers between pools, in each way in which one of them is cut now:
    then all holders of a layer are in one pool. Where they are cut so, with a layer of one pool on
    another in all of them at once. None where they go through pools in different orders.

    Where links inside pools are faster than those between them, that may be worth more than stages
    that are equally busy. Where replicas only begin in one pool, the layers behind are reduced
    between pools, but what is reduced last in a step, the first stages' gradients, is not."""
    if len({tuple(pool for pool, _ in _runs(part.shape)) for part in parts}) > 1:
        return
    totals = dict.fromkeys(map(_layers_of_runs, parts))
    for wanted in totals if len(totals) > 1 else layers_moved(next(iter(totals))):
        recut = {part: _recut(stages, part, wanted, len(parts), state) for part in set(parts)}
        made = [other for part in parts if (other := recut[part]) is not None]
        if len(made) == len(parts):
            yield tuple(made)


def _runs(shape: Shape) -> list[tuple[int, list[Post]]]:
    """Neighbouring posts of one pool together."""
    return [(pool, list(run)) for pool, run in groupby(shape, key=attrgetter("pool"))]


def _layers_of_runs(part: Part) -> Runs:
    layers = iter(part.layers)
    return tuple(sum(islice(layers, len(run))) for _, run in _runs(part.shape))


def _recut(stages: Stages, part: Part, wanted: Runs, data: int, state: StateMode) -> Part | None:
    """The part with so many layers on each run of posts; None where they do not fit."""
    stage_rows = rows_of(stages, part.members, part.micro_batch, data, state)
    rows = [row.together for row in stage_rows]
    layers: list[int] = []
    for (_, run), total in zip(_runs(part.shape), wanted, strict=True):
        cut = cut_of(rows[len(layers) : len(layers) + len(run)], total)
        if cut is None:
            return None
        layers += cut
    return part_of(stages, part.members, part.micro_batch, data, state, tuple(layers))


def state_sharing(space: Space, draft: Draft) -> Drafts:
    """States shared among replicas in another way."""
    if draft.shares_states:
        for state in space.states:
            if state != draft.state:
                yield space.draft(sides_of(draft), state)


def sequence_parallelism(space: Space, draft: Draft) -> Drafts:
    """Sequences divided in tensor groups, or not."""
    degrees = {post.tensor for post in draft.all_posts}
    if len(divisions_of(space.stages.job, degrees)) > 1:
        sides = [
            side._replace(members=in_division(side.members, not draft.divided))
            for side in sides_of(draft)
        ]
        yield space.draft(sides, draft.state)


def best_cuts(space: Space, draft: Draft) -> Drafts:
    """The same shares of the step, the layers of each replica moved as long as its pipeline then
    takes less: of cuts whose slowest stages are alike, the fill of the pipeline decides."""
    pairs = list(zip(draft.parts, draft.shares, strict=True))
    cut = {pair: best_cut(space, *pair, len(pairs), draft.state) for pair in dict.fromkeys(pairs)}
    sides = [
        side._replace(layers=cut[pair].layers)
        for side, pair in zip(sides_of(draft), pairs, strict=True)
    ]
    yield space.draft(sides, draft.state)


def best_cut(space: Space, part: Part, share: int, data: int, state: StateMode) -> Part:
    """The part with layers moved one by one as long as so many micro-batches then take less."""

    def near(here: Part) -> Iterator[Part]:
        for layers in _layers_moved(here):
            other = space.part(here.members, here.micro_batch, data, state, layers)
            if other is not None:
                yield other

    better = climbed(part, near, lambda each: each.step_s(share), rounds=MOST_MOVED, gain=1e-9)
    return [part, *better][-1]


def best_micro_batches(space: Space, draft: Draft) -> Drafts:
    """The same shares of the step, each replica in the micro-batch in which it is fastest."""
    parts, shares = list[Part](), list[int]()
    for part, share in zip(draft.parts, draft.shares, strict=True):
        sequences = part.micro_batch * share
        best = space.fastest_part(part.members, sequences, len(draft.parts), draft.state) or part
        parts.append(best)
        shares.append(sequences // best.micro_batch)
    yield space.made(parts, shares, draft.state)


def all_shares(space: Space, draft: Draft) -> Drafts:
    """A small batch shared out anew so that the slowest replica takes least, each in the
    micro-batch that suits its share: one device with one sequence beside a tensor group of four
    with seven at once. Of larger batches, shares in micro-batches of one size come near enough."""
    data, sequences = len(draft.parts), space.sequences
    if sequences > MOST_SEQUENCES:
        return
    best: dict[int, tuple[float, tuple[tuple[Part, int], ...]]] = {0: (0.0, ())}
    for place, members in enumerate((part.members for part in draft.parts), 1):
        counts = range(1, sequences - data + 2)
        parts = ((n, space.fastest_part(members, n, data, draft.state)) for n in counts)
        made = [(n, part, n // part.micro_batch) for n, part in parts if part is not None]
        alone = [(n, part.step_s(share), (part, share)) for n, part, share in made]
        longer: dict[int, tuple[float, tuple[tuple[Part, int], ...]]] = {}
        for taken, (slowest_s, sides) in best.items():
            for count, alone_s, side in alone:
                step_s, after = max(slowest_s, alone_s), taken + count
                if after > sequences - (data - place):
                    break
                if step_s < longer.get(after, (inf,))[0]:
                    longer[after] = step_s, (*sides, side)
        best = longer
    if sequences in best:
        parts, shares = zip(*best[sequences][1], strict=True)
        yield space.made(parts, shares, draft.state)
