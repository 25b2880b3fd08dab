"""Layouts that fit, the fastest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratrain.api.jobs import Job
from ratrain.api.shown import Shown
from ratrain.describe.units import format_bytes, format_time
from ratrain.plan import Case, EveryPlan, every_plan, load_job_to_plan, write_plan
from ratrain.plan import Plan as PlanTree
from ratrain.plan.search import Tried
from ratrain.plan.words import every_json, every_text, simulated_json
from ratrain.readers.writing import write_whole

if TYPE_CHECKING:
    from ratrain.report.html import Markup

_SHOWN = 5


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    """A layout with all that was chosen for it, or stages or replicas that differ: simulated, and
    proved to fit. `build`, `simulate`, `report` and `train(job, plan=...)` take it."""

    tried: Tried

    @cached_property
    def subject(self) -> PlanTree:
        """The plan, as it is read from its file."""
        return self.tried.subject()

    @property
    def job(self) -> Job:
        """The job with this layout, and this micro-batch. Stages or replicas that differ are in no
        layout, and so not in it."""
        return Job(self.subject.job)

    @property
    def step_time_s(self) -> float:
        """The simulated step."""
        return self.tried.step_s

    @property
    def bound_bytes(self) -> int:
        """The proven peak of the fullest rank."""
        return self.tried.bound_bytes

    def save(self, path: str | Path) -> Path:
        """Writes the plan file (JSON), which may be edited; the command line takes it too."""
        write_whole(Path(path), write_plan(self.tried.file()))
        return Path(path)

    def to_dict(self) -> dict[str, Any]:
        """Every figure, with its unit in its key."""
        return simulated_json(self.tried)

    def _lines(self) -> list[str]:
        plan = self.tried.plan
        step, peak = format_time(self.step_time_s), format_bytes(self.bound_bytes)
        lines = Case(plan).headline(whole=True)
        return [*lines, f"step {step}, proven peak {peak} on the fullest rank"]

    def row(self, best_s: float) -> tuple[str, ...]:
        """The plan in a table of plans."""
        plan = self.tried.plan
        return (
            Case(plan).short_name,
            format_time(self.step_time_s),
            f"{100 * (self.step_time_s / best_s - 1):.2f} %",
            format_bytes(self.bound_bytes),
            ", ".join(map(str, plan.sizes)),
            ", ".join(dict.fromkeys(mode.value for mode in plan.modes)),
        )


@dataclass(frozen=True, repr=False)
class Plans(Shown):
    """The plans of a job, the fastest first: a sequence of `Plan`, with at least one. Where any can
    be trained, only those that can."""

    planned: EveryPlan

    @property
    def best(self) -> Plan:
        """The fastest: what every function runs of a job without a layout."""
        return Plan(self.planned.chosen)

    def __len__(self) -> int:
        return len(self.planned.usable)

    def __getitem__(self, number: int) -> Plan:
        return Plan(self.planned.usable[number])

    def __iter__(self) -> Iterator[Plan]:
        return map(Plan, self.planned.usable)

    def to_dict(self) -> dict[str, Any]:
        """Every figure, with its unit in its key, as `ratrain plan --json` prints them."""
        return every_json(self.planned, len(self))

    def _lines(self) -> list[str]:
        return every_text(self.planned, _SHOWN)

    def _markup(self) -> Markup:
        from ratrain.report.html import table

        best = self.best.step_time_s
        rows = [plan.row(best) for plan in self]
        head = ("layout", "step", "slower", "proven peak", "micro-batch", "recovery")
        return table(head, rows, text=(0, 5))


def plan(job: Job | str | Path, *, progress: Callable[[int, int], None] | None = None) -> Plans:
    """The layouts of a job that are proved to fit, the fastest first: pipeline, data and tensor
    degrees, layers per stage, micro-batch, sharding level, recovery. On unequal devices faster
    plans come first whose stages or replicas differ. The job's own layout is left aside; its
    schedule is kept.

    Raises `ratrain.errors.Infeasible`, which says the smallest change that would make room, where
    nothing fits. `progress` is called with plans simulated and their number at most.
    """
    spec = job.spec if isinstance(job, Job) else load_job_to_plan(job)
    return Plans(every_plan(replace(spec, layout=None), progress))
