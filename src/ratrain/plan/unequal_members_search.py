"""The search for plans in which kinds of device share stages: see `unequal_members`.

Drafts of every spread of the devices over stages are ranked by a closed form; those whose compute
alone does not take longer than the best plan so far are built, proved and simulated as whole
programs, the least estimate first, and the fastest are changed as long as that gains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.errors import ProgramError, SpecError
from ratrain.plan.enumerate import StateMode, divisors_of
from ratrain.plan.kind_speed import LARGEST_MICRO_BATCH
from ratrain.plan.sizes import trains_tied
from ratrain.plan.unequal_build import plan_of_draft, seated
from ratrain.plan.unequal_members import (
    MembersDraft,
    members_changed,
    members_draft,
    members_drafts,
)
from ratrain.plan.unequal_pools import FEW
from ratrain.plan.unequal_stages import Stages
from ratrain.plan.unequal_trial import Timed, fastest_of
from ratrain.plan.uneven_setup import Groups, UnevenPlan, UnevenReplica

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
    states: Sequence[StateMode],
    bar_s: float,
    watch: Callable[[], None],
    *,
    quick: bool = False,
) -> MembersSearch:
    """The `MembersSearch` for plans that take less than `bar_s`; `states`: how members may share
    states, the first that they can. `watch` is called for each that is simulated; of a `quick`
    search fewer are."""
    usable = [
        state
        for state in states
        if (state.sharding < 3 or stages.strategy.gathers_once) and not state.sharded_gradients
    ]
    devices = sum(len(pool.devices) for pool in stages.pools)
    if not usable or trains_tied(stages.job) or devices > FEW:
        return MembersSearch(())
    return _Seeker(stages, usable[0], bar_s, watch).found(QUICKLY if quick else SIMULATED)


class _Seeker:
    """A search under way."""

    def __init__(
        self, stages: Stages, state: StateMode, bar_s: float, watch: Callable[[], None]
    ) -> None:
        self._stages, self._state, self._best_s, self._watch = stages, state, bar_s, watch
        self._known: dict[object, Timed[MembersDraft] | None] = {}

    def found(self, simulated: int) -> MembersSearch:
        ranked = sorted(self._drafts(), key=_estimate)
        for draft in ranked:
            if len(self._known) >= simulated:
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
        for size in divisors_of(self._stages.job.batch.sequences):
            if size > LARGEST_MICRO_BATCH:
                break
            for draft in members_drafts(self._stages, size, self._state):
                if draft.least_s < self._best_s:
                    yield draft

    def _climb(self, start: Timed[MembersDraft]) -> None:
        """Ever faster ones, each a change of the one before."""
        here = start
        for _ in range(ROUNDS):
            new = (
                draft
                for draft in members_changed(self._stages, here.draft)
                if draft.key not in self._known and draft.least_s < self._best_s
            )
            tried = [self._simulate(draft) for draft in nsmallest(CHANGES, new, key=_estimate)]
            faster = [each for each in tried if each is not None and each.step_s < here.step_s]
            if not faster:
                return
            here = min(faster, key=lambda each: each.step_s)

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
            timed, short = fastest_of(plans_of_members(self._stages, leaned), leaned, self._best_s)
            leaned = _leaner(self._stages, leaned, short) if short else None
        self._known[draft.key] = timed
        if timed is not None:
            self._best_s = min(self._best_s, timed.step_s)
        return timed


def _estimate(draft: MembersDraft) -> float:
    return draft.estimate_s


def plans_of_members(stages: Stages, draft: MembersDraft) -> Iterator[UnevenPlan]:
    """The plans of a draft: with fast links inside stages, and with fast links between them, where
    these are two."""
    seen: list[Groups] = []
    for across in (False, True):
        seats = seated(stages.pools, draft.shapes, across=across)
        if seats is None:
            continue
        groups: Groups = tuple(group for of_stage in seats for group in of_stage)
        if groups in seen:
            continue
        seen.append(groups)
        try:
            yield _plan(stages.job, draft, groups)
        except (SpecError, ProgramError):  # its order or its passes cannot have it
            continue


def _plan(job: JobSpec, draft: MembersDraft, groups: Groups) -> UnevenPlan:
    tensor = tuple(post.tensor for shape in draft.shapes for post in shape)
    layout = LayoutSpec(
        len(draft.shapes),
        1,
        tensor[0],
        layers=draft.layers,
        sequence_parallel=draft.divided,
    )
    replica = UnevenReplica(
        layout,
        tensor,
        tuple(mode for modes in draft.recovery for mode in modes),
        draft.micro_batch,
        draft.micro_batches,
        (groups,),
        (0,),
        0,
        tuple((None,) if len(shares) == 1 else shares for shares in draft.serves),
    )
    return plan_of_draft(job, (replica,), draft.state, tensor=tensor[0], divided=draft.divided)


def _leaner(stages: Stages, draft: MembersDraft, ranks: Sequence[int]) -> MembersDraft | None:
    """The draft with the next recovery mode on ranks whose memory is short; None where one has no
    leaner mode."""
    modes = [list(of_stage) for of_stage in draft.recovery]
    places = [(s, m) for s, of_stage in enumerate(modes) for m in range(len(of_stage))]
    for rank in ranks:
        stage, member = places[rank]
        number = stages.modes.index(modes[stage][member]) + 1
        if number >= len(stages.modes):
            return None
        modes[stage][member] = stages.modes[number]
    return members_draft(stages, draft.shapes, draft.micro_batch, draft.state, draft.layers, modes)
