"""The same shapes with other shares or cuts: the batch shared out anew, each in the micro-batch
that suits it; and cuts in which each pool holds the same layers, so that reductions stay inside
pools.

Drafts are made in micro-batches of one size, and shares fall out of that. Where a batch is small, a
part may do best with all of its share in one micro-batch, and then it can take more: one device
with one sequence beside a tensor group of four with seven at once.

Replicas that go through pools in one order, each from the first to the second and so on, can be cut
at the same layers. Then all holders of a layer are in one pool. Where the links inside pools are
faster than those between them, that may be worth more than stages that are equally busy. Where they
only begin in one pool, the layers behind are reduced between pools, but what is reduced last in a
step, the first stages' gradients, is not: nothing hides that behind further work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import groupby, islice
from operator import attrgetter

from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.parts import Part, cut_of, layers_moved, part_of, rows_of
from ratrain.plan.draft.pools import Pipeline, Post, Shape
from ratrain.plan.draft.space import Space
from ratrain.plan.draft.stages import Stages
from ratrain.plan.layout.enumerate import StateMode, divisors_of
from ratrain.plan.price.kind_speed import LARGEST_MICRO_BATCH

MOST_SEQUENCES = 32
"""Of larger batches, shares in micro-batches of one size come near enough to the best."""


def fastest_part(
    space: Space, members: Pipeline, sequences: int, data: int, state: StateMode
) -> Part | None:
    """A pipeline with so many sequences in the micro-batch in which it is fastest; None where it
    fits in none."""
    sizes = (size for size in divisors_of(sequences) if size <= LARGEST_MICRO_BATCH)
    made = (space.part(members, size, data, state) for size in sizes)
    fitting = (part for part in made if part is not None)
    return min(fitting, key=lambda part: part.step_s(sequences // part.micro_batch), default=None)


def best_shares(space: Space) -> Callable[[Draft], Draft | None]:
    """What makes the draft of another's shapes whose slowest part takes least; None where the batch
    is too large or there is none."""
    sequences, fastest = space.sequences, cache(partial(fastest_part, space))

    def draft_of(draft: Draft) -> Draft | None:
        data = len(draft.parts)
        if not data <= sequences <= MOST_SEQUENCES:
            return None
        best: dict[int, tuple[float, tuple[tuple[Part, int], ...]]] = {0: (0.0, ())}
        for place, members in enumerate((part.members for part in draft.parts), 1):
            longer: dict[int, tuple[float, tuple[tuple[Part, int], ...]]] = {}
            for taken, (slowest_s, sides) in best.items():
                for count in range(1, sequences - taken - (data - place) + 1):
                    part = fastest(members, count, data, draft.state)
                    if part is None:
                        continue
                    share = count // part.micro_batch
                    step_s, known = max(slowest_s, part.step_s(share)), longer.get(taken + count)
                    if known is None or step_s < known[0]:
                        longer[taken + count] = step_s, (*sides, (part, share))
            best = longer
        if sequences not in best:
            return None
        parts, shares = zip(*best[sequences][1], strict=True)
        return space.made(parts, shares, draft.state)

    return draft_of


def in_best_sizes(space: Space, draft: Draft) -> Draft | None:
    """The same shares of the step, each part in the micro-batch in which it is fastest; None where
    that is how it is."""
    sides = [*zip(draft.parts, draft.shares, strict=True)]
    best = {
        (part, share): fastest_part(
            space, part.members, part.micro_batch * share, len(draft.parts), draft.state
        )
        or part
        for part, share in dict.fromkeys(sides)
    }
    parts = [best[side] for side in sides]
    shares = [part.micro_batch * share // best[part, share].micro_batch for part, share in sides]
    if parts == list(draft.parts):
        return None
    return space.made(parts, shares, draft.state)


Runs = tuple[int, ...]
"""Pools, or layers, of runs of posts."""


def pool_order(shape: Shape) -> Runs:
    """The pools that a shape goes through, each once for a run of its posts."""
    return tuple(pool for pool, _ in _runs(shape))


def cut_alike(
    stages: Stages, parts: Sequence[Part], state: StateMode
) -> Iterator[tuple[Part, ...]]:
    """The parts cut at the same layers between pools, in each way in which one of them is cut now;
    none where they go through pools in different orders, or are cut so."""
    if len({pool_order(part.shape) for part in parts}) > 1 or len(pool_order(parts[0].shape)) == 1:
        return
    totals = dict.fromkeys(_layers_of_runs(part) for part in parts)
    if len(totals) == 1:
        return
    for wanted in totals:
        yield from _cut_at(stages, parts, wanted, state)


def moved_alike(
    stages: Stages, parts: Sequence[Part], state: StateMode
) -> Iterator[tuple[Part, ...]]:
    """Parts that are cut at the same layers between pools, with a layer of one pool on another in
    all of them at once: in one part alone, its holders would be in two pools."""
    orders = {pool_order(part.shape) for part in parts}
    totals = {_layers_of_runs(part) for part in parts}
    if len(orders) > 1 or len(totals) > 1:
        return
    for wanted in layers_moved(totals.pop()):
        yield from _cut_at(stages, parts, wanted, state)


def _cut_at(
    stages: Stages, parts: Sequence[Part], wanted: Runs, state: StateMode
) -> Iterator[tuple[Part, ...]]:
    """The parts with so many layers on each run of a pool's posts; none where they do not fit."""
    recut = {part: _recut(stages, part, wanted, len(parts), state) for part in set(parts)}
    made = [other for part in parts if (other := recut[part]) is not None]
    if len(made) == len(parts):
        yield tuple(made)


def _runs(shape: Shape) -> list[tuple[int, list[Post]]]:
    """Neighbouring posts of one pool together."""
    return [(pool, list(run)) for pool, run in groupby(shape, key=attrgetter("pool"))]


def _layers_of_runs(part: Part) -> Runs:
    """How many layers each run of a pool's posts holds."""
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
