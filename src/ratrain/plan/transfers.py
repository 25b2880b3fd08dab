"""What one micro-batch sends: messages between stages, sums of a tensor group."""

from __future__ import annotations

from ratrain.cost.blocks import BlockKind
from ratrain.cost.collectives import NOTHING, Transfer, message, ring_all_reduce, ring_half
from ratrain.describe.cluster import DeviceKind, Link
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.plan.placement import Placement

SUMS: dict[BlockKind, int] = {"embedding": 1, "layer": 2, "head": 1}
"""All-reduces of a block in one direction; a layer's stand behind attention and behind the MLP
(Shoeybi et al. 2019, arXiv 1909.08053)."""


def sums_of_op(job: JobSpec, kind: BlockKind) -> int:
    """How many of a block's sums an op on the tensor lane carries in one direction: all, or the
    last, where the others are part of the backend's compute ops."""
    return 1 if job.backend.sums_in_compute else SUMS[kind]


def tensor_sums(count: int, boundary_bytes: int, layout: LayoutSpec, link: Link) -> Transfer:
    """What that many sums of a block send, for one micro-batch.

    With sequence parallelism a sum is a reduce-scatter and an all-gather, each started by itself
    (arXiv 2205.05198, section 4.2.2). Each gather is counted beside a sum: the head's first with
    the embedding. Not counted: inputs gathered again in backward, beneath its products.
    """
    if layout.sequence_parallel:
        return ring_half(boundary_bytes, layout.tensor, link).times(2 * count)
    return ring_all_reduce(boundary_bytes, layout.tensor, link).times(count)


def tensor_sums_s(
    kind: BlockKind, boundary_bytes: int, placement: Placement, pipeline: int
) -> float:
    """Seconds of all sums of a block in one direction on a pipeline rank, its link used by nothing
    else."""
    if placement.layout.tensor == 1:
        return 0.0
    link = placement.tensor_link(pipeline)
    sums = tensor_sums(SUMS[kind], boundary_bytes, placement.layout, link)
    return sums.alone_s(link.bandwidth_bytes_per_s)


def stage_message(
    boundary_bytes: int,
    link: Link,
    device: DeviceKind,
    placement: Placement,
    target: int,
) -> Transfer:
    """A tensor from one stage to the next, `target`, as a rank of the sending group sees it.

    Where the sequence is divided, each rank sends its part (arXiv 2205.05198). Else without a
    kernel model each rank sends all of it, and libraries with one send a part each, which the
    receiving group gathers over its own links (arXiv 2104.04473, section 4.1), unless they are
    said to send whole messages.
    """
    tensor, divided = placement.layout.tensor, placement.layout.sequence_parallel
    if divided and device.kernels is None:
        boundary_bytes //= tensor
    if device.kernels is None or tensor == 1 or (device.kernels.whole_sends and not divided):
        blocking = device.kernels is not None and device.kernels.blocking_sends
        return message(boundary_bytes, link, blocking=blocking)
    gather = NOTHING
    inside = placement.tensor_link(target)
    if not divided:
        gather = ring_half(boundary_bytes, tensor, inside)
    return message(
        boundary_bytes // tensor,
        link,
        blocking=device.kernels.blocking_sends,
        after_s=gather.alone_s(inside.bandwidth_bytes_per_s),
    )
