"""The search among drafts.

Seeds and what moves make of them are timed at the grain of stages (`search.beam`); the best are
built, proved and simulated whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest

from ratrain.describe.job import JobSpec
from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.pools import pools_of
from ratrain.plan.draft.space import Space, leaner
from ratrain.plan.draft.stages import Stages
from ratrain.plan.layout.enumerate import StateMode, modes_of
from ratrain.plan.layout.jobs import strategy_of
from ratrain.plan.layout.plan import MODES
from ratrain.plan.price.fitted import codes_of
from ratrain.plan.search import limits
from ratrain.plan.search.beam import Beam
from ratrain.plan.search.layouts import Progress
from ratrain.plan.search.limits import Effort
from ratrain.plan.search.moves import MOVES, MoveTried, changed
from ratrain.plan.search.tried import Timed, step_of, timed
from ratrain.program.strategies import Strategy


class DraftSearch:
    """A search under way: what was simulated, and how many."""

    def __init__(self, job: JobSpec, progress: Progress | None, effort: Effort) -> None:
        chosen = strategy_of(job)
        pools = pools_of(job.cluster.members())
        codes = codes_of(job, chosen)
        self.job, self.progress = job, progress
        self.stages = Stages(job, pools, chosen, [MODES[code] for code in codes])
        self.states = _states(job, chosen)
        self.space = Space(self.stages, self.states)
        self.simulated = self.drafts = self.with_members = 0
        self.passed_over = False
        """Whether drafts were made that were not allowed."""
        members = job.cluster.members()
        self.effort = effort
        self._left, self._clock_left = limits.DRAFTS_OPS, effort.clock_ops
        together = len({device.host for device in members}) < len(members)
        self._margin = (
            limits.MARGIN if together and not effort.spares_programs else limits.CLOCK_MARGIN
        )
        self._most = 2 * effort.simulated
        self._known: dict[object, Timed | None] = {}
        self._clocked: dict[object, float | None] = {}

    def best_of(
        self, starts: Sequence[Draft], bar_s: float, allowed: Callable[[Draft], bool]
    ) -> list[Timed]:
        """The best of allowed drafts as simulated. Those that cannot be faster than `bar_s` are
        passed over."""
        effort, best_s, tried = self.effort, bar_s, dict[object, Timed]()
        self._left, self._clock_left = limits.DRAFTS_OPS, self.effort.clock_ops
        families: Counter[object] = Counter()
        begun = slower = 0
        most = effort.simulated * (1 if effort.spares_programs else limits.MISFITS)
        priced = self._priced(starts, allowed)
        lighter = {draft.work for _, draft in priced if not draft.exchanges_more}
        for _, draft in priced:
            if len(tried) >= effort.simulated or begun >= most or self._left < 0:
                break
            is_slower = draft.exchanges_more and draft.work in lighter
            if is_slower or families[draft.family] >= limits.DRAFTS_ALIKE:
                continue
            time_s = self._time_s(draft)
            if time_s > self._margin_of(draft) * best_s:
                slower += 1
                wanted = slower <= effort.slower and time_s <= limits.SLOWER_MARGIN * best_s
                if not (wanted and self.is_tight(tried.values())):
                    continue
            families[draft.family] += 1
            begun += 1
            timed_draft = self._simulate(draft, best_s)
            if timed_draft is not None:
                tried[timed_draft.draft.key] = timed_draft
                best_s = min(best_s, timed_draft.step_s)
        return sorted(tried.values(), key=step_of)

    def is_tight(self, plans: Iterable[Timed]) -> bool:
        """Whether larger micro-batches may not fit some of these plans."""
        least_bytes = min(self.job.budgets)
        return any(2 * plan.bound_bytes > least_bytes for plan in plans)

    def _priced(
        self, starts: Sequence[Draft], allowed: Callable[[Draft], bool]
    ) -> list[tuple[float, Draft]]:
        """The drafts that were timed at the grain of stages, the fastest first."""
        must_divide = bool(self.job.schedule.sequence_parallel)
        beam = Beam(self.space, self.effort, self._ranks_s, lambda: self._clock_left < 0)
        priced = beam.best(
            starts, lambda draft: allowed(draft) and (draft.divided or not must_divide)
        )
        self.passed_over |= beam.passed_over
        several = sum(draft.has_members for _, draft in priced)
        self.with_members += several
        self.drafts += len(priced) - several
        return priced

    def _ranks_s(self, draft: Draft) -> float:
        """What ranks it in the beam. Behind all others where states travel with every
        micro-batch: never faster than where all fits without. Members gather once."""
        clock_s = self._clock_s(draft)
        if clock_s is not None:
            return clock_s
        is_behind = draft.exchanges_more and not draft.has_members
        return draft.estimate_s * (limits.BEHIND if is_behind else 1.0)

    def near(self, draft: Draft) -> Iterable[Draft]:
        """Changes of a draft that train if it does."""
        for change in changed(self.space, draft):
            if change.trainable >= draft.trainable:
                yield change

    def moves_of(self, draft: Draft) -> tuple[MoveTried, ...]:
        """What each move would make of a draft."""
        step_s, tried = self._time_s(draft), list[MoveTried]()
        has_clock = self._clock_s(draft) is not None

        def time_of(other: Draft) -> float | None:
            return self._clock_s(other) if has_clock else other.estimate_s

        for name, move in MOVES.items():
            others = move.of(self.space, draft)
            made = {other.key: other for other in others if other.key != draft.key}
            near = nsmallest(limits.MOVES_SHOWN, made.values(), key=lambda other: other.estimate_s)
            times_s = [time_s for other in near if (time_s := time_of(other)) is not None]
            best_s = min(times_s, default=None)
            tried.append(MoveTried(name, move.words, len(made), best_s, step_s))
        return tuple(tried)

    def _clock_s(self, draft: Draft) -> float | None:
        """Its step at the grain of stages; None where it has no such program."""
        if draft.key not in self._clocked:
            self._clock_left -= self.space.clock.ops(draft)
            self._clocked[draft.key] = self.space.clock.step_s(draft)
        return self._clocked[draft.key]

    def _time_s(self, draft: Draft) -> float:
        """What ranks it: its step at the grain of stages, or its estimate."""
        clock_s = self._clock_s(draft)
        return draft.estimate_s if clock_s is None else clock_s

    def _margin_of(self, draft: Draft) -> float:
        """How far the time of a draft that is simulated whole may be above the best step."""
        if self._clock_s(draft) is None:
            return limits.MARGIN
        return limits.LONG_MARGIN if self._is_long(draft) else self._margin

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

    def simulated_as(self, draft: Draft) -> Timed | None:
        """The draft as it was simulated; None where it was not, or did not fit."""
        return self._known.get(draft.key)

    def _simulate(self, draft: Draft, best_s: float) -> Timed | None:
        """A draft as simulated, with more recovery where memory asks for it."""
        if draft.key not in self._known:
            self.watch()
            self._left -= draft.ops
            known: Timed | None = None
            leaned: Draft | None = draft
            for _ in range(4):
                if leaned is None:
                    break
                is_long = self._is_long(leaned)
                known, short = timed(
                    self.job, self.stages.pools, leaned, best_s, proved_last=is_long
                )
                leaned = leaner(self.space, leaned, short) if short else None
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
