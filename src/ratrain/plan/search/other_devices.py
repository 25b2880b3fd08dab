"""What the plan would be on other devices: on each kind of them alone, to which the heterogeneous
speedup ratio compares it, and with one more host of each kind, the job planned anew with it.

Where no layout takes all devices, as with a prime number of them, more hosts are added. On a few
devices of several kinds replicas that differ are searched for too, in less time than `ratrain plan`
takes for it: what a host brings may be more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby

from ratrain.describe.cluster import HostKind
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import ClusterChoice, JobSpec
from ratrain.errors import Infeasible, RatrainError
from ratrain.plan.draft.pools import FEW
from ratrain.plan.layout.enumerate import divisors_of
from ratrain.plan.layout.jobs import strategy_of
from ratrain.plan.search.every_plan import every_plan
from ratrain.plan.search.layouts import Progress
from ratrain.plan.search.limits import ANY_REPLICAS, HOSTS_ADDED
from ratrain.plan.search.misfit import planned
from ratrain.plan.search.tried import Tried
from ratrain.program.strategies import FORWARD_RECOVERY, LAYERWISE, PREFETCH, STRATEGIES

Watch = Callable[[str], AbstractContextManager[Progress | None]]
"""Shows the progress of something that is named."""

DEFINITION = (
    "the plan's tokens/s over the sum of what each kind of device reaches alone: on the job's "
    "devices of that kind, with the same model and sequences per step, by the best plan that this "
    "planner finds, any recovery allowed"
)


CLEARLY = 1.005
"""How many times as fast a kind alone must be for the others to be called in its way."""


@dataclass(frozen=True)
class Alone:
    """What one kind of device reaches without the others. `problem` says why it has no plan."""

    kind: DeviceKind
    devices: int
    used: int  # fewer where no layout takes them all
    tokens_per_s: float | None
    best: Tried | None = None
    problem: str = ""


@dataclass(frozen=True)
class Speedup:
    """A plan's throughput beside what each kind reaches alone."""

    tokens_per_s: float
    alone: tuple[Alone, ...]

    @property
    def missing(self) -> tuple[Alone, ...]:
        """Kinds that have no plan alone."""
        return tuple(kind_alone for kind_alone in self.alone if kind_alone.tokens_per_s is None)

    @property
    def faster(self) -> tuple[Alone, ...]:
        """Kinds that reach more alone than the plan does, the fastest first."""
        beyond = [
            kind_alone
            for kind_alone in self.alone
            if (kind_alone.tokens_per_s or 0.0) > CLEARLY * self.tokens_per_s
        ]
        return tuple(sorted(beyond, key=lambda kind_alone: -(kind_alone.tokens_per_s or 0.0)))

    @property
    def together_tokens_per_s(self) -> float:
        """The sum over the kinds that have a plan."""
        return sum(kind_alone.tokens_per_s or 0.0 for kind_alone in self.alone)

    @property
    def ratio(self) -> float | None:
        """Over the kinds that have a plan; None where none has."""
        together = self.together_tokens_per_s
        return self.tokens_per_s / together if together else None

    @property
    def hsr(self) -> float | None:
        """The heterogeneous speedup ratio: defined where every kind has a plan."""
        return None if self.missing else self.ratio


def unwatched(_: str) -> AbstractContextManager[Progress | None]:
    """Shows nothing."""
    return nullcontext()


def speedup_of(job: JobSpec, tokens_per_s: float, watch: Watch = unwatched) -> Speedup | None:
    """The `Speedup` of a plan of a job that reaches so many tokens a second; None where its devices
    are of one kind."""
    kinds = job.cluster.kinds
    if len(kinds) == 1:
        return None
    return Speedup(tokens_per_s, tuple(_alone(job, kind, watch) for kind in kinds))


