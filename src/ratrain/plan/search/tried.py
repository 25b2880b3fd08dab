"""A plan or a draft tried out: its program proved whole, its step simulated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from ratrain.describe.job import JobSpec
from ratrain.errors import ProgramError
from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.on_devices import plans_of
from ratrain.plan.draft.pools import Pool
from ratrain.plan.file.checks import untrainable
from ratrain.plan.file.form import Expected, PlanFile, file_of_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.plan import Plan, has_members
from ratrain.plan.price.places import PlanCosts
from ratrain.plan.price.trial import STEPS, least_step_s, maker, only_over_budget, tried_out
from ratrain.program.settled import Proved
from ratrain.program.verify import Verdict
from ratrain.simulate.long import simulate_proved
from ratrain.simulate.simulate import step_time_s


@dataclass(frozen=True)
class Tried:
    """A plan with its step: as estimated, and as simulated. `bound_bytes`: the fullest rank's
    proven peak; 0 where it is not proved yet. `proved`: kept of layouts, once they are."""

    plan: Plan
    estimate_s: float
    step_s: float
    bound_bytes: int = 0
    proved: Proved | None = None

    def file(self) -> PlanFile:
        """Its plan file."""
        return file_of_plan(self.plan, Expected(self.step_s, self.bound_bytes))

    def subject(self) -> Plan:
        """The plan, where replicas differ to the bit as it is read from its file."""
        job = self.plan.job
        if self.plan.is_layout:
            return self.plan
        return plan_of_file(self.file(), str(job.path or "job"), job)

    @property
    def refusals(self) -> list[str]:
        """Why `ratrain train` cannot run it."""
        reasons = [what for what, _ in untrainable(self.plan)]
        if not self.plan.job.backend.trains:
            reasons.append(f"the backend {self.plan.job.backend.name} cannot train")
        return reasons

    @property
    def gap(self) -> float:
        """(estimate - simulation) / simulation."""
        return self.estimate_s / self.step_s - 1


@dataclass(frozen=True)
class Timed(Tried):
    """The same with the draft that it was made of."""

    draft: Draft = field(kw_only=True)


def step_of(plan: Tried) -> float:
    return plan.step_s


def tried_plan(plan: Plan, estimate_s: float) -> tuple[Tried | None, int]:
    """A plan as simulated, None where it is not proved to run and to fit; and the ops that this
    took."""
    proved, ran = tried_out(plan)
    if ran is None:
        return None, len(proved.short.table)
    tried = Tried(plan, estimate_s, ran.step_time_s, _peak_bytes(proved), proved)
    return tried, ran.ops_simulated


def _peak_bytes(proved: Proved) -> int:
    """Of the fullest rank."""
    return max((bound.total_bytes for bound in proved.verdict.bounds), default=0)


def timed(
    job: JobSpec,
    pools: Sequence[Pool],
    draft: Draft,
    best_s: float,
    *,
    proved_last: bool = False,
) -> tuple[Timed | None, tuple[int, ...]]:
    """The fastest of a draft's plans, as `fastest_of` says."""
    return fastest_of(plans_of(job, pools, draft), draft, best_s, proved_last=proved_last)


def fastest_of(
    plans: Iterable[Plan], draft: Draft, best_s: float, *, proved_last: bool = False
) -> tuple[Timed | None, tuple[int, ...]]:
    """The fastest of a draft's plans that is proved to fit, unless a lower bound says that none is
    faster than `best_s`; else the program ranks whose memory is short. `proved_last`: what is no
    faster as simulated is not proved either; for long programs, whose proofs take seconds."""
    best: Timed | None = None
    short: tuple[int, ...] = ()
    for plan in plans:
        bar_s = best.step_s if best is not None else best_s
        if proved_last and not _may_be_faster(plan, bar_s):
            continue
        tried, short_ranks = timed_plan(draft, plan, bar_s)
        short = short or short_ranks
        if tried is not None and tried.step_s < (best.step_s if best is not None else inf):
            best = tried
    return best, () if best is not None else short


def timed_plan(draft: Draft, plan: Plan, bar_s: float) -> tuple[Timed | None, tuple[int, ...]]:
    """A plan if it is proved to fit, unless a lower bound says that it is no faster than `bar_s`;
    else the program ranks whose memory is short."""
    costs = PlanCosts(plan)
    if _least_s(plan, costs) >= bar_s:
        return None, ()
    try:
        proved, ran = tried_out(plan, costs)
    except ProgramError:  # no order of these passes
        return None, ()
    if ran is None:
        return None, _short_ranks(proved.verdict)
    step_s = ran.step_time_s
    if has_members(plan) and step_s < bar_s:  # a short and a long may alternate
        step_s = simulate_proved(proved, costs.of(proved.short.setup)).step_time_s
    return Timed(plan, draft.estimate_s, step_s, _peak_bytes(proved), draft=draft), ()


def timed_recovering(
    draft: Draft, plan: Plan, bar_s: float, *, proved_last: bool = False
) -> Timed | None:
    """A plan as `fastest_of` has it alone. Where memory is short on some ranks, their stages
    recover, if the schedule does."""
    tried, short = fastest_of([plan], draft, bar_s, proved_last=proved_last)
    leaner = _recovering(plan, short)
    if leaner is None:
        return tried
    return fastest_of([leaner], draft, bar_s, proved_last=proved_last)[0]


def _recovering(plan: Plan, short: Sequence[int]) -> Plan | None:
    """The plan whose stages on these program ranks recover; None where they do, or may not."""
    mode = plan.strategy.recovery
    if not mode.again or plan.job.schedule.recovery != "auto":
        return None
    leaner = plan.in_mode(mode, short)
    return None if leaner.replicas == plan.replicas else leaner


def _may_be_faster(plan: Plan, bar_s: float) -> bool:
    """Whether a plan takes less than so long as it is simulated, proved or not."""
    costs = PlanCosts(plan)
    if _least_s(plan, costs) >= bar_s:
        return False
    try:
        program = maker(plan.strategy, plan.choices)(plan.setup)
        return step_time_s(program, costs.of(program.setup), steps=STEPS) < bar_s
    except ProgramError:  # no order of these passes, or it gets stuck
        return False


def _least_s(plan: Plan, costs: PlanCosts) -> float:
    """No program of a plan takes less."""
    of_compute = costs.of_compute(plan.setup)
    return least_step_s(plan.strategy, plan.setup, plan.choices, of_compute)


def _short_ranks(verdict: Verdict) -> tuple[int, ...]:
    """The ranks over their budget, where memory is all that is wrong."""
    if not only_over_budget(verdict):
        return ()
    return tuple(sorted({finding.rank for finding in verdict.findings}))
