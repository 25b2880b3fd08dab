"""What a unit's reduction sends: one price for closed forms, for clocks and for simulations."""

from __future__ import annotations

from ratrain.cost.collectives import Transfer
from ratrain.cost.compute import feed_back
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec
from ratrain.plan.layout.buckets import bucket_count, sent_in_buckets
from ratrain.plan.layout.gradient_groups import widened
from ratrain.plan.layout.unit_place import Half

FLAG_BYTES = 4
"""Whether an owner's part of a gradient overflowed, as it is sent."""


def reduction(
    job: JobSpec,
    half: Half,
    params: float,
    size_bytes: float,
    device: DeviceKind,
    *,
    owners: int | None,
) -> Transfer:
    """What a rank sends to have a gradient of so many parameters and bytes reduced; `owners`: into
    how many parts it is divided, None where every rank gets all of it back at once.

    With error feedback its residual passes through memory first. Where units decide by themselves
    whether they overflowed, owners agree by one number each with every reduction.
    """
    buckets = bucket_count(job, params)
    if buckets:
        reduced = sent_in_buckets(half, size_bytes, buckets)
    else:
        reduced = half(size_bytes, widened(job))
        if owners is None:
            reduced = reduced.plus(half(size_bytes))
    if job.residuals:
        reduced = reduced.plus(feed_back(params, device))
    if job.units_decide and owners is not None:
        reduced = reduced.plus(half(FLAG_BYTES * owners))
    return reduced
