"""Layouts that fit, the fastest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratrain.api.jobs import Job
from ratrain.api.shown import Shown
from ratrain.describe.units import format_bytes, format_time
from ratrain.plan.jobs import load_job_to_plan
from ratrain.plan.plan_file import Predicted
from ratrain.plan.plan_writing import plan_of, write_plan
from ratrain.plan.planned import planned
from ratrain.plan.search import Search, Tried
from ratrain.plan.tables import degrees, headline, search_json, search_text, tried_json
from ratrain.readers.writing import write_whole

if TYPE_CHECKING:
    from ratrain.report.html import Markup

_SHOWN = 5


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    """A layout with all that was chosen for it, simulated and proved to fit. `build`, `simulate`,
    `report` and `train(job, plan=...)` take it."""

    tried: Tried

    @property
    def job(self) -> Job:
        """The job with this layout, and this micro-batch."""
        return Job(self.tried.candidate.job)

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
        file = plan_of(self.tried.candidate, Predicted(self.step_time_s, self.bound_bytes))
        write_whole(Path(path), write_plan(file))
        return Path(path)

    def to_dict(self) -> dict[str, Any]:
        """Every figure, with its unit in its key."""
        return tried_json(self.tried)

    def _lines(self) -> list[str]:
        memory = f"proven peak {format_bytes(self.bound_bytes)} per rank"
        return [*headline(self.tried.candidate), f"step {format_time(self.step_time_s)}, {memory}"]


@dataclass(frozen=True, repr=False)
class Plans(Shown):
    """The plans of a job, the fastest first: a sequence of `Plan`, with at least one."""

    search: Search

    @property
    def best(self) -> Plan:
        """The fastest."""
        return Plan(self.search.best)

    def __len__(self) -> int:
        return len(self.search.tried)

    def __getitem__(self, number: int) -> Plan:
        return Plan(self.search.tried[number])

    def __iter__(self) -> Iterator[Plan]:
        return map(Plan, self.search.tried)

    def to_dict(self) -> dict[str, Any]:
        """Every figure, with its unit in its key, as `ratrain plan --json` prints them."""
        return search_json(self.search, len(self))

    def _lines(self) -> list[str]:
        return search_text(self.search, _SHOWN)

    def _markup(self) -> Markup:
        from ratrain.report.html import table

        best = self.best.step_time_s
        rows = [
            (
                degrees(plan.tried.candidate),
                format_time(plan.step_time_s),
                f"{100 * (plan.step_time_s / best - 1):.2f} %",
                format_bytes(plan.bound_bytes),
                str(plan.job.spec.batch.micro_batch),
                ", ".join(dict.fromkeys(mode.value for mode in plan.tried.candidate.recovery)),
            )
            for plan in self
        ]
        head = ("layout", "step", "slower", "proven peak", "micro-batch", "recovery")
        return table(head, rows, text=(0, 5))


def plan(job: Job | str | Path, *, progress: Callable[[int, int], None] | None = None) -> Plans:
    """The layouts of a job that are proved to fit, the fastest first: pipeline, data and tensor
    degrees, layers per stage, micro-batch, sharding level, recovery. The job's own layout is left
    aside; its schedule is kept.

    Raises `ratrain.errors.Infeasible`, which says the smallest change that would make room, where
    nothing fits. `progress` is called with plans simulated and their number at most.
    """
    spec = job.spec if isinstance(job, Job) else load_job_to_plan(job)
    return Plans(planned(replace(spec, layout=None), progress))
