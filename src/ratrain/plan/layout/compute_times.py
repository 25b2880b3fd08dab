"""How long a block's compute takes where a job places it."""

from __future__ import annotations

from dataclasses import replace

from ratrain.cost.blocks import Block
from ratrain.cost.compute import OPTIMIZER_BYTES_PER_PARAM, BlockTimes, block_times
from ratrain.cost.gpu_layer import Execution
from ratrain.describe.cluster import Link
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.plan.layout.sizes import boundary_bytes, matrices_of, stores_scores
from ratrain.plan.layout.transfers import gathered_again_s, inner_sums_s, sums_alone_s


def times_in_layout(
    job: JobSpec,
    layout: LayoutSpec,
    block: Block,
    device: DeviceKind,
    tensor_link: Link | None,
    *,
    selective: bool = False,
) -> BlockTimes:
    """The `BlockTimes` of a block on a device whose tensor group has that link; None where it is
    alone. On a backend whose compute ops contain a unit's inner sums, forward, recovery and
    backward wait for them."""
    job = job.of_kind(device)
    boundary = boundary_bytes(job)
    sums_s = sums_alone_s(block.kind, boundary, layout, tensor_link)
    times = block_times(
        block,
        device,
        micro_batch=job.batch.micro_batch,
        sequence=job.model.sequence_length,
        dtype=job.schedule.dtype,
        tensor=layout.tensor,
        execution=Execution(layout.sequence_parallel, selective and stores_scores(job)),
        sums_s=sums_s,
    )
    optimizer = job.train.rule
    update_flops = optimizer.update_flops(matrices_of(block))
    again_s = gathered_again_s(job, block.kind, boundary, layout, tensor_link)
    times = replace(
        times,
        split_s=times.split_s + again_s,
        update_moves=optimizer.moved_bytes / OPTIMIZER_BYTES_PER_PARAM,
        # A device whose layers were measured may say no rate: most optimizers need none.
        update_flops_s=update_flops and update_flops / device.flops_rate(job.schedule.dtype),
    )
    if times.sums_inside:
        return times
    forward_s, backward_s = inner_sums_s(job, block.kind, boundary, layout, tensor_link)
    return replace(
        times,
        forward_s=times.forward_s + forward_s,
        input_gradient_s=times.input_gradient_s + backward_s,
    )
