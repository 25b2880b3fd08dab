"""The search among drafts whose stages have one member each: the three stages of `search.unequal`.

Closed forms rank drafts of every shape; the best are timed at the grain of stages, and changed
there; then they are built, proved and simulated whole, and the fastest are changed once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest
from itertools import product

from ratrain.describe.job import JobSpec
from ratrain.plan.layout.candidate import MODES
from ratrain.plan.layout.enumerate import StateMode, divisors_of, modes_of
from ratrain.plan.layout.jobs import strategy_of
from ratrain.plan.price.fitted import codes_of
from ratrain.plan.price.kind_speed import LARGEST_MICRO_BATCH
from ratrain.plan.search.changes import changed, in_best_sizes, in_other_division, leaner
from ratrain.plan.search.clock import StageClock
from ratrain.plan.search.effort import MARGIN, Effort
from ratrain.plan.search.leaders import LEAST, Leaders
from ratrain.plan.search.mixes import Draft, drafts
from ratrain.plan.search.pools import divisions_of, in_division, pools_of, shapes_of
from ratrain.plan.search.shares import best_shares
from ratrain.plan.search.stages import Stages
from ratrain.plan.search.trial import Timed, timed
from ratrain.program.strategies import Strategy

Progress = Callable[[int, int], None]

NEAR = 40
"""Changes of a draft that are timed in a round, those of the least estimate."""
CLOCK_MARGIN, LONG_MARGIN = 1.02, 1.005
"""A draft is not simulated whole whose time at the grain of stages is this much above the best; the
second where its program is long. Of few devices, several to a host, `MARGIN` counts in place of the
first: their links are estimated there."""
LONG_GAIN = 1e-4
"""Part of a step that a change of a long program must gain at the grain of stages."""
ALIKE = 4
"""Drafts simulated at most of the same shapes."""
ROUNDS, CLOCK_ROUNDS = 8, 24
OPS = 200_000
"""Ops of one step, over all drafts of a class that are simulated, after which no more is begun:
half of them for the best by estimate, half for what is made of these."""
RESIZED = 200
"""Drafts whose parts are tried in micro-batches of their own sizes: so many of the least estimate,
and so many of those whose slowest part alone takes least. Where a part's share is one micro-batch,
reductions hide behind all of it; in small ones little is hidden, so there the estimate of such a
draft says nothing of what it can be."""
DIVIDED = 40
"""Drafts that are tried with sequence parallelism too, those of the least estimate."""


class DraftSearch:
    """A search under way: what was simulated, and how many."""

    def __init__(
        self, job: JobSpec, known_s: float, progress: Progress | None, effort: Effort
    ) -> None:
        chosen = strategy_of(job)
        pools = pools_of(job.cluster.members())
        codes = codes_of(job, chosen)
        self.job, self.known_s, self.progress = job, known_s, progress
        self.stages = Stages(job, pools, chosen, [MODES[code] for code in codes])
        self.states = _states(job, chosen)
        self.simulated = 0
        self.clock = StageClock(self.stages)
        members = job.cluster.members()
        self.effort = effort
        self._left, self._clock_left = OPS, effort.clock_ops
        together = len({device.host for device in members}) < len(members)
        self._margin = MARGIN if together and not effort.spares_programs else CLOCK_MARGIN
        self._most = 2 * (effort.simulated + effort.climbs * effort.changes * ROUNDS)
        self._known: dict[object, Timed[Draft] | None] = {}
        self._clocked: dict[object, float | None] = {}

    def ranked(self) -> list[Draft]:
        """Every draft, the least estimate first. Where none fits with states as they are fastest,
        the next are tried, then sequence parallelism; the best are tried with it in any case."""
        shapes = shapes_of(self.job, self.stages.pools)
        sizes = [s for s in divisors_of(self.job.batch.sequences) if s <= LARGEST_MICRO_BATCH]
        alone = modes_of(self.job, strategy_of(self.job), 1)[0]
        by_shape: dict[object, Draft] = {}
        for divided, state in product(divisions_of(self.job, shapes), self.states):
            posted = [in_division(shape, divided) for shape in shapes]
            for size in sizes:
                for draft in drafts(self.stages, posted, size, (state, alone), self.effort.mixes):
                    by_shape.setdefault(draft.key, draft)
            if any(len(draft.parts) > 1 for draft in by_shape.values()):
                break
        best = nsmallest(RESIZED, by_shape.values(), key=lambda draft: draft.estimate_s)
        best += nsmallest(RESIZED, by_shape.values(), key=lambda draft: draft.alone_s)
        best += [
            other
            for draft in best[:DIVIDED]
            if (other := in_other_division(self.stages, draft)) is not None
        ]
        for draft in best:
            by_shape.setdefault(draft.key, draft)
            resized = in_best_sizes(self.stages, draft)
            if resized is not None:
                by_shape.setdefault(resized.key, resized)
        if self.effort.shares_anew:
            of_family = {draft.family: draft for draft in by_shape.values() if len(draft.parts) > 1}
            for reshared in filter(None, map(best_shares(self.stages), of_family.values())):
                by_shape.setdefault(reshared.key, reshared)
        must_divide = bool(self.job.schedule.sequence_parallel)
        allowed = [draft for draft in by_shape.values() if draft.divided or not must_divide]
        return sorted(allowed, key=lambda draft: draft.estimate_s)

    def best_of(
        self, starts: Sequence[Draft], ranked: Sequence[Draft], bar_s: float
    ) -> list[Timed[Draft]]:
        """The best of drafts as simulated, and of those made of the best by changes. Those that
        cannot be faster than `bar_s` are passed over. `starts` are timed whatever their estimate
        says; of `ranked`, the least estimate first, as many as may be as fast."""
        best_s, tried = bar_s, dict[object, Timed[Draft]]()
        self._left, self._clock_left = OPS, self.effort.clock_ops
        families: Counter[object] = Counter()
        fitting: set[object] = set()
        count = 0
        for time_s, draft in self._clocked_first(starts, ranked, bar_s):
            if count >= self.effort.simulated or self._left < OPS // 2:
                break
            if time_s > self._margin_of(draft) * best_s or families[draft.family] >= ALIKE:
                continue
            spares = self.effort.spares_programs and _exchanges_more(draft.state)
            if spares and draft.work in fitting:
                continue
            families[draft.family] += 1
            count += 1
            timed_draft = self._simulate(draft, best_s)
            if timed_draft is not None:
                fitting.add(draft.work)
                tried[timed_draft.draft.key] = timed_draft
                best_s = min(best_s, timed_draft.step_s)
        fastest = sorted(tried.values(), key=lambda timed_draft: timed_draft.step_s)
        for timed_draft in fastest[: self.effort.climbs]:
            for better in self._climbed(timed_draft):
                tried[better.draft.key] = better
        return sorted(tried.values(), key=lambda timed_draft: timed_draft.step_s)

    def _clocked_first(
        self, starts: Sequence[Draft], ranked: Sequence[Draft], bar_s: float
    ) -> list[tuple[float, Draft]]:
        """The best drafts by estimate, and changes of them, the least time first."""
        known = {draft.key: (self._time_s(draft), draft) for draft in starts}
        best_s = min([bar_s, *(time_s for time_s, _ in known.values())])
        effort = self.effort
        leaders = Leaders(effort.followed, effort.simulated)
        for draft in ranked:
            enough = len(known) >= effort.clocked or self._clock_left < effort.clock_ops // 2
            if enough or draft.estimate_s > effort.clock_margin * best_s:
                break
            if draft.alone_s * LEAST > leaders.last_s:
                continue
            time_s = self._time_s(draft)
            known[draft.key] = time_s, draft
            leaders.add(self._family(draft), time_s)
            best_s = min(best_s, time_s)
        for draft in nsmallest(effort.hopeful, ranked, key=lambda draft: draft.alone_s):
            if draft.alone_s > best_s or self._clock_left < effort.clock_ops // 2:
                break
            known[draft.key] = self._time_s(draft), draft
        families = set[object]()
        for time_s, draft in sorted(known.values(), key=_time_of):
            if len(families) >= effort.followed:
                break
            family = self._family(draft)
            if family in families or self._clock_s(draft) is None:
                continue
            families.add(family)
            for better_s, better in self._followed(time_s, draft):
                known[better.key] = better_s, better
        return sorted(known.values(), key=_time_of)

    def _family(self, draft: Draft) -> object:
        """What one draft is followed of."""
        return draft.family, draft.sizes if self.effort.follows_sizes else ()

    def _followed(self, time_s: float, draft: Draft) -> Iterable[tuple[float, Draft]]:
        """Ever faster drafts at the grain of stages, each a change of the one before."""
        for _ in range(CLOCK_ROUNDS):
            near = nsmallest(NEAR, self.near(draft), key=lambda change: change.estimate_s)
            clocked = [
                (near_s, change)
                for change in near
                if self._clock_left > 0
                and change.alone_s * LEAST < time_s
                and (near_s := self._clock_s(change)) is not None
            ]
            better_s, better = min(clocked, key=_time_of, default=(time_s, draft))
            if better_s >= time_s * (1 - 1e-6):
                return
            time_s, draft = better_s, better
            yield time_s, draft

    def near(self, draft: Draft) -> Iterable[Draft]:
        """Changes of a draft that train if it does."""
        for change in changed(self.stages, draft, self.states):
            if change.trainable >= draft.trainable:
                yield change

    def _clock_s(self, draft: Draft) -> float | None:
        """Its step at the grain of stages; None where it has no such program."""
        if draft.key not in self._clocked:
            self._clock_left -= self.clock.ops(draft)
            self._clocked[draft.key] = self.clock.step_s(draft)
        return self._clocked[draft.key]

    def _time_s(self, draft: Draft) -> float:
        """What ranks it: its step at the grain of stages, or its estimate."""
        clock_s = self._clock_s(draft)
        return draft.estimate_s if clock_s is None else clock_s

    def _climbed(self, start: Timed[Draft]) -> Iterable[Timed[Draft]]:
        """Ever faster ones, each a change of the one before."""
        here = start
        for _ in range(ROUNDS):
            if self._left < 0:
                return
            new = (draft for draft in self.near(here.draft) if self._is_new(draft, here.draft))
            near = nsmallest(NEAR, new, key=lambda draft: draft.estimate_s)
            fast = [
                (self._time_s(draft), draft)
                for draft in near
                if self._clock_left > 0 or draft.key in self._clocked
            ]
            near = [
                draft
                for time_s, draft in sorted(fast, key=_time_of)
                if self._may_gain(draft, time_s, here)
            ]
            better, bar_s = None, here.step_s
            for draft in near[: self.effort.changes]:
                neighbour = self._simulate(draft, bar_s)
                if neighbour is not None and (better is None or neighbour.step_s < better.step_s):
                    better = neighbour
                    bar_s = min(bar_s, better.step_s) if self.effort.spares_programs else bar_s
            if better is None or better.step_s >= here.step_s * (1 - 1e-6):
                return
            here = better
            yield here

    def _is_new(self, change: Draft, draft: Draft) -> bool:
        """Whether a change is worth a look: not simulated yet, and where programs are long, not
        the same work with more exchanges."""
        spares = self.effort.spares_programs and _exchanges_more(change.state)
        return change.key not in self._known and not (spares and change.work == draft.work)

    def _may_gain(self, change: Draft, time_s: float, here: Timed[Draft]) -> bool:
        """Whether a change that takes so long at the grain of stages may be faster as a whole."""
        if self._clock_s(change) is None:
            return True
        if self._is_long(change) and time_s >= (1 - LONG_GAIN) * self._time_s(here.draft):
            return False
        return time_s < self._margin * here.step_s

    def _margin_of(self, draft: Draft) -> float:
        """How far the time of a draft that is simulated whole may be above the best step."""
        if self._clock_s(draft) is None:
            return MARGIN
        return LONG_MARGIN if self._is_long(draft) else self._margin

    def _is_long(self, draft: Draft) -> bool:
        """Whether its whole program takes seconds to build, prove and simulate."""
        sides = dict.fromkeys(zip(draft.parts, draft.shares, strict=True))
        ops = sum(share * (2 * sum(part.layers) + 4 * len(part.shape)) for part, share in sides)
        return len(sides) > 1 and ops > self.effort.long_ops

    def watch(self) -> None:
        """Counts a draft that is simulated whole."""
        self.simulated += 1
        if self.progress is not None:
            self.progress(min(self.simulated, self._most), self._most)

    def simulated_as(self, draft: Draft) -> Timed[Draft] | None:
        """The draft as it was simulated; None where it was not, or did not fit."""
        return self._known.get(draft.key)

    def _simulate(self, draft: Draft, best_s: float) -> Timed[Draft] | None:
        """A draft as simulated, with more recovery where memory asks for it."""
        if draft.key not in self._known:
            self.watch()
            self._left -= draft.ops
            known: Timed[Draft] | None = None
            leaned: Draft | None = draft
            for _ in range(4):
                if leaned is None:
                    break
                is_long = self._is_long(leaned)
                known, short = timed(
                    self.job, self.stages.pools, leaned, best_s, proved_last=is_long
                )
                leaned = leaner(self.stages, leaned, short) if short else None
            self._known[draft.key] = known
        return self._known[draft.key]


def _time_of(timed_draft: tuple[float, Draft]) -> float:
    return timed_draft[0]


def _exchanges_more(state: StateMode) -> bool:
    """Whether replicas exchange states with every micro-batch: never faster than where all fits
    without."""
    return state.sharded_gradients or state.sharding == 3


def _states(job: JobSpec, chosen: Strategy) -> tuple[StateMode, ...]:
    """How replicas may share states, the fastest and most trainable first."""
    allowed = modes_of(job, chosen, 2)
    return tuple(
        sorted(
            allowed,
            key=lambda mode: (mode.sharding == 3, mode.sharded_gradients, mode.sharding == 0),
        )
    )
