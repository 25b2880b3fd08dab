"""The search for plans in which kinds of device share stages: see `search.members`.

Ideas are ranked by their busiest stages, the best of them by a clock; those whose compute alone
does not take longer than the best plan so far are built, proved and simulated as whole programs,
the least estimate first, and the fastest are changed as long as that gains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import accumulate

from ratrain.plan.layout.enumerate import StateMode, divisors_of
from ratrain.plan.layout.sizes import trains_tied
from ratrain.plan.price.kind_speed import LARGEST_MICRO_BATCH
from ratrain.plan.search.clock import StageClock
from ratrain.plan.search.members import MembersDraft, MembersParts
from ratrain.plan.search.members_changes import layers_changed, members_changed
from ratrain.plan.search.members_clock import MembersClock
from ratrain.plan.search.members_drafts import Idea, Ideas, shares_of
from ratrain.plan.search.on_devices import plans_of_members
from ratrain.plan.search.pools import FEW, Post, divisions_of, tensor_degrees
from ratrain.plan.search.stages import Stages
from ratrain.plan.search.trial import fastest_of
from ratrain.plan.search.tried import Timed

TIMED = 120
"""Ideas of each sort that are put on the clock, those whose busiest stages take least: a pipeline
of all devices in one tensor degree, any other pipeline, several pipelines."""
RECUT = 10
"""Drafts of the least estimate whose layers are moved one by one as long as the clock gains."""
MARGIN = 1.12
"""A draft is not simulated whose estimate is this much above the best step."""
SIMULATED = 12
"""Drafts simulated at most before the fastest are changed."""
QUICKLY = 2
"""The same of a quick search, which changes none."""
CLIMBS, ROUNDS, CHANGES = 2, 6, 4
"""Drafts that are changed, changes one after another, and those simulated for each."""


@dataclass(frozen=True)
class MembersSearch:
    """Plans with stages of several members, the fastest first; how many were drafted and
    simulated."""

    plans: tuple[Timed[MembersDraft], ...]
    drafts: int = 0
    simulated: int = 0


def members_search(
    stages: Stages,
    clock: StageClock,
    states: Sequence[StateMode],
    bar_s: float,
    watch: Callable[[], None],
    *,
    quick: bool = False,
) -> MembersSearch:
    """The `MembersSearch` for plans that take less than `bar_s`; `states`: how members may share
    states, the fastest first. `watch` is called for each that is simulated; of a `quick` search
    fewer are."""
    usable = [
        state
        for state in states
        if (state.sharding < 3 or stages.strategy.gathers_once) and not state.sharded_gradients
    ]
    devices = sum(len(pool.devices) for pool in stages.pools)
    if not usable or trains_tied(stages.job) or devices > FEW:
        return MembersSearch(())
    leaner = [state for state in usable[1:] if state.sharding > usable[0].sharding]
    seeker = _Seeker(stages, clock, (usable[0], *leaner), bar_s, watch)
    return seeker.found(QUICKLY if quick else SIMULATED)


class _Seeker:
    """A search under way."""

    def __init__(
        self,
        stages: Stages,
        clock: StageClock,
        states: Sequence[StateMode],
        bar_s: float,
        watch: Callable[[], None],
    ) -> None:
        self._stages, self._states, self._best_s, self._watch = stages, states, bar_s, watch
        self._clock = MembersClock(stages, clock)
        self._makers: dict[object, MembersParts] = {}
        self._known: dict[object, Timed[MembersDraft] | None] = {}

    def found(self, simulated: int) -> MembersSearch:
        ranked = sorted(self._drafts(), key=_estimate)
        for draft in ranked:
            if len(self._known) >= simulated or draft.estimate_s > MARGIN * self._best_s:
                break
            self._simulate(draft)
        for timed in self._fastest()[: CLIMBS if simulated > QUICKLY else 0]:
            self._climb(timed)
        return MembersSearch(tuple(self._fastest()), len(ranked), len(self._known))

    def _fastest(self) -> list[Timed[MembersDraft]]:
        timed = [each for each in self._known.values() if each is not None]
        return sorted(timed, key=lambda each: each.step_s)

    def _drafts(self) -> Iterator[MembersDraft]:
        """Those whose compute is not too long already."""
        for state in self._states:
            every = list(self._ideas(state))
            ideas = [(idea, of_size) for of_size in every for idea in of_size.best(self._best_s)]
            drafts = [
                draft
                for sort in {idea.sort for idea, _ in ideas}
                for idea, of_size in nsmallest(
                    TIMED,
                    (each for each in ideas if each[0].sort == sort),
                    key=lambda each: each[0].time_s,
                )
                if (draft := self._draft(idea, of_size, state)) is not None
            ]
            yield from (draft for draft in drafts if draft.least_s < self._best_s)
            for draft in nsmallest(RECUT, drafts, key=_estimate):
                yield from self._recut(draft)
            if not any(of_size.memory_binds for of_size in every):
                return

    def _recut(self, draft: MembersDraft) -> Iterator[MembersDraft]:
        """Ever faster drafts by the clock, each with a layer moved."""
        here = draft
        for _ in range(ROUNDS):
            near = layers_changed(self._stages, self._clock, self._maker_of(here.state), here)
            other = min(near, key=_estimate, default=here)
            if other.estimate_s >= here.estimate_s:
                return
            here = other
            if here.least_s < self._best_s:
                yield here

    def _ideas(self, state: StateMode) -> Iterator[Ideas]:
        stages = self._stages
        degrees = {t for pool in stages.pools for t in tensor_degrees(stages.job, pool)}
        for divided in divisions_of(stages.job, [(Post(0, tensor),) for tensor in degrees]):
            for size in divisors_of(stages.job.batch.sequences):
                if size <= LARGEST_MICRO_BATCH:
                    yield Ideas(stages, size, state, divided)

    def _draft(self, idea: Idea, of_size: Ideas, state: StateMode) -> MembersDraft | None:
        parts = [of_size.part_of(idea, number) for number in range(len(idea.pipelines))]
        fitting = [part for part in parts if part is not None]
        if len(fitting) < len(parts):
            return None
        batches = self._stages.job.batch.sequences // fitting[0].micro_batch
        shares = shares_of(fitting, batches)
        return None if shares is None else self._clock.draft(fitting, shares, state)

    def _climb(self, start: Timed[MembersDraft]) -> None:
        """Ever faster ones, each a change of the one before."""
        here = start
        for _ in range(ROUNDS):
            new = (
                draft
                for draft in members_changed(
                    self._stages, self._clock, self._maker_of(here.draft.state), here.draft
                )
                if draft.key not in self._known and draft.least_s < self._best_s
            )
            tried = [self._simulate(draft) for draft in nsmallest(CHANGES, new, key=_estimate)]
            faster = [each for each in tried if each is not None and each.step_s < here.step_s]
            if not faster:
                return
            here = min(faster, key=lambda each: each.step_s)

    def _maker_of(self, state: StateMode) -> Callable[[int, int], MembersParts]:
        def maker(micro_batch: int, parts: int) -> MembersParts:
            key = micro_batch, parts, state
            if key not in self._makers:
                beside = parts - 1
                self._makers[key] = MembersParts(self._stages, micro_batch, state, beside)
            return self._makers[key]

        return maker

    def _simulate(self, draft: MembersDraft) -> Timed[MembersDraft] | None:
        """A draft as simulated, with more recovery where memory asks for it."""
        if draft.key in self._known:
            return self._known[draft.key]
        self._watch()
        timed: Timed[MembersDraft] | None = None
        leaned: MembersDraft | None = draft
        for _ in range(4):
            if leaned is None:
                break
            plans = plans_of_members(self._stages.job, self._stages.pools, leaned)
            timed, short = fastest_of(plans, leaned, self._best_s)
            leaned = self._leaner(leaned, short) if short else None
        self._known[draft.key] = timed
        if timed is not None:
            self._best_s = min(self._best_s, timed.step_s)
        return timed

    def _leaner(self, draft: MembersDraft, ranks: Sequence[int]) -> MembersDraft | None:
        """The draft with the next recovery mode on program ranks whose memory is short; None where
        one has no leaner mode, or computes nothing."""
        sides = list(dict.fromkeys(zip(draft.parts, draft.shares, strict=True)))
        firsts = list(accumulate((sum(map(len, part.posts)) for part, _ in sides), initial=0))
        modes = [[list(of_stage) for of_stage in part.recovery] for part, _ in sides]
        for rank in ranks:
            number = max(n for n in range(len(sides)) if firsts[n] <= rank)
            place = _member_at(sides[number][0].posts, rank - firsts[number])
            if place is None or place[1] >= len(modes[number][place[0]]):
                return None
            stage, member = place
            following = self._stages.modes.index(modes[number][stage][member]) + 1
            if following >= len(self._stages.modes):
                return None
            modes[number][stage][member] = self._stages.modes[following]
        maker = self._maker_of(draft.state)(draft.parts[0].micro_batch, len(draft.parts))
        leaned = {
            side: maker.made(
                side[0].shapes, holders=side[0].holders, layers=side[0].layers, recovery=of_part
            )
            for side, of_part in zip(sides, modes, strict=True)
        }
        parts = [leaned[side] for side in zip(draft.parts, draft.shares, strict=True)]
        fitting = [part for part in parts if part is not None]
        if len(fitting) < len(parts):
            return None
        return self._clock.draft(fitting, draft.shares, draft.state)


def _member_at(posts: Sequence[Sequence[Post]], rank: int) -> tuple[int, int] | None:
    """The stage of a rank, and its place among the members there."""
    for stage, members in enumerate(posts):
        if rank < len(members):
            return stage, rank
        rank -= len(members)
    return None


def _estimate(draft: MembersDraft) -> float:
    return draft.estimate_s
