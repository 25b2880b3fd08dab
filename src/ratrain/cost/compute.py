"""How long a block's compute takes on a device.

    t = gemm FLOPs / gemm rate + attention FLOPs / attention rate
        + bytes of memory-bound passes / memory bandwidth + kernels x launch time

Matrix products run at the device's measured rate for large products; what is bound by memory
is counted apart, because on a device of 190 FLOP/B it is not small. Not modelled: overlap of
the parts. A device with a kernel model is priced kernel by kernel instead: cost.gpu_layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from ratrain.cost.blocks import ELEMENT_BYTES, Block, BlockKind, Flops
from ratrain.cost.gpu_layer import PLAIN, Execution, Shape, gpu_block_s
from ratrain.cost.precision import precision_of
from ratrain.describe.cluster import DeviceKind

LAUNCHES: dict[BlockKind, tuple[int, int, int]] = {
    "embedding": (1, 0, 1),
    "layer": (10, 10, 4),
    "head": (3, 3, 1),
}
"""Kernels of (forward, input gradient, weight gradient). A layer's forward: norm, qkv, rotary,
attention, output, sum and norm, gate and up, activation, down, sum; its weight gradients are one
product for each of qkv, output, gate and up, down. A head: norm, logits, loss."""

OPTIMIZER_BYTES_PER_PARAM = 28
"""Mixed-precision Adam touches 28 bytes a parameter: reads a 2-byte gradient, 4-byte master
weight and two 4-byte moments, writes those three and a 2-byte weight (2 + 12 + 12 + 2). In fp32
it is 28 as well: reads 4 x 4, writes 3 x 4."""


@dataclass(frozen=True)
class BlockTimes:
    """Seconds of one micro-batch of a block on one rank."""

    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float

    @property
    def backward_s(self) -> float:
        return self.input_gradient_s + self.weight_gradient_s


def block_times(
    block: Block,
    device: DeviceKind,
    *,
    micro_batch: int,
    sequence: int,
    dtype: str,
    tensor: int = 1,
    execution: Execution = PLAIN,
    sums_s: float = 0.0,
) -> BlockTimes:
    """The `BlockTimes` of a block, its work divided evenly over a tensor group. Its sums over the
    group, `sums_s` in each direction, are ops of their own; see cost.gpu_layer where not."""
    if device.kernels is not None:
        shape = Shape(micro_batch, sequence, tensor, execution, sums_s)
        return BlockTimes(*gpu_block_s(block, device, device.kernels, dtype, shape))
    tokens = micro_batch * sequence
    gemm, attention = device.flops_rate(dtype), device.flops_rate(dtype, "attention")

    # Blocks count their passes in 2-byte elements.
    wider = precision_of(dtype).element_bytes / ELEMENT_BYTES

    def seconds(flops: Flops, passes_bytes: float, launches: int) -> float:
        products_s = flops.gemm / gemm + flops.attention / attention
        passes_s = passes_bytes * wider / device.elementwise_bytes_per_s
        return (products_s + passes_s) / tensor + launches * device.launch_s

    launches = LAUNCHES[block.kind]
    return BlockTimes(
        seconds(
            block.forward_flops(tokens, sequence), block.elementwise_bytes(tokens), launches[0]
        ),
        seconds(
            block.input_gradient_flops(tokens, sequence),
            block.elementwise_backward_bytes(tokens),
            launches[1],
        ),
        seconds(block.weight_gradient_flops(tokens, sequence), 0, launches[2]),
    )


def optimizer_bytes_moved(params: float, device: DeviceKind) -> float:
    """Bytes of memory traffic of one optimizer step on `params` parameters."""
    if device.kernels is not None:
        return device.kernels.optimizer_bytes_per_param * params
    return OPTIMIZER_BYTES_PER_PARAM * params
