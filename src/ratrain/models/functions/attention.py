"""Causal attention with grouped keys and values, forward and backward.

Tensors are [batch, heads, S, d] views of token-major memory. On a CPU torch's flash kernels take
fewer key heads than query heads as they are, and an ALiBi row or a window's mask beside the causal
one. On a GPU 16 bits are taken by our own (`gpu_attention`), whose backward repeats its bits.
Elsewhere forward is torch's scaled_dot_product_attention, and backward computes it again under
autograd from the kept q, k, v; the kernel that torch picks there may want the whole mask for ALiBi.
Of these only ours caps scores softly: `stored_attention` does it elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ratrain.models import kernels
from ratrain.models.functions.chunks import CPU_KERNELS
from ratrain.models.functions.linear import accumulation_dtype

_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_CPU_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_GPU_SIZES = range(8, 257, 8)
"""Of a head, in our kernels for GPUs."""


class Scores(NamedTuple):
    """How scores are made of queries and keys: q k^T times `scale` (1 / sqrt(d)), then
    c tanh(score / c) of a soft cap c, plus an ALiBi row; of the last `window` keys alone."""

    row: Tensor | None = None
    scale: float | None = None
    softcap: float | None = None
    window: int | None = None


PLAIN = Scores()


def attention(q: Tensor, k: Tensor, v: Tensor, scores: Scores = PLAIN) -> tuple[Tensor, Tensor]:
    """(attention output, log of the sum of exponents: one a query and head; empty where it is not
    needed)."""
    if q.device.type in CPU_KERNELS:
        mask = _cpu_mask(q, scores)
        output, logsumexp = _CPU(q, k, v, 0.0, True, attn_mask=mask, scale=scores.scale)
        return output, logsumexp
    if on_gpu(q):
        from ratrain.models.gpu import attention as gpu_attention

        return gpu_attention.forward(q, k, v, **scores._asdict())
    return composed_attention(q, k, v, scores), q.new_empty(0)


def attention_gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    scores: Scores = PLAIN,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v."""
    if q.device.type in CPU_KERNELS:
        mask = _cpu_mask(q, scores)
        return _CPU_BACKWARD(
            grad, q, k, v, output, logsumexp, 0.0, True, attn_mask=mask, scale=scores.scale
        )
    if on_gpu(q):
        from ratrain.models.gpu import attention as gpu_attention

        return gpu_attention.gradients(grad, q, k, v, output, logsumexp, **scores._asdict())
    return recomputed_gradients(grad, q, k, v, scores)


def on_gpu(q: Tensor) -> bool:
    """Whether our own kernels take it."""
    narrow = q.dtype in (torch.float16, torch.bfloat16)
    return narrow and q.shape[-1] in _GPU_SIZES and kernels.kernels_for_gpu(q) is not None


Forward = Callable[[Tensor, Tensor, Tensor, Scores], tuple[Tensor, Tensor]]


class AttentionCore(NamedTuple):
    """What is between queries, keys, values and attention's output, and its backward: forward gives
    the output and what to keep besides; backward takes both. `forward_alone` keeps nothing: no
    backward follows."""

    forward: Forward
    forward_alone: Forward
    backward: Callable[
        [Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Scores],
        tuple[Tensor, Tensor, Tensor],
    ]


FLASH = AttentionCore(attention, attention, attention_gradients)
"""Scores are made again in backward, block by block."""


def composed_attention(q: Tensor, k: Tensor, v: Tensor, scores: Scores = PLAIN) -> Tensor:
    """Attention output by torch's own choice of kernel, on any device."""
    grouped = k.shape[1] != q.shape[1]
    windowed = _within(q.shape[2], scores.window)
    if scores.row is None and not windowed:
        return functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=grouped, scale=scores.scale
        )
    if scores.row is not None:
        mask = _whole_mask(scores.row, q.dtype)
    else:
        assert scores.window is not None
        mask = window_mask(q.shape[2], scores.window, q.dtype, q.device)
    return functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, enable_gqa=grouped, scale=scores.scale
    )


def recomputed_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, scores: Scores = PLAIN
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v through `composed_attention`, computed again."""
    with torch.enable_grad():
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        output = composed_attention(q, k, v, scores)
    dq, dk, dv = torch.autograd.grad(output, (q, k, v), grad)
    return dq, dk, dv


def _cpu_mask(q: Tensor, scores: Scores) -> Tensor | None:
    """What the CPU's kernel adds to scores, beside the causal mask."""
    if scores.row is not None or not _within(q.shape[2], scores.window):
        return scores.row
    assert scores.window is not None
    return window_mask(q.shape[2], scores.window, accumulation_dtype(q.dtype), q.device)


def _within(length: int, window: int | None) -> bool:
    """Whether a window leaves out any key of a sequence."""
    return window is not None and window < length


@lru_cache(maxsize=2)
def window_mask(length: int, window: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """0 where a query reads a key, at most window - 1 tokens before it; -inf elsewhere. [S, S]."""
    ones = torch.ones(length, length, dtype=torch.bool, device=device)
    read = ones.tril_() & ones.triu(1 - window)
    return torch.zeros(length, length, dtype=dtype, device=device).masked_fill_(~read, -torch.inf)


def _whole_mask(row: Tensor, dtype: torch.dtype) -> Tensor:
    """ALiBi and the causal mask, [1, heads, S, S]; relative, so that 16 bits round little."""
    relative = row - row.transpose(2, 3)
    return relative.masked_fill(relative > 0, -torch.inf).to(dtype)
