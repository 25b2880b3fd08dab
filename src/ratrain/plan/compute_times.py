"""How long a block's compute takes where a job places it."""

from __future__ import annotations

from dataclasses import replace

from ratrain.cost.blocks import Block
from ratrain.cost.compute import BlockTimes, block_times
from ratrain.cost.gpu_layer import Execution
from ratrain.describe.cluster import DeviceKind
from ratrain.describe.job import JobSpec
from ratrain.plan.placement import Placement
from ratrain.plan.sizes import boundary_bytes
from ratrain.plan.transfers import SUMS, sums_of_op, tensor_sums_s


def placed_times(
    job: JobSpec,
    placement: Placement,
    block: Block,
    device: DeviceKind,
    pipeline: int,
    *,
    selective: bool = False,
) -> BlockTimes:
    """The `BlockTimes` of a block on a pipeline rank with that device. On a backend whose compute
    ops contain a unit's inner sums, forward, recovery and backward wait for them."""
    layout = placement.layout
    sums_s = tensor_sums_s(block.kind, boundary_bytes(job), placement, pipeline)
    times = block_times(
        block,
        device,
        micro_batch=job.batch.micro_batch,
        sequence=job.model.sequence_length,
        dtype=job.schedule.dtype,
        tensor=layout.tensor,
        execution=Execution(layout.sequence_parallel, selective),
        sums_s=sums_s,
    )
    inner_s = sums_s * (1 - sums_of_op(job, block.kind) / SUMS[block.kind])
    if times.sums_inside or not inner_s:
        return times
    return replace(
        times,
        forward_s=times.forward_s + inner_s,
        input_gradient_s=times.input_gradient_s + inner_s,
    )
