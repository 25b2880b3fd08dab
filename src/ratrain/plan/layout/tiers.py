"""What leaves a device where its memory is short: gradients in buckets while backward computes
them, and states that wait in another memory tier; which jobs can, and leaner jobs to try.

A bucket holds consecutive elements of a unit's gradient, and their owners are one or two ranks. So
that no link is left out, all holders add a part of it each, and all get the sum: twice the bytes
of a reduction whose owners lie evenly over all that is sent."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from ratrain.cost.algorithms import DIRECT
from ratrain.cost.blocks import blocks
from ratrain.cost.collectives import Transfer
from ratrain.cost.precision import Precision, precision_of
from ratrain.cost.scratch import BUCKET_ROWS, product_rows
from ratrain.describe.backends import BUCKET_BYTES
from ratrain.describe.device import DeviceKind, Tier
from ratrain.describe.job import JobSpec
from ratrain.describe.units import format_bytes
from ratrain.plan.layout.jobs import fault, refuse, strategy_of
from ratrain.plan.layout.links import Half
from ratrain.plan.layout.sizes import trains_tied
from ratrain.program.setup import Budget
from ratrain.program.strategies import LAYERWISE, Strategy
from ratrain.program.tiers import DISK, HOST


def require_bucketable(job: JobSpec, chosen: Strategy) -> None:
    """Refuses buckets where a job's gradients cannot leave in them."""
    if job.schedule.gradient_bucket_bytes is not None:
        found = _in_the_way(job, chosen)
        refuse(job, (("[schedule] gradient_bucket", what, fix) for what, fix in found))


def in_buckets(job: JobSpec, chosen: Strategy) -> JobSpec | None:
    """The job with its gradients in buckets of the usual size; None where it cannot have them, has
    them already, or would not gain by them."""
    if job.schedule.gradient_bucket_bytes is not None or job.cluster.devices == 1:
        return None
    asked = replace(job, schedule=replace(job.schedule, gradient_bucket_bytes=BUCKET_BYTES))
    if next(_in_the_way(asked, chosen), None) is not None or _largest_bytes(job) <= BUCKET_BYTES:
        return None
    return asked


def _in_the_way(job: JobSpec, chosen: Strategy) -> Iterator[tuple[str, str]]:
    """What is in the way of buckets, and the smallest fix."""
    schedule, leave = job.schedule, "leave gradient_bucket out"
    if not job.backend.fills_buckets:
        yield f"the backend {job.backend.name} has no buckets that backward fills", leave
    if trains_tied(job):
        what = f"{job.model.spec.name} ties its embedding and its head: adding their gradients "
        yield what + "takes whole gradients, which buckets do not keep", leave
    if job.collective != DIRECT:
        what = f"buckets are exchanged directly, and the collective is {job.collective}"
        yield what, f'set collective = "{DIRECT}", or {leave}'
    if schedule.average_every is not None:
        yield "replicas that average their weights send no gradients", leave
    if schedule.gradient_accumulation == "local":
        what = "with local accumulation every rank keeps whole gradients: buckets would save "
        yield what + "nothing", 'set gradient_accumulation = "sharded", or ' + leave
    free = job.layout is None and schedule.sharding is None  # a search chooses the level
    if not free and chosen.sharding < 2:
        what = f"{schedule.name} does not shard gradients, so buckets have nothing to send "
        yield what + f"(sharding level {chosen.sharding})", f"set sharding to 2 or 3, or {leave}"
    if not chosen.layerwise:
        yield f"without the pass {LAYERWISE} no gradient is sent during backward", leave
    size_bytes, least_bytes = schedule.gradient_bucket_bytes, _least_bytes(job)
    if size_bytes is not None and size_bytes < least_bytes:
        what = f"a bucket of {format_bytes(size_bytes)} is too small for the smallest piece of "
        what += f"{job.model.spec.name}'s widest matrix, {least_bytes:,} bytes"
        yield what, f'set it to "{least_bytes}B" or more'


