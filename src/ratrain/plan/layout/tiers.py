"""Optimizer states that wait for their update in another memory tier: which jobs can have them
there, what of a device's memory and of the tier's they take, and leaner jobs to try."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ratrain.describe.device import DeviceKind, Tier
from ratrain.describe.job import JobSpec
from ratrain.errors import SpecError
from ratrain.plan.layout.buckets import in_buckets
from ratrain.program.setup import Budget
from ratrain.program.strategies import Strategy
from ratrain.program.tiers import DISK, HOST


def require_tier(job: JobSpec) -> None:
    """Refuses optimizer states in another tier where a job cannot have them there."""
    if job.optimizer_tier:
        for what, fix in _obstacles(job):
            place = f"{job.path or 'job'} [schedule] optimizer_tier"
            raise SpecError(what, place=place, fix=fix)


def _obstacles(job: JobSpec) -> Iterator[tuple[str, str]]:
    leave = "leave optimizer_tier out"
    if not job.backend.trains:
        yield f"the backend {job.backend.name} keeps its optimizer on the device", leave
    if job.unlike:
        what = "devices compute in different dtypes, and send each other weights made of the "
        yield what + "optimizer's, which must be on the device for that", leave
    if job.schedule.average_every is not None:
        what = "replicas that average their weights average the optimizer's states too, on the "
        yield what + "device", f"{leave}, or average_every"


def leaner_jobs(job: JobSpec, chosen: Strategy, *, replicas: bool = True) -> Iterator[JobSpec]:
    """The job with less on its devices, where it leaves that to the planner: the less it costs, the
    earlier. Gradients in buckets, which only several `replicas` send; optimizer states in each tier
    that all of its devices have; both."""
    bucketed = in_buckets(job, chosen) if replicas else None
    if bucketed is not None:
        yield bucketed
    if job.schedule.optimizer_tier is not None:
        return
    for tier in (HOST, DISK):
        if all(tier_of(kind, tier) for kind in job.cluster.kinds):
            for each in filter(None, (job, bucketed)):
                away = in_tier(each, tier)
                if next(_obstacles(away), None) is None:
                    yield away


def in_tier(job: JobSpec, tier: str) -> JobSpec:
    """The job with its optimizer states in a tier."""
    return replace(job, schedule=replace(job.schedule, optimizer_tier=tier))


def tier_of(kind: DeviceKind, name: str) -> Tier | None:
    """A tier below a kind's own memory; None where it has none of the name."""
    return next((tier for tier in kind.tiers[1:] if tier.name == name), None)


def tier_budgets(job: JobSpec, kinds: Sequence[Collection[DeviceKind]]) -> tuple[Budget, ...]:
    """What each program rank has of the tier in which its optimizer waits: of the kinds of device
    that play it, the least."""
    name = job.optimizer_tier
    if not name:
        return ()
    tiers = [[tier for kind in of_rank if (tier := tier_of(kind, name))] for of_rank in kinds]
    return tuple(
        Budget(rank, rank, name, min(tier.capacity_bytes for tier in of_rank))
        for rank, of_rank in enumerate(tiers)
        if of_rank
    )


def move_rate_bytes_per_s(kind: DeviceKind, name: str) -> float | None:
    """At which a kind of device moves states to a tier and back; None: it is not described."""
    tier = tier_of(kind, name)
    return None if tier is None else tier.bandwidth_bytes_per_s
