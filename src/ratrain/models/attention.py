"""Causal attention with grouped keys and values, forward and backward.

Tensors are [batch, heads, S, d] views of token-major memory. On a CPU torch's flash kernels take
fewer key heads than query heads as they are, and an ALiBi row beside the causal mask. Elsewhere
forward is torch's scaled_dot_product_attention, and backward computes it again under autograd
from the kept q, k, v; the kernel that torch picks there may want the whole mask for ALiBi.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_CPU_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def attention(q: Tensor, k: Tensor, v: Tensor, row: Tensor | None) -> tuple[Tensor, Tensor]:
    """(attention output, log of the sum of exponents: one a query and head; empty off the CPU)."""
    if q.device.type == "cpu":
        output, logsumexp = _CPU(q, k, v, 0.0, True, attn_mask=row)
        return output, logsumexp
    return composed_attention(q, k, v, row), q.new_empty(0)


def attention_gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    row: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v."""
    if q.device.type == "cpu":
        return _CPU_BACKWARD(grad, q, k, v, output, logsumexp, 0.0, True, attn_mask=row)
    return recomputed_gradients(grad, q, k, v, row)


Forward = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]


class AttentionCore(NamedTuple):
    """What is between queries, keys, values and attention's output, and its backward: forward gives
    the output and what to keep besides; backward takes both. `forward_alone` keeps nothing: no
    backward follows."""

    forward: Forward
    forward_alone: Forward
    backward: Callable[
        [Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None],
        tuple[Tensor, Tensor, Tensor],
    ]


FLASH = AttentionCore(attention, attention, attention_gradients)
"""Torch's kernels: scores are made again in backward, block by block."""


def composed_attention(q: Tensor, k: Tensor, v: Tensor, row: Tensor | None) -> Tensor:
    """Attention output by torch's own choice of kernel, on any device."""
    grouped = k.shape[1] != q.shape[1]
    if row is None:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    return functional.scaled_dot_product_attention(
        q, k, v, attn_mask=_whole_mask(row, q.dtype), enable_gqa=grouped
    )


def recomputed_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, row: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v through `composed_attention`, computed again."""
    with torch.enable_grad():
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        output = composed_attention(q, k, v, row)
    dq, dk, dv = torch.autograd.grad(output, (q, k, v), grad)
    return dq, dk, dv


def _whole_mask(row: Tensor, dtype: torch.dtype) -> Tensor:
    """ALiBi and the causal mask, [1, heads, S, S]; relative, so that 16 bits round little."""
    relative = row - row.transpose(2, 3)
    return relative.masked_fill(relative > 0, -torch.inf).to(dtype)
