"""How long a block's compute takes on a device.

    t = gemm FLOPs / gemm rate + attention FLOPs / attention rate
        + bytes of memory-bound passes / memory bandwidth + kernels x launch time

Matrix products run at the device's measured rate for large products; what is bound by memory
is counted apart, because on a device of 190 FLOP/B it is not small. Not modelled: overlap of
the parts. A device with a kernel model is priced kernel by kernel instead: cost.gpu_layer. What a
device's layer profile covers takes the measured time instead of either: cost.measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ratrain.cost.blocks import ELEMENT_BYTES, Block, BlockKind, Flops
from ratrain.cost.collectives import Transfer
from ratrain.cost.gpu_layer import PLAIN, Execution, Shape, gpu_block_s
from ratrain.cost.measured import Measured, measured
from ratrain.cost.precision import RESIDUAL_BYTES, precision_of, wire_bytes
from ratrain.describe.device import DeviceKind, Operator
from ratrain.describe.layer_profile import BlockCase, shape_of

LAUNCHES: dict[BlockKind, tuple[int, int, int]] = {
    "embedding": (1, 0, 1),
    "layer": (10, 10, 4),
    "head": (3, 3, 1),
}
"""Kernels of (forward, input gradient, weight gradient). A layer's forward: norm, qkv, rotary,
attention, output, sum and norm, gate and up, activation, down, sum; its weight gradients are one
product for each of qkv, output, gate and up, down. A head: norm, logits, loss."""

SPLIT_SHARE = 0.03
"""Part of a backward by which it takes longer in two halves: weight gradients find their inputs out
of the caches, and the next forward its weights. Measured on a core of a processor: 1.2 to 2.8 % of
forward and backward, which is 2 to 4 % of backward (docs/notes/planner.md, "Compute order"). Not
added where a kernel model says the times: those were fitted to halves that ran by themselves."""

OPTIMIZER_BYTES_PER_PARAM = 28
"""Mixed-precision Adam touches 28 bytes per parameter: reads a 2-byte gradient, 4-byte master
weight and two 4-byte moments, writes those three and a 2-byte weight (2 + 12 + 12 + 2). In fp32
it is 28 as well: reads 4 x 4, writes 3 x 4."""


@dataclass(frozen=True)
class BlockTimes:
    """Seconds of one micro-batch of a block on one rank. `sums_inside`: the all-reduces of its
    tensor group are part of them. `update_s`: measured, of the whole rank's parameters. `split_s`:
    what backward takes more as two ops, of its halves. `update_moves`: what an update moves beside
    one of AdamW; `update_flops_s`: what its products take, of the whole rank's parameters."""

    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float
    sums_inside: bool = False
    update_s: float | None = None
    split_s: float = 0.0
    update_moves: float = 1.0
    update_flops_s: float = 0.0

    @property
    def backward_s(self) -> float:
        return self.input_gradient_s + self.weight_gradient_s

    @property
    def later_s(self) -> float:
        """The weight gradients' half, as an op of its own."""
        return self.weight_gradient_s + self.split_s


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
    group, `sums_s` in each direction, are ops of their own unless `sums_inside`."""

    def modelled(run: Execution) -> BlockTimes:
        shape = Shape(micro_batch, sequence, tensor, run, sums_s)
        return _plus_unpacking(_modelled(block, device, dtype, shape), block, device, dtype, tensor)

    if device.layer_profile:
        case = case_of_block(block, sequence, tensor, dtype, execution)
        known = measured(device, case, micro_batch, block.model.name)
        if known is not None:
            times = _as_measured(block, known, device, micro_batch, sequence)
            times = _plus_unpacking(times, block, device, dtype, tensor)
            if not execution.recompute_attention:
                return times
            # Layers are measured without recovery; what selective recovery adds is modelled.
            plain = replace(execution, recompute_attention=False)
            again_s = modelled(execution).backward_s - modelled(plain).backward_s
            return replace(times, input_gradient_s=times.input_gradient_s + again_s)
    return modelled(execution)


def _modelled(block: Block, device: DeviceKind, dtype: str, shape: Shape) -> BlockTimes:
    """By the kernel model, or by one rate for products of every shape."""
    if device.kernels is not None and not block.model.own:
        times_s = gpu_block_s(block, device, device.kernels, dtype, shape)
        return BlockTimes(*times_s, sums_inside=device.kernels.blocking_sums)
    tokens, sequence, tensor = shape.tokens, shape.sequence, shape.tensor
    gemm = device.flops_rate(dtype)

    # Blocks count their passes in 2-byte elements.
    wider = precision_of(dtype).element_bytes / ELEMENT_BYTES

    def seconds(
        flops: Flops, passes_bytes: float, launches: float, operator: Operator = "attention"
    ) -> float:
        products_s = flops.gemm / gemm + flops.attention / device.flops_rate(dtype, operator)
        passes_s = passes_bytes * wider / device.elementwise_bytes_per_s
        return (products_s + passes_s) / tensor + launches * device.launch_s

    launches = _launches(block, tokens, sequence, tensor)
    forward = block.forward_flops(tokens, sequence)
    backward = block.input_gradient_flops(tokens, sequence)
    if shape.execution.recompute_attention:  # the product of queries and keys again
        backward = Flops(backward.gemm, backward.attention + forward.attention / 2)
    passes_bytes = block.elementwise_backward_bytes(tokens, sequence)
    input_s = seconds(backward, passes_bytes, launches[1], "attention backward")
    weight_s = seconds(block.weight_gradient_flops(tokens, sequence), 0, launches[2])
    return BlockTimes(
        seconds(forward, block.elementwise_bytes(tokens, sequence), launches[0]),
        input_s,
        weight_s,
        split_s=SPLIT_SHARE * (input_s + weight_s) + device.launch_s,
    )


def _plus_unpacking(
    times: BlockTimes, block: Block, device: DeviceKind, dtype: str, tensor: int
) -> BlockTimes:
    """With what it takes to make matrices that are held in 8 bits as they are computed with, once
    for the forward and once for the gradient of the input."""
    packed = [each for each in block.tensors if each.held == "int8"]
    if not packed:
        return times
    element = precision_of(dtype).weight_bytes
    moved_bytes = sum(t.view_bytes(element) + element * t.elements for t in packed) / tensor
    more_s = moved_bytes / device.elementwise_bytes_per_s + len(packed) * device.launch_s
    return replace(
        times,
        forward_s=times.forward_s + more_s,
        input_gradient_s=times.input_gradient_s + more_s,
    )


def _launches(block: Block, tokens: int, sequence: int, tensor: int) -> tuple[float, float, float]:
    """The kernels of a block; of each expert that a rank has some more: rows gathered, its
    products, its activation, rows added."""
    if block.model.own:
        passes = block.own_work(tokens, sequence)
        return passes[0].kernels, passes[1].kernels, 0
    forward, inputs, weights = LAUNCHES[block.kind]
    experts = block.model.experts if block.kind == "layer" else None
    here = experts.count / tensor if experts else 0
    return forward + 8 * here, inputs + 11 * here, weights + 6 * here


def case_of_block(
    block: Block, sequence: int, tensor: int, dtype: str, execution: Execution = PLAIN
) -> BlockCase:
    """What a layer profile would call the block in these conditions."""
    shape = shape_of(block.model, block.kind)
    divided = execution.sequence_parallel
    return BlockCase(block.kind, shape, sequence, tensor, dtype, divided)


def _as_measured(
    block: Block, known: Measured, device: DeviceKind, micro_batch: int, sequence: int
) -> BlockTimes:
    """Measured times, with every weight trained; the backward is cut into its halves as its FLOPs
    are, and of the weights' half counted what is trained."""
    tokens = micro_batch * sequence
    inputs = block.input_gradient_flops(tokens, sequence).total
    weights = 0.0 if block.model.own else block.forward_flops(tokens, sequence).gemm
    weight_s = known.backward_s * (weights / (inputs + weights) if weights else 0.0)
    update_s = known.entry.update_s
    return BlockTimes(
        known.forward_s,
        known.backward_s - weight_s,
        weight_s * block.trained_share(of_matrices=True),
        sums_inside=known.entry.sums == "included",
        update_s=None if update_s is None else update_s * block.trained_share(),
        split_s=SPLIT_SHARE * known.backward_s + device.launch_s,
    )


