"""A transformer block on a GPU as libraries such as Megatron-LM run it: kernel by kernel.

    device = sum of products by shape + bytes of passes / memory rate + kernels x gap + sums
    t      = max(device, kernels x host time), less the sums where these are ops of their own

The device works through its queue with a small gap between kernels; the host fills the queue at
its own pace, and where kernels are short the host is the slower one. The sums of a tensor group
stand in the same queue: what the device would idle for the host is theirs. Where they are ops of
their own they are taken off again; with `blocking_sums` they run on the compute stream. Ranks
of a group go in step: each sum waits for the rank that is last, be it by its host or its device,
so moments do not average out. With the exponent `lockstep`, max(x, y) is (x^p + y^p)^(1/p).
Passes, in elements of one token (h hidden, q query width, f MLP width; 2 bytes each; dropout
masks are half an element). Forward: two norms (2h each), two fused bias-dropout-sums (3.5h
each), heads put back in order (2q), bias and activation (fused 2f, gated 3f). Backward: two
norms (4h each), two dropout gradients (2.5h each) and sums of residual gradients (3h each),
bias gradients (2h + 3q + f), heads in order (2q), activation (3f, gated 5f).
Tensor parallelism divides what is q or f wide; what is h wide only with sequence parallelism
(arXiv 2205.05198). The fusions are those of Megatron-LM (arXiv 2104.04473, section 4.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ratrain.cost import attention
from ratrain.cost.blocks import ELEMENT_BYTES, Block
from ratrain.cost.gemm import Product, product_s
from ratrain.describe.device import DeviceKind, KernelModel
from ratrain.describe.model import ModelSpec

LAYER_KERNELS = (22, 38)
"""Kernels of a layer, forward and backward. Forward: 4 products, 2 of attention, 2 norms,
softmax, dropout, 2 bias-dropout-sums, activation, and copies that split and reorder heads.
Backward: 8 products, 4 of attention, and about as many passes as the forward twice."""
HEAD_KERNELS = (12, 10)
EMBEDDING_KERNELS = (6, 6)
FORWARD_LOSS = 38 / 52  # of the loss's bytes, what its forward moves


@dataclass(frozen=True)
class Execution:
    """How a layer is run that its layout does not say.

    `sequence_parallel`: what is outside the tensor-parallel products is divided by sequence.
    `recompute_attention`: scores are not kept; backward computes them again (selective).
    """

    sequence_parallel: bool = False
    recompute_attention: bool = False


PLAIN = Execution()


@dataclass(frozen=True)
class _Work:
    """What one direction of a block asks of the device."""

    products: tuple[Product, ...]
    passes_bytes: float
    kernels: int


@dataclass(frozen=True)
class Shape:
    """A micro-batch on one rank: b sequences of s tokens, its tensor group's size, how it runs."""

    micro_batch: int
    sequence: int
    tensor: int
    execution: Execution = PLAIN
    sums_s: float = 0.0  # of the tensor group, in one direction of the block

    @property
    def tokens(self) -> int:
        return self.micro_batch * self.sequence

    @property
    def outside(self) -> int:
        """By how much the work outside of the tensor-parallel products is divided."""
        return self.tensor if self.execution.sequence_parallel else 1


def gpu_block_s(
    block: Block, device: DeviceKind, kernels: KernelModel, dtype: str, shape: Shape
) -> tuple[float, float, float]:
    """Seconds of (forward, input gradient, weight gradient) of one micro-batch on one rank,
    without the sums of its tensor group unless compute waits for them."""
    if block.kind == "layer":
        parts = _layer(block, kernels, shape)
    elif block.kind == "head":
        parts = _head(block, kernels, shape)
    else:
        parts = _embedding(block, shape)
    forward, inputs, weights = (_busy_s(part, device, kernels, dtype) for part in parts)
    sums_s, power = shape.sums_s, kernels.lockstep if shape.tensor > 1 else None
    weights *= block.trained_share(of_matrices=True)
    ahead_s = _slower_s(forward + sums_s, parts[0].kernels * kernels.host_s, power)
    # The host runs ahead over a whole backward pass, so its two halves wait together.
    back_host_s = (parts[1].kernels + parts[2].kernels) * kernels.host_s
    back_s = _slower_s(inputs + weights + sums_s, back_host_s, power)
    apart_s = 0.0 if kernels.blocking_sums else sums_s
    return ahead_s - apart_s, back_s - apart_s - weights, weights


def _slower_s(device_s: float, host_s: float, power: float | None) -> float:
    """The slower of device and host; with a power, in step with a group's other ranks."""
    slower, faster = max(device_s, host_s), min(device_s, host_s)
    if power is None or not slower:
        return slower
    return slower * (1 + (faster / slower) ** power) ** (1 / power)


def _busy_s(work: _Work, device: DeviceKind, kernels: KernelModel, dtype: str) -> float:
    """Seconds that the device itself needs."""
    rate = device.flops_rate(dtype)
    memory = device.elementwise_bytes_per_s
    products_s = sum(product_s(product, kernels, rate, memory) for product in work.products)
    return products_s + work.passes_bytes / memory + work.kernels * device.launch_s


