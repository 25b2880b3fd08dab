"""The search for plans whose stages and replicas differ, on small clusters of unequal devices.

Two stages, as HeteroAuto has them (arXiv 2505.17548): closed forms rank drafts of every shape, and
the best are built, proved and simulated as whole programs; around the fastest, single layers,
micro-batches, shares, orders and state modes are changed as long as the simulated step gains. What
`ratrain train` can run is searched for by itself, beside what can only be simulated.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from ratrain.describe.job import JobSpec
from ratrain.plan.build import MODES, Candidate
from ratrain.plan.enumerate import StateMode, divisors_of, modes_of, strategy_of
from ratrain.plan.kind_speed import LARGEST_MICRO_BATCH, least_step_s
from ratrain.plan.search import codes_of
from ratrain.plan.unequal_changes import changed, in_best_sizes, leaner, of_candidate
from ratrain.plan.unequal_mixes import Draft, drafts
from ratrain.plan.unequal_pools import pools_of, shapes_of
from ratrain.plan.unequal_stages import Stages
from ratrain.plan.unequal_trial import Timed, timed
from ratrain.program.skeletons import SKELETONS
from ratrain.program.strategies import Strategy

Progress = Callable[[int, int], None]

DEVICES = 16
"""Devices at most: on more, replicas are alike."""
SIMULATED = 48
"""Drafts simulated at most of each class: those that train, and the rest."""
ALIKE = 4
"""Drafts simulated at most of the same shapes."""
MARGIN = 1.2
"""A draft is not simulated whose estimate is this much above the best simulated step."""
CHANGES = 12
"""Changes of the best draft that are simulated in a round, those of the least estimate."""
ROUNDS = 8
OPS = 200_000
"""Ops of one step, over all drafts of a class that are simulated, after which no more is begun:
half of them for the best by estimate, half for what is made of these."""
CLIMBS = 4
"""Drafts that are changed, the fastest as simulated."""
RESIZED = 200
"""Drafts whose parts are tried in micro-batches of their own sizes."""
MOST = 2 * (SIMULATED + CLIMBS * CHANGES * ROUNDS)
"""Simulated at most."""


@dataclass(frozen=True)
class UnequalSearch:
    """What the search found: plans that were simulated and proved, each class with its best first;
    and what no plan of these devices can be faster than."""

    trainable: tuple[Timed, ...]
    others: tuple[Timed, ...]  # faster than those that train, and only simulated
    drafts: int
    simulated: int
    least_s: float
    total_s: float


def searchable(job: JobSpec) -> bool:
    """Whether plans of unlike replicas are searched for: few devices of unequal kinds, one stage on
    a device, every replica with every gradient of a step."""
    members = job.cluster.members()
    skeleton = SKELETONS[strategy_of(job).skeleton]
    return (
        len(members) <= DEVICES
        and len({device.kind.name for device in members}) > 1
        and skeleton.fixed is None
        and job.schedule.average_every is None
        and not job.schedule.sequence_parallel
        and job.schedule.recovery in ("auto", "keep-all", "everywhere")
    )


def unequal_search(
    job: JobSpec, known: Sequence[Candidate], known_s: float, progress: Progress | None = None
) -> UnequalSearch:
    """The `UnequalSearch` of a job; `known`: the best plans of alike replicas, the fastest first,
    and its step, infinite where there are none. Plans that are no faster are left out."""
    began = time.perf_counter()
    seeker = _Seeker(job, known_s, progress)
    ranked = seeker.ranked()
    starts = [start for plan in known if (start := of_candidate(seeker.stages, plan)) is not None]
    trains = job.backend.trains
    can_train = [draft for draft in ranked if trains and draft.trainable]
    rest = [draft for draft in ranked if not (trains and draft.trainable)]
    trainable = seeker.best_of([*starts, *can_train] if trains else can_train, known_s)
    bar_s = trainable[0].step_s if trainable else known_s
    others = seeker.best_of(rest if trains else [*starts, *rest], bar_s)
    return UnequalSearch(
        tuple(plan for plan in trainable if plan.step_s < known_s),
        tuple(plan for plan in others if plan.step_s < bar_s),
        len(ranked),
        seeker.simulated,
        least_step_s(job, job.cluster.members()),
        time.perf_counter() - began,
    )


class _Seeker:
    """A search under way: what was simulated, and how many."""

    def __init__(self, job: JobSpec, known_s: float, progress: Progress | None) -> None:
        chosen = strategy_of(job)
        pools = pools_of(job.cluster.members())
        codes = [code for code in codes_of(job, chosen) if MODES[code].value != "selective"]
        self.job, self.known_s, self.progress = job, known_s, progress
        self.stages = Stages(job, pools, chosen, [MODES[code] for code in codes])
        self.states = _states(job, chosen)
        self.simulated = 0
        self._left = OPS
        self._known: dict[object, Timed | None] = {}

    def ranked(self) -> list[Draft]:
        """Every draft, the least estimate first. Where none fits with states as they are fastest,
        the next are tried."""
        shapes = shapes_of(self.job, self.stages.pools)
        sizes = [s for s in divisors_of(self.job.batch.sequences) if s <= LARGEST_MICRO_BATCH]
        alone = modes_of(self.job, strategy_of(self.job), 1)[0]
        by_shape: dict[object, Draft] = {}
        for state in self.states:
            for size in sizes:
                for draft in drafts(self.stages, shapes, size, (state, alone)):
                    by_shape.setdefault(draft.key, draft)
            if any(len(draft.parts) > 1 for draft in by_shape.values()):
                break
        best = nsmallest(RESIZED, by_shape.values(), key=lambda draft: draft.estimate_s)
        for draft in best:
            resized = in_best_sizes(self.stages, draft)
            if resized is not None:
                by_shape.setdefault(resized.key, resized)
        return sorted(by_shape.values(), key=lambda draft: draft.estimate_s)

    def best_of(self, ranked: Iterable[Draft], bar_s: float) -> list[Timed]:
        """The best of drafts as simulated, and of those made of the best by changes. Those that
        cannot be faster than `bar_s` are passed over."""
        best_s, tried = bar_s, dict[object, Timed]()
        self._left = OPS
        families: Counter[object] = Counter()
        count = 0
        for draft in ranked:
            if count >= SIMULATED or self._left < OPS // 2 or draft.estimate_s > MARGIN * best_s:
                break
            if families[draft.family] >= ALIKE:
                continue
            families[draft.family] += 1
            count += 1
            timed_draft = self._simulate(draft, best_s)
            if timed_draft is not None:
                tried[timed_draft.draft.key] = timed_draft
                best_s = min(best_s, timed_draft.step_s)
        for timed_draft in sorted(tried.values(), key=lambda timed_draft: timed_draft.step_s)[
            :CLIMBS
        ]:
            for better in self._climbed(timed_draft):
                tried[better.draft.key] = better
        return sorted(tried.values(), key=lambda timed_draft: timed_draft.step_s)

    def _climbed(self, start: Timed) -> Iterable[Timed]:
        """Ever faster ones, each a change of the one before."""
        here = start
        for _ in range(ROUNDS):
            near = [
                draft
                for draft in changed(self.stages, here.draft, self.states)
                if draft.key not in self._known and draft.trainable >= here.draft.trainable
            ]
            near.sort(key=lambda draft: draft.estimate_s)
            if self._left < 0:
                return
            timed_near = [self._simulate(draft, here.step_s) for draft in near[:CHANGES]]
            better = min(
                (neighbour for neighbour in timed_near if neighbour is not None),
                key=lambda neighbour: neighbour.step_s,
                default=None,
            )
            if better is None or better.step_s >= here.step_s * (1 - 1e-6):
                return
            here = better
            yield here

    def _simulate(self, draft: Draft, best_s: float) -> Timed | None:
        """A draft as simulated, with more recovery where memory asks for it."""
        if draft.key not in self._known:
            self.simulated += 1
            self._left -= draft.ops
            if self.progress is not None:
                self.progress(min(self.simulated, MOST), MOST)
            known: Timed | None = None
            leaned: Draft | None = draft
            for _ in range(4):
                if leaned is None:
                    break
                known, short = timed(self.job, self.stages.pools, leaned, best_s)
                leaned = leaner(self.stages, leaned, short) if short else None
            self._known[draft.key] = known
        return self._known[draft.key]


def _states(job: JobSpec, chosen: Strategy) -> tuple[StateMode, ...]:
    """How replicas may share states, the fastest and most trainable first."""
    allowed = modes_of(job, chosen, 2)
    return tuple(
        sorted(
            allowed,
            key=lambda mode: (mode.sharding == 3, mode.sharded_gradients, mode.sharding == 0),
        )
    )
