"""States that wait in another memory tier: which jobs can have them there, what a device has of
the tier, and leaner jobs to try."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ratrain.describe.device import DeviceKind, Tier
from ratrain.describe.job import JobSpec
from ratrain.errors import SpecError
from ratrain.plan.layout.buckets import in_buckets
from ratrain.plan.layout.jobs import strategy_of
from ratrain.plan.layout.sizes import trains_tied
from ratrain.program.setup import Budget
from ratrain.program.strategies import Strategy
from ratrain.program.tiers import DISK, HOST

KEYS = ("optimizer_tier", "activation_tier", "view_tier")
"""Of a job's schedule: what waits in another tier, in the order in which moving it frees the most
for what it costs."""


def require_tier(job: JobSpec) -> None:
    """Refuses states in another tier where a job cannot have them there."""
    for key in (*KEYS, "gradient_tier"):
        if getattr(job, key):
            for what, fix in _obstacles(job, key):
                raise SpecError(what, place=f"{job.path or 'job'} [schedule] {key}", fix=fix)
    if job.schedule.recovery == "spill" and not job.activation_tier:
        raise SpecError(
            "what is spilled needs a tier to wait in",
            place=f"{job.path or 'job'} [schedule] recovery",
            fix='set activation_tier = "host" or "disk"',
        )


def _obstacles(job: JobSpec, key: str) -> Iterator[tuple[str, str]]:
    leave = f"leave {key} out"
    if not job.backend.trains:
        yield f"the backend {job.backend.name} keeps all states on the device", leave
    if key == "activation_tier":
        return
    if key == "gradient_tier" and job.updates_wait:
        yield "clipping, fp16's check and mirrors need all gradients at once", leave
    if key == "gradient_tier" and not strategy_of(job).prefetch:
        name = job.schedule.name
        what = f"the schedule {name} updates nothing until all gradients are there"
        yield what, f'{leave}, or use a schedule with update-prefetch, such as "ratrain"'
    if key == "gradient_tier" and trains_tied(job):
        yield "the gradients of tied embeddings are added to each other, and need both", leave
    if job.unlike:
        what = "devices compute in different dtypes, and send each other weights made of the "
        yield what + "optimizer's, which must be on the device for that", leave
    if job.schedule.average_every is not None:
        what = "replicas that average their weights average the optimizer's states too, on the "
        yield what + "device", f"{leave}, or average_every"
    if key == "optimizer_tier" and job.schedule.mirror:
        yield "mirrored optimizer states are on the device", f"{leave}, or mirror"
    if key == "view_tier" and not job.optimizer_tier:
        what = "weights that wait in another tier are made of the optimizer's, which must wait too"
        yield what, f"set optimizer_tier, or {leave}"
    if key == "view_tier" and job.train.tuning is not None:
        yield "weights that are frozen have no optimizer's to be made of", leave


def leaner_jobs(job: JobSpec, chosen: Strategy, *, replicas: bool = True) -> Iterator[JobSpec]:
    """The job with less on its devices, where it leaves that to the planner: the less it costs, the
    earlier. Gradients in buckets, which only several `replicas` send; optimizer states in each tier
    that all of its devices have; then activations and weights too; each with and without buckets.
    """
    bucketed = in_buckets(job, chosen) if replicas else None
    if bucketed is not None:
        yield bucketed
    if job.schedule.optimizer_tier is not None:
        return
    here = [tier for tier in (HOST, DISK) if all(tier_of(k, tier) for k in job.cluster.kinds)]
    for tiers in _combinations(here):
        for each in filter(None, (job, bucketed)):
            away = in_tiers(each, *tiers)
            if away is not None:
                yield away


def _combinations(here: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Tiers of optimizer states, activations and weights, as far as they wait."""
    for count in range(1, len(KEYS) + 1):
        for tier in here:
            yield (tier,) * count
        if count > 1 and len(here) > 1:
            yield DISK, *(HOST,) * (count - 1)


def in_tiers(job: JobSpec, *tiers: str) -> JobSpec | None:
    """The job with states in these tiers, in the order of `KEYS`; None where it cannot have them
    there, or says otherwise itself."""
    wanted = dict(zip(KEYS, tiers, strict=False))
    if any(getattr(job.schedule, key) is not None for key in wanted):
        return None
    away = replace(job, schedule=replace(job.schedule, **wanted))
    return None if any(True for key in wanted for _ in _obstacles(away, key)) else away


def in_tier(job: JobSpec, tier: str) -> JobSpec:
    """The job with its optimizer states in a tier."""
    return replace(job, schedule=replace(job.schedule, optimizer_tier=tier))


def tier_of(kind: DeviceKind, name: str) -> Tier | None:
    """A tier below a kind's own memory; None where it has none of the name."""
    return next((tier for tier in kind.tiers[1:] if tier.name == name), None)


def tier_budgets(job: JobSpec, kinds: Sequence[Collection[DeviceKind]]) -> tuple[Budget, ...]:
    """What each program rank has of the tiers in which its states wait: of the kinds of device that
    play it, the least."""
    return tuple(
        Budget(rank, rank, name, min(tier.capacity_bytes for tier in there))
        for name in sorted(job.tiers)
        for rank, of_rank in enumerate(kinds)
        if (there := [tier for kind in of_rank if (tier := tier_of(kind, name))])
    )


def move_rate_bytes_per_s(kind: DeviceKind, name: str) -> float | None:
    """At which a kind of device moves states to a tier and back; None: it is not described."""
    tier = tier_of(kind, name)
    return None if tier is None else tier.bandwidth_bytes_per_s