def _layer(block: Block, kernels: KernelModel, shape: Shape) -> tuple[_Work, _Work, _Work]:
    model, tokens, t = block.model, shape.tokens, shape.tensor
    h, q = model.hidden, model.query_hidden / t
    qkv, gates = q + 2 * model.kv_hidden / t, 2 if model.gated_mlp else 1
    # (tokens, out, in, how many) of each weight
    linear = ((tokens, qkv, h, 1.0), (tokens, h, q, 1.0), *_inside(model, tokens, gates, t))
    f = (model.dense_ffn + (model.ffn * model.experts.chosen if model.experts else 0)) / t
    heads = model.heads / t
    scores = attention.score_elements(shape.micro_batch, heads, shape.sequence)
    sized = shape.micro_batch, heads, model.head_dim, shape.sequence
    outside = h / shape.outside
    ahead = tuple(Product(rows, out, into, n) for rows, out, into, n in linear)
    first, again = attention.forward_products(*sized), attention.backward_products(*sized)
    stored = kernels.attention == "stored"
    if not stored:
        first, again = _causal_half(first), _causal_half((*again, again[0]))
    activation = kernels.activation_passes + gates - 1
    forward_bytes = _bytes(tokens, 11 * outside + 2 * q + activation * f)
    backward_bytes = _bytes(tokens, (19 + 2) * outside + 5 * q + (2 + 2 * gates) * f)
    if stored:
        forward_bytes += attention.FORWARD_SCORE_BYTES * scores
        backward_bytes += attention.BACKWARD_SCORE_BYTES * scores
    if shape.execution.recompute_attention:
        again += first
        backward_bytes += attention.FORWARD_SCORE_BYTES * scores if stored else 0
    ahead_count, back_count = LAYER_KERNELS
    if model.experts:  # what an expert begins by itself: gathers, products, sums
        moved = model.experts.chosen / t * h
        forward_bytes += _bytes(tokens, 5 * moved)
        backward_bytes += _bytes(tokens, 11 * moved)
        ahead_count += 8 * model.experts.count // t
        back_count += 14 * model.experts.count // t
    return (
        _Work(ahead + first, forward_bytes, ahead_count),
        _Work(
            tuple(Product(rows, into, out, n) for rows, out, into, n in linear) + again,
            backward_bytes,
            back_count - len(linear),
        ),
        _Work(tuple(Product(out, into, rows, n) for rows, out, into, n in linear), 0, len(linear)),
    )


def _inside(
    model: ModelSpec, tokens: float, gates: int, tensor: int
) -> tuple[tuple[float, float, float, float], ...]:
    """An MLP's products. Experts are taken to be chosen equally often."""
    h, f, experts, of_all = model.hidden, model.ffn, model.experts, model.dense_ffn / tensor
    dense = ((tokens, gates * of_all, h, 1.0), (tokens, h, of_all, 1.0)) if of_all else ()
    if experts is None:
        return dense
    rows, count = tokens * experts.chosen / experts.count, experts.count / tensor
    return (
        *dense,
        (tokens, count, h, 1.0),  # the router
        (rows, gates * f, h, count),
        (rows, h, f, count),
    )


def _causal_half(products: Iterable[Product]) -> tuple[Product, ...]:
    return tuple(product._replace(copies=product.copies / 2) for product in products)


def _head(block: Block, kernels: KernelModel, shape: Shape) -> tuple[_Work, _Work, _Work]:
    """The final norm, logits over V / t words, and the loss over fp32 copies of them.

    Megatron-LM's cross-entropy, bytes of each logit. Forward: to fp32 (2 + 4), the largest (4),
    its difference (8), the exponential (8), their sum (4), the share (8): 38. Backward: scaled
    (8) and to fp16 (6). Their sum, 52, is the default of `loss_bytes_per_logit`.
    """
    model, tokens = block.model, shape.tokens
    words, h = model.vocab / shape.tensor, model.hidden
    loss_bytes = kernels.loss_bytes_per_logit * tokens * words
    ahead, back = HEAD_KERNELS
    return (
        _Work(
            (Product(tokens, words, h),), _bytes(tokens, 2 * h) + FORWARD_LOSS * loss_bytes, ahead
        ),
        _Work(
            (Product(tokens, h, words),),
            _bytes(tokens, 4 * h) + (1 - FORWARD_LOSS) * loss_bytes,
            back - 1,
        ),
        _Work((Product(words, h, tokens),), 0, 1),
    )


def _embedding(block: Block, shape: Shape) -> tuple[_Work, _Work, _Work]:
    """Rows looked up, positions added, dropout; backward adds rows into a dense gradient."""
    h, tokens = block.model.hidden, shape.tokens
    ahead, back = EMBEDDING_KERNELS
    table_bytes = ELEMENT_BYTES * block.model.vocab / shape.tensor * h
    return (
        _Work((), _bytes(tokens, 7 * h), ahead),
        _Work((), _bytes(tokens, 6 * h) + 2 * table_bytes, back),
        _Work((), 0, 0),
    )


def _bytes(tokens: float, elements: float) -> float:
    return ELEMENT_BYTES * tokens * elements
