"""A measured run as a plan file: kinds of device, stages and replicas as the file says them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ratrain.plan import case_of_plan, load_plan
from ratrain.plan.file import PlanFile


@dataclass(frozen=True)
class PlannedRun:
    """A plan file that someone ran."""

    label: str
    plan: PlanFile
    path: Path

    @property
    def choice(self) -> tuple[object, ...]:
        """What a planner is given: runs that agree here are alternatives of one another. Devices
        that a plan leaves idle were there to be used."""
        plan = self.plan
        cluster = self.path.parent / plan.cluster.name, plan.cluster.devices
        return plan.model, cluster, plan.sequences


def planned_run(path: Path) -> PlannedRun:
    """The run of a plan file, made ready once so that what is wrong with it is said now."""
    plan = load_plan(path)
    case_of_plan(plan, str(path))
    return PlannedRun(path.stem, plan, path)


def planned_s(run: PlannedRun) -> float:
    """Seconds of one step of the run, as `ratrain simulate` prints them."""
    case = case_of_plan(run.plan, str(run.path))
    return case.simulation.step_time_s