def bucket_count(job: JobSpec, params: float) -> int:
    """The number of buckets for the gradient of `params` parameters; 0: it is sent whole."""
    size_bytes = job.schedule.gradient_bucket_bytes
    if size_bytes is None:
        return 0
    return max(1, -(-int(params * _element_bytes(job)) // size_bytes))


def sent_in_buckets(half: Half, size_bytes: float, buckets: int) -> Transfer:
    """The transfers of a gradient in this number of buckets: a sum and a gather for each."""
    return half(size_bytes / buckets).times(2 * buckets)


def _precisions(job: JobSpec) -> list[Precision]:
    """Those of its kinds of device: a bucket holds as many elements on all of them."""
    return [precision_of(dtype, job.schedule.gradient_dtype) for dtype in job.computed_in]


def _element_bytes(job: JobSpec) -> int:
    """Of a gradient, where its elements are widest."""
    return max(precision.gradient_bytes for precision in _precisions(job))


def _least_bytes(job: JobSpec) -> int:
    """The largest piece that a matrix is cut into at least: a few rows; where gradients are wider
    than what they are made of, what one product makes of it."""
    wider = any(each.gradient_bytes > each.element_bytes for each in _precisions(job))
    matrices = (
        (tensor.elements // tensor.shape[-1], tensor.shape[-1])
        for block in blocks(job.model.spec)
        for tensor in block.trained
        if len(tensor.shape) > 1
    )
    pieces = (
        min(rows, product_rows(width) if wider else BUCKET_ROWS) * width for rows, width in matrices
    )
    return _element_bytes(job) * max(pieces, default=0)


def _largest_bytes(job: JobSpec) -> int:
    """The largest gradient of a unit."""
    return _element_bytes(job) * max(
        sum(tensor.elements for tensor in block.trained) for block in blocks(job.model.spec)
    )


KEYS = ("optimizer_tier", "activation_tier", "view_tier")
"""Of a job's schedule: what waits in another tier, in the order in which moving it frees the most
for what it costs."""


def require_tier(job: JobSpec) -> None:
    """Refuses states in another tier where a job cannot have them there."""
    for key in (key for key in (*KEYS, "gradient_tier") if getattr(job, key)):
        refuse(job, ((f"[schedule] {key}", what, fix) for what, fix in _obstacles(job, key)))
    if job.schedule.recovery == "spill" and not job.activation_tier:
        fix = 'set activation_tier = "host" or "disk"'
        raise fault(job, "[schedule] recovery", "what is spilled needs a tier to wait in", fix)


def _obstacles(job: JobSpec, key: str) -> Iterator[tuple[str, str]]:
    leave = f"leave {key} out"
    if not job.backend.trains:
        yield f"the backend {job.backend.name} keeps all states on the device", leave
    if key == "activation_tier":
        return
    if key == "gradient_tier" and job.schedule.mirror:
        yield "mirrors are sent gradients that are on the device", f"{leave}, or mirror"
    if key == "gradient_tier" and not strategy_of(job).prefetch:
        name = job.schedule.name
        what = f"the schedule {name} updates nothing until all gradients are there"
        yield what, f'{leave}, or use a schedule with update-prefetch, such as "ratrain"'
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
    for tiers in _combinations(tiers_of(job)) if job.schedule.optimizer_tier is None else ():
        for each in filter(None, (job, bucketed)):
            away = in_tiers(each, *tiers)
            if away is not None:
                yield away


def jobs_in_tiers(job: JobSpec) -> Iterator[JobSpec]:
    """The job with states in each tier that all of its devices have, where it leaves that open."""
    return filter(None, (in_tiers(job, *tiers) for tiers in _combinations(tiers_of(job))))


def tiers_of(job: JobSpec) -> list[str]:
    """The tiers below memory that all of a job's devices have."""
    return [tier for tier in (HOST, DISK) if all(tier_of(k, tier) for k in job.cluster.kinds)]


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
    return waiting_in(job, dict(zip(KEYS, tiers, strict=False)))


def waiting_in(job: JobSpec, tiers: Mapping[str, str]) -> JobSpec | None:
    """The same with the tier of each key."""
    if any(getattr(job.schedule, key) is not None for key in tiers):
        return None
    away = replace(job, schedule=replace(job.schedule, **tiers))
    return None if any(True for key in tiers for _ in _obstacles(away, key)) else away


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
