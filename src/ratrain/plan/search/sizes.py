"""Plans whose stages compute other numbers of sequences at once, made of plans whose stages do not.

A stage on a kind of device with much to gain from larger products, and memory for them, may compute
several of its replica's micro-batches in one op, while its neighbour takes them one by one. From a
plan that was found otherwise the size of one stage, or of all stages on one kind of device, is
doubled or halved, or where sizes differ a layer goes to a neighbour, as long as the simulated step
is shorter and the proof fits the budget. Stages whose memory is then short recover, if they may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from ratrain.cost.measured import Unmeasured
from ratrain.plan.draft.parts import layers_moved
from ratrain.plan.layout.plan import Plan
from ratrain.plan.layout.replica import PlacedReplica
from ratrain.plan.price.kind_speed import LARGEST_MICRO_BATCH
from ratrain.plan.search.effort import SIZES_OPS, SIZES_ROUNDS, WORTH_SIZES
from ratrain.plan.search.trial import timed_recovering
from ratrain.plan.search.tried import Timed, climbed
from ratrain.program.skeletons import SKELETONS


def in_other_sizes(start: Timed, begins: Callable[[], None]) -> Iterator[Timed]:
    """Ever faster plans, each with other sizes on some stages than the one before. `begins` is
    called for each that is tried."""
    left, known = SIZES_OPS, {_key(start.plan)}

    def near(here: Timed) -> Iterator[Timed]:
        nonlocal left
        for plan in _neighbours(here.plan):
            if left <= 0 or _key(plan) in known:
                continue
            known.add(_key(plan))
            left -= here.draft.ops
            begins()
            timed = _timed(here, plan, here.step_s * (1 - WORTH_SIZES))
            if timed is not None and timed.refusals == start.refusals:
                yield timed

    return climbed(start, near, SIZES_ROUNDS, WORTH_SIZES)


def _timed(here: Timed, plan: Plan, bar_s: float) -> Timed | None:
    """A plan as simulated, where it fits, perhaps with more recovery, and its layers were measured
    in these sizes."""
    try:
        return timed_recovering(here.draft, plan, bar_s)
    except Unmeasured:
        return None


def _key(plan: Plan) -> object:
    """What tells the plans that are tried apart."""
    return tuple((entry.sizes, entry.layout.layers) for entry in plan.replicas)


def _neighbours(plan: Plan) -> Iterator[Plan]:
    """Every plan in which some ranks of an entry compute twice or half as many sequences at once,
    but all of them: that is a plan of another micro-batch, which the search has tried; and where
    its ranks differ in that, those in which a layer goes to a neighbouring stage."""
    if plan.sequence_parallel or not SKELETONS[plan.strategy.skeleton].joins:
        return
    for number, entry in enumerate(plan.replicas):
        if entry.has_members or entry.layout.virtual > 1:
            continue
        changes = [
            entry.computing(sizes) for ranks in _together(entry) for sizes in _resized(entry, ranks)
        ]
        changes += _recut(entry) if entry.joined else []
        for changed in changes:
            replicas = (*plan.replicas[:number], changed, *plan.replicas[number + 1 :])
            yield replace(plan, replicas=replicas)


def _recut(entry: PlacedReplica) -> Iterator[PlacedReplica]:
    """A layer in the stage before or behind its own."""
    pairs = [pair for n in range(1, entry.layout.stages) for pair in ((n - 1, n), (n, n - 1))]
    for layers in layers_moved(entry.layers, pairs):
        yield replace(entry, layout=replace(entry.layout, layers=layers))


def _together(entry: PlacedReplica) -> list[frozenset[int]]:
    """Ranks that are changed at once: those of a kind of device, and each alone."""
    ranks = range(entry.ranks)
    alone = [frozenset({rank}) for rank in ranks]
    of_kinds = [
        frozenset(rank for rank in ranks if entry.kinds[rank] == kind)
        for kind in dict.fromkeys(entry.kinds)
    ]
    return [group for group in dict.fromkeys([*of_kinds, *alone]) if len(group) < entry.ranks]


def _resized(entry: PlacedReplica, ranks: frozenset[int]) -> Iterator[tuple[int, ...]]:
    """Sizes twice and half as large on some ranks, where they divide each other and the share."""
    doubled = [2 * size if rank in ranks else size for rank, size in enumerate(entry.sizes)]
    halved = [size // 2 if rank in ranks else size for rank, size in enumerate(entry.sizes)]
    if all(entry.sizes[rank] % 2 == 0 for rank in ranks) and _meet(entry, halved):
        yield tuple(halved)
    if _meet(entry, doubled):
        yield tuple(doubled)


def _meet(entry: PlacedReplica, sizes: Sequence[int]) -> bool:
    """Whether a replica's stages may have these sizes."""
    in_order = sorted(sizes)
    return (
        in_order[-1] <= LARGEST_MICRO_BATCH
        and entry.sequences % in_order[-1] == 0
        and all(larger % smaller == 0 for smaller, larger in pairwise(in_order))
    )
