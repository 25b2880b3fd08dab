"""Causal attention with grouped keys and values, forward and backward.

Tensors are [batch, heads, S, d] views of token-major memory. On a CPU torch's flash kernels take
fewer key heads than query heads as they are, and an ALiBi row or a window's mask beside the causal
one; on a GPU they take 16 bits and the causal mask. Elsewhere forward is torch's
scaled_dot_product_attention, and backward computes it again under autograd from the kept q, k, v;
the kernel that torch picks there may want the whole mask for ALiBi.
Scores with a soft cap are no kernel's: `stored_attention` computes them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ratrain.models.chunks import CPU_KERNELS
from ratrain.models.linear import accumulation_dtype

_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_CPU_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_GPU = torch.ops.aten._scaled_dot_product_flash_attention.default
_GPU_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
_FLASH_SIZES = range(8, 257, 8)
"""Of a head: others would have to be padded."""


class Scores(NamedTuple):
    """How scores are made of queries and keys: q k^T times `scale` (1 / sqrt(d)), then
    c tanh(score / c) of a soft cap c, plus an ALiBi row; of the last `window` keys alone."""

    row: Tensor | None = None
    scale: float | None = None
    softcap: float | None = None
    window: int | None = None


PLAIN = Scores()


def attention(q: Tensor, k: Tensor, v: Tensor, scores: Scores = PLAIN) -> tuple[Tensor, Tensor]:
    """(attention output, log of the sum of exponents: one a query and head; empty off the CPU)."""
    if q.device.type in CPU_KERNELS:
        mask = _cpu_mask(q, scores)
        output, logsumexp = _CPU(q, k, v, 0.0, True, attn_mask=mask, scale=scores.scale)
        return output, logsumexp
    if _is_flash(q, scores):
        output, logsumexp, *_ = _GPU(q, k, v, 0.0, True, False, scale=scores.scale)
        return output, logsumexp
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
    if _is_flash(q, scores):
        length, nothing = q.shape[2], q.new_empty(0, dtype=torch.int64)
        ends = None, None, length, length
        random = 0.0, True, nothing, nothing  # no dropout; causal
        return _GPU_BACKWARD(grad, q, k, v, output, logsumexp, *ends, *random, scale=scores.scale)
    return recomputed_gradients(grad, q, k, v, scores)


def _is_flash(q: Tensor, scores: Scores) -> bool:
    """Whether torch's flash kernels for GPUs take it: 16 bits, no mask but the causal one."""
    plain = scores.row is None and scores.softcap is None and not _within(q.shape[2], scores.window)
    narrow = q.dtype in (torch.float16, torch.bfloat16)
    return q.device.type == "cuda" and plain and narrow and q.shape[-1] in _FLASH_SIZES


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
"""Torch's kernels: scores are made again in backward, block by block."""


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
