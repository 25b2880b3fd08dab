"""The heterogeneous speedup ratio: a plan of unequal devices against each kind of them alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec
from ratrain.errors import Infeasible, RatrainError
from ratrain.plan.layout.enumerate import divisors_of
from ratrain.plan.layout.jobs import strategy_of
from ratrain.plan.layout.other_clusters import devices_of_kind, kinds_of, only_kinds
from ratrain.plan.search.layouts import Progress
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
    kinds = kinds_of(job)
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
