"""How long a block's compute takes on a device.

    t = gemm FLOPs / gemm rate + attention FLOPs / attention rate
        + bytes of memory-bound passes / memory bandwidth + kernels x launch time

Matrix products run at the device's measured rate for large products; what is bound by memory
is counted apart, because on a device of 190 FLOP/B it is not small. Not modelled: efficiency
by shape (that comes with measured profiles), overlap of the parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from ratrain.cost.blocks import (
    Block,
    backward_flops,
    elementwise_bytes,
    forward_flops,
    kernels,
)
from ratrain.describe.cluster import DeviceKind
from ratrain.describe.model import ModelSpec

BYTES_OF_DTYPE = {"fp16": 2, "bf16": 2, "fp32": 4}

OPTIMIZER_BYTES_PER_PARAM = 28
"""Mixed-precision Adam touches 28 bytes a parameter: reads a 2-byte gradient, 4-byte master
weight and two 4-byte moments, writes those three and a 2-byte weight (2 + 12 + 12 + 2)."""


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
    model: ModelSpec,
    block: Block,
    device: DeviceKind,
    *,
    micro_batch: int,
    sequence: int,
    dtype: str,
    tensor: int = 1,
) -> BlockTimes:
    """The `BlockTimes` of a block, its work divided evenly over a tensor group."""
    tokens = micro_batch * sequence
    gemm, attention = device.gemm_flops_per_s[dtype], device.attention_flops_per_s[dtype]
    passes = elementwise_bytes(model, block, tokens, BYTES_OF_DTYPE[dtype])
    passes_s = passes / tensor / device.tiers[0].bandwidth_bytes_per_s
    launches_s = kernels(model, block) * device.launch_s
    forward = forward_flops(model, block, tokens, sequence)
    backward = backward_flops(model, block, tokens, sequence)

    def products_s(gemm_flops: float, attention_flops: float) -> float:
        return (gemm_flops / gemm + attention_flops / attention) / tensor

    return BlockTimes(
        forward_s=products_s(forward.gemm, forward.attention) + passes_s + launches_s,
        input_gradient_s=products_s(backward.input.gemm, backward.input.attention)
        + passes_s
        + launches_s,
        weight_gradient_s=products_s(backward.weight.gemm, backward.weight.attention)
        + passes_s
        + launches_s,
    )


def optimizer_bytes_moved(params: float) -> float:
    """Bytes of memory traffic of one optimizer step on `params` parameters."""
    return OPTIMIZER_BYTES_PER_PARAM * params
