"""Causal attention by matrix products, whose probabilities are kept for backward or made again.

[batch, heads, S, S] of them are kept. One sequence is taken at a time, so that beside what is kept
there are two sequences' scores at most. Scores are rounded to the dtype of the queries. Selective
recovery (arXiv 2205.05198) keeps none and makes those of a sequence again in its backward, by the
same products: not one bit differs.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ratrain.models.attention import AttentionCore


def _stored(q: Tensor, k: Tensor, v: Tensor, row: Tensor | None) -> tuple[Tensor, Tensor]:
    """(attention output, probabilities)."""
    kept = q.new_empty(*q.shape[:3], q.shape[2])
    output = _token_major(q)
    for sequence in range(len(q)):
        kept[sequence] = _probabilities(q[sequence], k[sequence], row)
        output[sequence] = _weighted(kept[sequence], v[sequence])
    return output, kept


def _unstored(q: Tensor, k: Tensor, v: Tensor, row: Tensor | None) -> tuple[Tensor, Tensor]:
    """(attention output, nothing)."""
    output = _token_major(q)
    for sequence in range(len(q)):
        output[sequence] = _weighted(_probabilities(q[sequence], k[sequence], row), v[sequence])
    return output, q.new_empty(0)


def _gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,  # noqa: ARG001
    kept: Tensor,
    row: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v."""
    dq, dk, dv = (_token_major(part) for part in (q, k, v))
    for at in range(len(q)):
        weights = kept[at] if len(kept) else _probabilities(q[at], k[at], row)
        dq[at], dk[at], dv[at] = _gradients_of_one(grad[at], q[at], k[at], v[at], weights)
    return dq, dk, dv


STORED = AttentionCore(_stored, _unstored, _gradients)
"""Keeps its probabilities."""
REMADE = AttentionCore(_unstored, _unstored, _gradients)
"""The same numbers, and none kept."""


def _probabilities(q: Tensor, k: Tensor, row: Tensor | None) -> Tensor:
    """softmax(q k^T / sqrt(d)) of one sequence, [heads, S, S]; each key head serves a group."""
    scores = _by_group(q, k) @ k.unsqueeze(1).transpose(2, 3)
    scores = scores.flatten(0, 1).mul_(q.shape[-1] ** -0.5)
    if row is not None:
        # Of each query's keys the last has the bias 0: so that 16 bits round little.
        scores += (row[0] - row[0].transpose(1, 2)).to(scores.dtype)
    return torch.softmax(scores.masked_fill_(_ahead(q.shape[1], q.device), -torch.inf), -1)


def _weighted(probabilities: Tensor, v: Tensor) -> Tensor:
    """The sum of values, [heads, S, d]."""
    return (_by_group(probabilities, v) @ v.unsqueeze(1)).flatten(0, 1)


def _gradients_of_one(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, probabilities: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v of one sequence."""
    grouped, scale = _by_group(grad, v), q.shape[-1] ** -0.5
    weights = _by_group(probabilities, v)
    dv = (weights.transpose(2, 3) @ grouped).sum(1)
    d_weights = (grouped @ v.unsqueeze(1).transpose(2, 3)).flatten(0, 1)
    d_scores = torch.ops.aten._softmax_backward_data(d_weights, probabilities, -1, q.dtype)
    del d_weights
    by_group = _by_group(d_scores, v)
    dq = (by_group @ k.unsqueeze(1)).flatten(0, 1).mul_(scale)
    dk = (by_group.transpose(2, 3) @ _by_group(q, k)).sum(1).mul_(scale)
    return dq, dk, dv


def _by_group(x: Tensor, keys: Tensor) -> Tensor:
    """[heads, ...] as [key heads, heads of each, ...]."""
    return x.unflatten(0, (keys.shape[0], -1))


def _token_major(x: Tensor) -> Tensor:
    """Room for a tensor like x, [batch, heads, S, d], in token-major memory."""
    batch, heads, length, width = x.shape
    return x.new_empty(batch, length, heads, width).transpose(1, 2)


@lru_cache(maxsize=8)
def _ahead(length: int, device: torch.device) -> Tensor:
    """Where a key comes after its query."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu_(1)
