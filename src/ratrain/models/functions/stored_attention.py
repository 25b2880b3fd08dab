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

from ratrain.models.functions.attention import (
    AttentionCore,
    Scores,
    attention,
    attention_gradients,
    on_gpu,
)


def _stored(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> tuple[Tensor, Tensor]:
    """(attention output, probabilities)."""
    kept = q.new_empty(*q.shape[:3], q.shape[2])
    output = _token_major(q)
    for sequence in range(len(q)):
        kept[sequence] = _probabilities(q[sequence], k[sequence], scores)
        output[sequence] = _weighted(kept[sequence], v[sequence])
    return output, kept


def _unstored(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> tuple[Tensor, Tensor]:
    """(attention output, nothing)."""
    output = _token_major(q)
    for sequence in range(len(q)):
        output[sequence] = _weighted(_probabilities(q[sequence], k[sequence], scores), v[sequence])
    return output, q.new_empty(0)


def _gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,  # noqa: ARG001
    kept: Tensor,
    scores: Scores,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v."""
    dq, dk, dv = (_token_major(part) for part in (q, k, v))
    for at in range(len(q)):
        weights = kept[at] if len(kept) else _probabilities(q[at], k[at], scores)
        dq[at], dk[at], dv[at] = _gradients_of_one(grad[at], q[at], k[at], v[at], weights, scores)
    return dq, dk, dv


STORED = AttentionCore(_stored, _unstored, _gradients)
"""Keeps its probabilities."""
REMADE = AttentionCore(_unstored, _unstored, _gradients)
"""The same numbers, and none kept."""


def _capped(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> tuple[Tensor, Tensor]:
    return attention(q, k, v, scores) if on_gpu(q) else _unstored(q, k, v, scores)


def _capped_gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    kept: Tensor,
    scores: Scores,
) -> tuple[Tensor, Tensor, Tensor]:
    gradients = attention_gradients if on_gpu(q) else _gradients
    return gradients(grad, q, k, v, output, kept, scores)


CAPPED = AttentionCore(_capped, _capped, _capped_gradients)
"""Of scores with a soft cap: our kernels on a GPU; elsewhere as REMADE."""


def _probabilities(q: Tensor, k: Tensor, how: Scores) -> Tensor:
    """softmax(scores) of one sequence, [heads, S, S]; each key head serves a group."""
    scores = _scores(q, k, how)
    if how.row is not None:
        # Of each query's keys the last has the bias 0: so that 16 bits round little.
        scores += (how.row[0] - how.row[0].transpose(1, 2)).to(scores.dtype)
    unread = _unread(q.shape[1], how.window, q.device)
    return torch.softmax(scores.masked_fill_(unread, -torch.inf), -1)


def _scores(q: Tensor, k: Tensor, how: Scores) -> Tensor:
    """q k^T, scaled and softly capped, [heads, S, S]."""
    scores = (_by_group(q, k) @ k.unsqueeze(1).transpose(2, 3)).flatten(0, 1)
    scores.mul_(_scale(q, how))
    return scores if how.softcap is None else soft_cap_(scores, how.softcap)


def soft_cap_(values: Tensor, cap: float) -> Tensor:
    """cap tanh(value / cap), in place."""
    return values.div_(cap).tanh_().mul_(cap)


def capped_attention(q: Tensor, k: Tensor, v: Tensor, how: Scores) -> Tensor:
    """Attention of queries [batch, heads, n, d] to all keys, none of which is masked."""
    output = torch.empty_like(q)
    for at in range(len(q)):
        output[at] = _weighted(torch.softmax(_scores(q[at], k[at], how), -1), v[at])
    return output


def _scale(q: Tensor, how: Scores) -> float:
    return q.shape[-1] ** -0.5 if how.scale is None else how.scale


def _weighted(probabilities: Tensor, v: Tensor) -> Tensor:
    """The sum of values, [heads, S, d]."""
    return (_by_group(probabilities, v) @ v.unsqueeze(1)).flatten(0, 1)


def _gradients_of_one(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, probabilities: Tensor, how: Scores
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v of one sequence."""
    grouped, scale = _by_group(grad, v), _scale(q, how)
    weights = _by_group(probabilities, v)
    dv = (weights.transpose(2, 3) @ grouped).sum(1)
    d_weights = (grouped @ v.unsqueeze(1).transpose(2, 3)).flatten(0, 1)
    d_scores = torch.ops.aten._softmax_backward_data(d_weights, probabilities, -1, q.dtype)
    del d_weights
    if how.softcap is not None:  # d tanh(x) = 1 - tanh(x)^2
        tanh = _scores(q, k, how).div_(how.softcap)
        d_scores.mul_(tanh.square_().neg_().add_(1))
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
def _unread(length: int, window: int | None, device: torch.device) -> Tensor:
    """Where a key comes after its query, or before its window."""
    ones = torch.ones(length, length, dtype=torch.bool, device=device)
    ahead = ones.triu(1)
    return ahead if window is None or window >= length else ahead.logical_or_(ones.tril_(-window))