def _alone(job: JobSpec, kind: DeviceKind, watch: Watch) -> Alone:
    """The best that a kind reaches alone. Where no layout has all of its devices, as many as one
    has."""
    devices = devices_of_kind(job, kind)
    problem = ""
    for used in range(devices, 0, -1):
        if problem and not _divides(job, used):
            continue
        cut = free_to_recover(only_kinds(job, [kind], used))
        try:
            with watch(f"planning {kind.name} alone") as progress:
                best = planned(cut, progress).best
        except Infeasible as error:
            return Alone(kind, devices, used, None, problem=error.what)
        except RatrainError as error:
            problem = problem or error.what
            continue
        tokens = job.batch.sequences * job.model.sequence_length
        return Alone(kind, devices, used, tokens / best.step_s, best)
    return Alone(kind, devices, devices, None, problem=problem)


def _divides(job: JobSpec, devices: int) -> bool:
    """Whether some degrees could make so many devices; what a host holds is not looked at."""
    model = job.model.spec
    return any(
        job.batch.sequences % data == 0 and pipeline <= model.layers and tensor <= model.heads
        for data in divisors_of(devices)
        for pipeline in divisors_of(devices // data)
        for tensor in (devices // data // pipeline,)
    )


def free_to_recover(job: JobSpec) -> JobSpec:
    """The job with its own schedule but for recovery, which may be any: a kind alone must not lose
    for want of a recovery mode that its plan did not need. Its order stays open where it is."""
    chosen = strategy_of(job)
    order = None if chosen.skeleton == STRATEGIES["ratrain"].skeleton else chosen.skeleton
    passes = [FORWARD_RECOVERY]
    passes += [LAYERWISE] if chosen.layerwise else []
    passes += [PREFETCH] if chosen.prefetch else []
    schedule = replace(
        job.schedule,
        name="ratrain",
        without=(),
        skeleton=job.schedule.skeleton or order,
        passes=(*passes, *chosen.further),
        recovery="auto",
        recover_heads=None,
    )
    return replace(job, schedule=schedule)


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
    return tuple(_added(job, kind, watch) for kind in job.cluster.kinds)


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


# ---- a job's cluster changed ---------------------------------------------------------------


Host = tuple[HostKind, int]
"""A host, and how many of its devices a job uses."""


def devices_of_kind(job: JobSpec, kind: DeviceKind) -> int:
    """How many of the job's devices are of a kind."""
    return sum(device.kind.name == kind.name for device in job.cluster.members())


def only_kinds(job: JobSpec, kinds: Collection[DeviceKind], devices: int | None = None) -> JobSpec:
    """The job on its devices of some kinds, or on the first `devices` of them; without a layout."""
    names = {kind.name for kind in kinds}
    hosts = [(host, used) for host, used in _hosts(job) if host.device in names]
    return _on(job, hosts, devices)


def with_more_hosts(job: JobSpec, kind: DeviceKind, count: int) -> tuple[JobSpec, int]:
    """The job with more hosts like the fullest of a kind, after the last of that kind, and how
    many devices that adds; without a layout."""
    hosts = _hosts(job)
    of_kind = [place for place, (host, _) in enumerate(hosts) if host.device == kind.name]
    added = max((hosts[place] for place in of_kind), key=lambda host: host[1])
    behind = of_kind[-1] + 1
    return _on(job, [*hosts[:behind], *[added] * count, *hosts[behind:]]), count * added[1]


def _hosts(job: JobSpec) -> list[Host]:
    """The hosts of the job's devices, in order."""
    alike = groupby(job.cluster.members(), key=lambda device: device.host)
    hosts = [list(devices) for _, devices in alike]
    return [(devices[0].host_kind, len(devices)) for devices in hosts]


def _on(job: JobSpec, hosts: Sequence[Host], devices: int | None = None) -> JobSpec:
    """The job on these hosts and no others."""
    entries = tuple(
        replace(host, devices=used, count=len(list(alike)))
        for (host, used), alike in groupby(hosts)
    )
    names = {entry.device for entry in entries}
    kinds = tuple(kind for kind in job.cluster.spec.device if kind.name in names)
    spec = replace(job.cluster.spec, device=kinds, host=entries)
    count = sum(used for _, used in hosts) if devices is None else devices
    return replace(job, cluster=ClusterChoice(spec, count), layout=None)
