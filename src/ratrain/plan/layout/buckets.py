"""Gradients sent in buckets while backward computes them: which jobs can, and what it takes.

A bucket holds consecutive elements of a unit's gradient, and their owners are one or two ranks. So
that no link is left out, all holders add a part of it each, and all get the sum: twice the bytes
of a reduction whose owners lie evenly over all that is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ratrain.cost.algorithms import DIRECT
from ratrain.cost.blocks import blocks
from ratrain.cost.collectives import Transfer
from ratrain.cost.precision import Precision, precision_of
from ratrain.cost.scratch import BUCKET_ROWS, product_rows
from ratrain.describe.backends import BUCKET_BYTES
from ratrain.describe.job import JobSpec
from ratrain.describe.units import format_bytes
from ratrain.errors import SpecError
from ratrain.plan.layout.sizes import trains_tied
from ratrain.plan.layout.unit_place import Half
from ratrain.program.strategies import LAYERWISE, Strategy


def require_bucketable(job: JobSpec, chosen: Strategy) -> None:
    """Refuses buckets where a job's gradients cannot leave in them."""
    if job.schedule.gradient_bucket_bytes is None:
        return
    for what, fix in _obstacles(job, chosen):
        place = f"{job.path or 'job'} [schedule] gradient_bucket"
        raise SpecError(what, place=place, fix=fix)


def in_buckets(job: JobSpec, chosen: Strategy) -> JobSpec | None:
    """The job with its gradients in buckets of the usual size; None where it cannot have them, has
    them already, or would not gain by them."""
    if job.schedule.gradient_bucket_bytes is not None or job.cluster.devices == 1:
        return None
    asked = replace(job, schedule=replace(job.schedule, gradient_bucket_bytes=BUCKET_BYTES))
    if next(_obstacles(asked, chosen), None) is not None or _largest_bytes(job) <= BUCKET_BYTES:
        return None
    return asked


def _obstacles(job: JobSpec, chosen: Strategy) -> Iterator[tuple[str, str]]:
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
        what = (
            "with local accumulation every rank keeps whole gradients: buckets would save nothing"
        )
        yield what, 'set gradient_accumulation = "sharded", or ' + leave
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
