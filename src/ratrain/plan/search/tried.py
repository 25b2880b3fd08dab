"""A plan that was simulated, and how a search goes from one to faster ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ratrain.plan.draft.draft import Draft
from ratrain.plan.file.checks import untrainable
from ratrain.plan.file.form import PlanFile, Predicted
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.file.writing import file_of_plan
from ratrain.plan.layout.plan import Plan
from ratrain.program.settled import Proved


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
        return file_of_plan(self.plan, Predicted(self.step_s, self.bound_bytes))

    def subject(self) -> Plan:
        """The plan, where replicas differ to the bit as it is read from its file."""
        job = self.plan.job
        if self.plan.is_layout:
            return self.plan
        return plan_of_file(self.file(), str(job.path or "job"), job)

    @property
    def refusals(self) -> list[str]:
        """Why `ratrain train` cannot run it; of a layout, its job says so."""
        if self.plan.is_layout:
            return []
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


def climbed(
    start: Timed, near: Callable[[Timed], Iterable[Timed]], rounds: int, gain: float
) -> Iterator[Timed]:
    """Ever faster plans, each the fastest `near` the one before, as long as each saves this part of
    the step before it."""
    here = start
    for _ in range(rounds):
        best = min(near(here), key=step_of, default=here)
        if best.step_s >= here.step_s * (1 - gain):
            return
        here = best
        yield here


def step_of(plan: Tried) -> float:
    return plan.step_s
