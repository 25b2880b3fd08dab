"""Parts in which each pool holds the same layers, so that reductions stay inside pools.

Replicas that go through pools in one order, each from the first to the second and so on, can be cut
at the same layers. Then all holders of a layer are in one pool. Where the links inside pools are
faster than those between them, that may be worth more than stages that are equally busy.

Where they only begin in one pool, the layers behind are reduced between pools, but what is reduced
last in a step, the first stages' gradients, is not: nothing hides that behind further work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter

from ratrain.plan.draft.parts import Part, cut_of, layers_moved, part_of, rows_of
from ratrain.plan.draft.pools import Post, Shape
from ratrain.plan.draft.stages import Stages
from ratrain.plan.layout.enumerate import StateMode

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
    rows = rows_of(stages, part.shape, part.micro_batch, data, state)
    layers: list[int] = []
    for (_, run), total in zip(_runs(part.shape), wanted, strict=True):
        cut = cut_of(rows[len(layers) : len(layers) + len(run)], total)
        if cut is None:
            return None
        layers += cut
    return part_of(stages, part.shape, part.micro_batch, data, state, tuple(layers))
