"""What one more host of each kind of device would bring: the job planned anew with it."""

from __future__ import annotations

from dataclasses import dataclass

from ratrain.describe.cluster import DeviceKind
from ratrain.describe.job import JobSpec
from ratrain.errors import RatrainError
from ratrain.plan.other_clusters import kinds_of, with_another_host
from ratrain.plan.planned import planned
from ratrain.plan.search import Tried
from ratrain.plan.speedup import Watch, unwatched


@dataclass(frozen=True)
class Added:
    """The best plan with one more host of a kind. `problem` says why there is none."""

    kind: DeviceKind
    devices: int  # of the host
    best: Tried | None = None
    problem: str = ""

    @property
    def step_s(self) -> float | None:
        return None if self.best is None else self.best.step_s


def added_hosts(job: JobSpec, watch: Watch = unwatched) -> tuple[Added, ...]:
    """The `Added` of each kind of the job's devices."""
    return tuple(_added(job, kind, watch) for kind in kinds_of(job))


def _added(job: JobSpec, kind: DeviceKind, watch: Watch) -> Added:
    larger, devices = with_another_host(job, kind)
    try:
        with watch(f"planning one more host of {kind.name}") as progress:
            return Added(kind, devices, planned(larger, progress).best)
    except RatrainError as error:
        return Added(kind, devices, problem=error.what)
