"""A plan that was simulated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

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


class Drafted(Protocol):
    """A plan before it has devices."""

    @property
    def estimate_s(self) -> float: ...

    @property
    def ops(self) -> int:
        """About as many ops as its program has."""
        ...


D = TypeVar("D", bound=Drafted, covariant=True)
E = TypeVar("E", bound=Drafted)


@dataclass(frozen=True)
class Timed(Tried, Generic[D]):
    """The same with the draft that it was made of."""

    draft: D = field(kw_only=True)
