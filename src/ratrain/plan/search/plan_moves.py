"""Moves of whole plans, which drafts do not know: stages that compute other numbers of sequences at
once, compute orders that are layer-major or split backward, what waits in another memory tier.

A plan move is declared by its name, as a move of drafts is. Those that climb are made of the best
plans of a search again and again, as long as each saves enough of a step; `explain` says of each
what it would make of the plan that it explains.

A stage on a kind of device with much to gain from larger products, and memory for them, may compute
several of its replica's micro-batches in one op, while its neighbour takes them one by one. From a
plan that was found otherwise the size of one stage, or of all stages on one kind of device, is
doubled or halved, or where sizes differ a layer goes to a neighbour, as long as the simulated step
is shorter and the proof fits the budget. Stages whose memory is then short recover, if they may.

`layout.further_orders` says what such an order is, and when a job leaves it to the planner. Here
the fastest plans of a search, each of another family, are tried in it as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import chain, islice, pairwise

from ratrain.cost.measured import Unmeasured
from ratrain.describe.job import JobSpec
from ratrain.errors import RatrainError
from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.on_devices import plans_of
from ratrain.plan.draft.parts import layers_moved
from ratrain.plan.draft.pools import Pool
from ratrain.plan.layout.placement import PlacedReplica
from ratrain.plan.layout.plan import LAYER_MAJOR, SPLIT, Plan, Reordering, keeps_all
from ratrain.plan.layout.tiers import jobs_in_tiers, tiers_of, waiting_in
from ratrain.plan.price.bill import NONE
from ratrain.plan.price.fitted import codes_of
from ratrain.plan.price.kind_speed import LARGEST_MICRO_BATCH
from ratrain.plan.price.trial import step_s_of
from ratrain.plan.search import limits
from ratrain.plan.search.climb import climbed
from ratrain.plan.search.moves import MoveTried
from ratrain.plan.search.tried import Timed, fastest_of, step_of, timed_recovering
from ratrain.plugins import Registry
from ratrain.program.repeating import compute_ops
from ratrain.program.replicas import Recovery
from ratrain.program.skeletons import SKELETONS


@dataclass(frozen=True)
class PlanMove:
    """`words`: what it changes, as `explain` says it; `plans`: what it makes of a plan; `climbs`:
    whether the search makes it of its best plans."""

    words: str
    plans: Callable[[Plan], Iterator[Plan]]
    climbs: bool = True

    def first_of(self, plan: Plan) -> list[Plan]:
        """The first few plans that it makes of one; none where that cannot be."""
        try:
            return list(islice(self.plans(plan), limits.MOVES_SHOWN))
        except RatrainError:
            return []


PLAN_MOVES: Registry[PlanMove] = Registry("plan move")


def declare_plan_move(name: str, move: PlanMove) -> None:
    """Lets the search try it, and `explain` list it."""
    PLAN_MOVES.declare(name, move)


def plan_moves_of(plan: Plan, step_s: float) -> tuple[MoveTried, ...]:
    """What each would make of a plan that takes so long, simulated whole; none of a plan whose
    program is long."""
    if compute_ops(plan.setup) > limits.MOVES_OPS:
        return ()
    every = {name: (move.words, move.first_of(plan)) for name, move in PLAN_MOVES.items()}
    return tuple(
        MoveTried(
            name, words, len(made), min(filter(None, map(_step_s, made)), default=None), step_s
        )
        for name, (words, made) in every.items()
    )


def _step_s(plan: Plan) -> float | None:
    """Seconds of a plan's step; None where it does not fit, or cannot be."""
    try:
        return step_s_of(plan)
    except (RatrainError, Unmeasured):
        return None


def improved(start: Timed, begins: Callable[[], None]) -> Iterator[Timed]:
    """Ever faster plans, each a plan move from the one before. `begins` is called for each that is
    tried."""
    left, known = limits.SIZES_OPS, {_key(start.plan)}

    def near(here: Timed) -> Iterator[Timed]:
        nonlocal left
        climbing = (move.plans(here.plan) for move in PLAN_MOVES.values() if move.climbs)
        for plan in chain.from_iterable(climbing):
            if left <= 0 or _key(plan) in known:
                continue
            known.add(_key(plan))
            left -= here.draft.ops
            begins()
            timed = _timed(here, plan, here.step_s * (1 - limits.WORTH_SIZES))
            if timed is not None and timed.refusals == start.refusals:
                yield timed

    rounds, gain = limits.SIZES_ROUNDS, limits.WORTH_SIZES
    return climbed(start, near, step_of, rounds=rounds, gain=gain)


def _timed(here: Timed, plan: Plan, bar_s: float) -> Timed | None:
    """A plan as simulated, where it fits, perhaps with more recovery, and its layers were measured
    in these sizes."""
    try:
        return timed_recovering(here.draft, plan, bar_s)
    except Unmeasured:
        return None


def _key(plan: Plan) -> object:
    """What tells the plans that are tried apart."""
    cuts = tuple((entry.sizes, entry.layout.layers) for entry in plan.replicas)
    return cuts, plan.strategy, plan.job.schedule


def _neighbours(plan: Plan) -> Iterator[Plan]:
    """Every plan in which some ranks of an entry compute twice or half as many sequences at once,
    but all of them: that is a plan of another micro-batch, which the search has tried; and where
    its ranks differ in that, those in which a layer goes to a neighbouring stage."""
    if plan.sequence_parallel or not SKELETONS[plan.strategy.skeleton].joins:
        return
    for number, entry in enumerate(plan.replicas):
        if entry.has_members or entry.layout.virtual > 1:
            continue
        may_keep = codes_of(plan.job, plan.strategy)[0] == NONE
        again = _recomputing(entry) if may_keep else frozenset[int]()
        changes = [other for ranks in _together(entry) for other in _resized(entry, ranks, again)]
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


