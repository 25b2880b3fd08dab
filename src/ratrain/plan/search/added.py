"""What one more host of each kind of device would bring: the job planned anew with it.

Where no layout takes all devices, as with a prime number of them, more hosts are added. On a few
devices of several kinds replicas that differ are searched for too, in less time than `ratrain plan`
takes for it: what a host brings may be more.
"""

from __future__ import annotations

from dataclasses import dataclass

from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec
from ratrain.errors import Infeasible, RatrainError
from ratrain.plan.draft.pools import FEW
from ratrain.plan.layout.other_clusters import kinds_of, with_more_hosts
from ratrain.plan.search.effort import ANY_REPLICAS, HOSTS_ADDED
from ratrain.plan.search.every_plan import every_plan
from ratrain.plan.search.layouts import Progress
from ratrain.plan.search.misfit import planned
from ratrain.plan.search.speedup import Watch, unwatched
from ratrain.plan.search.tried import Tried


@dataclass(frozen=True)
class Added:
    """The best plan with one more host of a kind, or a few. `problem` says why there is none."""

    kind: DeviceKind
    hosts: int
    devices: int  # of these hosts
    best: Tried | None = None
    problem: str = ""

    @property
    def step_s(self) -> float | None:
        return None if self.best is None else self.best.step_s


def fastest(job: JobSpec, progress: Progress | None = None, *, any_replicas: bool) -> Tried:
    """The fastest plan that can be trained, of identical replicas or of any."""
    if not any_replicas or job.cluster.devices > FEW:
        return planned(job, progress).best
    return every_plan(job, progress, quick=True).chosen


def added_hosts(job: JobSpec, watch: Watch = unwatched) -> tuple[Added, ...]:
    """The `Added` of each kind of the job's devices."""
    return tuple(_added(job, kind, watch) for kind in kinds_of(job))


def _added(job: JobSpec, kind: DeviceKind, watch: Watch) -> Added:
    any_replicas = job.cluster.devices <= ANY_REPLICAS
    first: Added | None = None
    for hosts in HOSTS_ADDED:
        larger, devices = with_more_hosts(job, kind, hosts)
        try:
            with watch(f"planning more of {kind.name}") as progress:
                best = fastest(larger, progress, any_replicas=any_replicas)
                return Added(kind, hosts, devices, best)
        except Infeasible as error:
            return first or Added(kind, hosts, devices, problem=error.what)
        except RatrainError as error:
            first = first or Added(kind, hosts, devices, problem=error.what)
    assert first is not None
    return first