def update(times: BlockTimes, params: float, owners: int, device: DeviceKind) -> Transfer:
    """One optimizer step on a rank's share of a block's parameters: what starting it takes, and
    the bytes that it moves through the device's memory. A measured time holds the memory."""
    if times.update_s is not None:
        moved_bytes = times.update_s * times.update_moves * device.memory.bandwidth_bytes_per_s
        return Transfer(times.update_flops_s, moved_bytes / owners, 0.0)
    kernels = device.kernels
    moved = kernels.optimizer_bytes_per_param if kernels else OPTIMIZER_BYTES_PER_PARAM
    moved_bytes = moved * times.update_moves * params / owners
    return Transfer(device.launch_s + times.update_flops_s, moved_bytes, 0.0)


def feed_back(params: float, device: DeviceKind) -> Transfer:
    """What error feedback adds to sending a gradient: its residual, read and written once in the
    device's memory while the gradient is rounded."""
    moved_bytes = 2 * RESIDUAL_BYTES * params
    return Transfer(moved_bytes / device.memory.bandwidth_bytes_per_s, 0.0, 0.0)


_SENT_PASSES, _READ_PASSES = 16, 6
"""Of four bytes through memory that turning a parameter into an integer takes, its residual added
and made anew, and reading it (`runtime.step.exchange.integers`)."""


def as_integers(params: float, ranks: int, device: DeviceKind) -> Transfer:
    """What averaging so many parameters over `ranks` adds to sending them, where they are sent as
    integers: all are sent, a part's mean too, and each is read twice."""
    passes = _SENT_PASSES * (1 + 1 / ranks) + 2 * _READ_PASSES
    time_s = 4 * passes * params / device.elementwise_bytes_per_s
    return Transfer(time_s, 0.0, device.driving.lost_beside * time_s)


def reduced_bytes_per_param(device: DeviceKind, dtype: str, wire: str | None = None) -> float:
    """Bytes of a parameter's gradient as reductions send it: in the wire type that a job asks for;
    else as wide as a weight, unless the device's software is known to widen it."""
    if wire is not None:
        return wire_bytes(wire)
    asked = device.kernels.reduce_bytes_per_param if device.kernels else None
    return asked or precision_of(dtype).weight_bytes