def _recomputing(entry: PlacedReplica) -> frozenset[int]:
    """Ranks that compute activations again."""
    held = zip(entry.held, entry.recovery, strict=True)
    return frozenset(rank for (_, rank), mode in held if mode.again)


def _resized(
    entry: PlacedReplica, ranks: frozenset[int], again: frozenset[int]
) -> Iterator[PlacedReplica]:
    """Sizes twice and half as large on some ranks, where they divide each other and the share.
    Of those `again`, which recompute, the smaller may have room to keep all: they begin so."""
    doubled = [2 * size if rank in ranks else size for rank, size in enumerate(entry.sizes)]
    halved = [size // 2 if rank in ranks else size for rank, size in enumerate(entry.sizes)]
    if all(entry.sizes[rank] % 2 == 0 for rank in ranks) and _meet(entry, halved):
        yield entry.computing(halved).in_mode(Recovery.NONE, ranks & again)
    if _meet(entry, doubled):
        yield entry.computing(doubled)


def _meet(entry: PlacedReplica, sizes: Sequence[int]) -> bool:
    """Whether a replica's stages may have these sizes."""
    in_order = sorted(sizes)
    return (
        in_order[-1] <= LARGEST_MICRO_BATCH
        and entry.sequences % in_order[-1] == 0
        and all(larger % smaller == 0 for smaller, larger in pairwise(in_order))
    )


@dataclass(frozen=True)
class Reordered:
    """What a search in these orders has to know. `changes`: the drafts one change away. `begins`
    is called for each plan that is tried."""

    job: JobSpec
    pools: Sequence[Pool]
    changes: Callable[[Draft], Iterable[Draft]]
    begins: Callable[[], None]
    climbs: bool

    def of(self, order: Reordering, plans: Sequence[Timed], known_s: float) -> Iterator[Timed]:
        """Ever faster plans in such orders, made of `plans`, that take enough less than `known_s`,
        the fastest step known; and where recovery is no way out, what changes make of the
        fastest: with fewer waits another cut, share, micro-batch or size may be the best."""
        bar_s, fastest = known_s * (1 - order.worth), None
        every = [(plan, ordered) for plan in plans for ordered in order.plans(plan.plan)]
        for plan, ordered in every:
            self.begins()
            if order.recovers:
                tried = timed_recovering(plan.draft, ordered, bar_s, proved_last=True)
            else:
                tried, _ = fastest_of([ordered], plan.draft, bar_s, proved_last=True)
            if tried is not None and tried.step_s < bar_s and tried.refusals == plan.refusals:
                bar_s, fastest = tried.step_s * (1 - order.further), tried
                yield tried
        if fastest is not None and self.climbs and not order.recovers:
            changed = [fastest, *self._changed(fastest)]
            yield from changed[1:]
            yield from improved(changed[-1], self.begins)

    def _changed(self, start: Timed) -> Iterator[Timed]:
        """Ever faster plans in the same order, each of a change of the draft before."""
        schedule, known = start.plan.job.schedule, set[object]()
        job = replace(self.job, schedule=schedule)

        def near(here: Timed) -> Iterator[Timed]:
            new = (draft for draft in self.changes(here.draft) if draft.key not in known)
            fewest = nsmallest(limits.REORDERED_CHANGES, new, key=lambda draft: draft.estimate_s)
            known.update(draft.key for draft in fewest)
            bar_s = here.step_s
            for draft in fewest:
                self.begins()
                plans = filter(keeps_all, plans_of(job, self.pools, draft))
                other, _ = fastest_of(plans, draft, bar_s, proved_last=True)
                if other is not None and other.step_s < bar_s and other.refusals == start.refusals:
                    bar_s = other.step_s
                    yield other

        return climbed(start, near, step_of, rounds=limits.REORDERED_ROUNDS, gain=0.0)


def _spilled(plan: Plan) -> Iterator[Plan]:
    """What is recomputed kept in another tier in its place: in that of the job, or in each that its
    devices have."""
    again = [*map(_recomputing, plan.replicas)]
    jobs = [waiting_in(plan.job, {"activation_tier": tier}) for tier in tiers_of(plan.job)]
    for job in filter(None, [plan.job] if plan.job.activation_tier else jobs):
        if any(again):
            yield replace(plan, job=job).in_modes(Recovery.SPILL, again)


def _in_tiers(plan: Plan) -> Iterator[Plan]:
    """Optimizer states, then activations and weights too, in other tiers; as it is, and where that
    recovers with every activation kept."""
    for job in jobs_in_tiers(plan.job):
        there = replace(plan, job=job)
        kept = there.keeping(range(len(there.setup.members)))
        yield from (kept, there) if kept.replicas != there.replicas else (there,)


declare_plan_move("sizes", PlanMove("stages in twice or half the micro-batch", _neighbours))
for _name, _words, _plans in (
    ("layer-major", "the ends of a step layer by layer", LAYER_MAJOR.plans),
    ("split", "backward split, weight gradients in the gaps", SPLIT.plans),
    ("spill", "activations in another tier, not recomputed", _spilled),
    ("tiers", "states in another memory tier", _in_tiers),
):
    declare_plan_move(_name, PlanMove(_words, _plans, climbs=False))
