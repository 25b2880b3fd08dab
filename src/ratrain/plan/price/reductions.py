"""What reducing a unit's gradient, and adding up those of a tied matrix, sends: one price for
closed forms, for clocks and for simulations."""

from __future__ import annotations

from ratrain.cost.collectives import NOTHING, Transfer, message, reduction_loss
from ratrain.cost.compute import feed_back
from ratrain.cost.precision import wire_bytes
from ratrain.describe.cluster import Link
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec
from ratrain.plan.layout.links import Half, widened
from ratrain.plan.layout.tiers import bucket_count, sent_in_buckets

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


_SUM_PASSES = 5  # of a gradient through memory: two read and their sum written, read and copied


def tied_sum(job: JobSpec, device: DeviceKind, parts: int, link: Link | None) -> Transfer:
    """What a rank sends to have the gradients of both copies of a tied matrix added up, of which it
    owns one of so many `parts`: its part to the other end of the pipeline over `link`, both ways at
    once. None: both copies are on one rank, and pass through its memory. A device's software may
    widen what it reduces; this it sends as wide as the weights (DeepSpeed:
    `allreduce_tied_weight_gradients`). Not modelled: the sum where it was sent."""
    model = job.model.spec
    size_bytes = wire_bytes(job.schedule.gradients_travel_in) * model.vocab * model.hidden / parts
    if link is not None:
        return reduction_loss(device).driven(message(size_bytes, link))
    if not job.backend.copies_tied:
        return NOTHING
    return Transfer(device.launch_s, _SUM_PASSES * size_bytes, 0.0)
