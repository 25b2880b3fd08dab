"""A layer that continues from cached keys and values, so that one more token costs one token."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from ratrain.models.attention_block import AttentionPlan, mixed_heads, onto_residual, projected
from ratrain.models.functions.attention import Scores
from ratrain.models.functions.stored_attention import capped_attention
from ratrain.models.units import Layer
from ratrain.models.weights import Weights


class KeptKeys:
    """Keys and values [b, kv_heads, length, d] that one layer has seen so far."""

    def __init__(self, plan: AttentionPlan, like: Tensor) -> None:
        shape = (like.shape[0], plan.shape.kv_heads, plan.length, plan.shape.head_dim)
        self.keys, self.values = like.new_empty(shape), like.new_empty(shape)
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, these included."""
        end = self.length + keys.shape[2]
        self.keys[:, :, self.length : end] = keys
        self.values[:, :, self.length : end] = values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


def layer_onward(layer: Layer, weights: Weights, x: Tensor, cache: KeptKeys) -> Tensor:
    """The layer's output for new tokens x [b, n, h]: any n where nothing is kept yet, else 1."""
    plan, batch = layer.plan, (x.shape[0], x.shape[1])
    flat = x.flatten(0, 1)
    normed = flat if plan.before is None else plan.before.forward(weights, flat)[0]
    first = cache.length
    made = projected(weights, plan, normed, batch, first)
    keys, values = cache.append(made.k, made.v)
    scores = plan.scores_of(keys)
    if first == 0:
        output, _ = plan.core.forward_alone(made.q, keys, values, scores)
    else:
        output = _last(made.q, keys, values, scores)
    between = onto_residual(weights, plan, mixed_heads(output), flat)[0].view(x.shape)
    return layer.second_half(weights, normed.view(x.shape) if plan.shares_norm else x, between)


def _last(q: Tensor, keys: Tensor, values: Tensor, scores: Scores) -> Tensor:
    """The last token's attention to all keys, or to those of its window."""
    window = slice(-scores.window if scores.window else None, None)
    keys, values, row = keys[:, :, window], values[:, :, window], scores.row
    if scores.softcap is not None:
        return capped_attention(q, keys, values, scores)
    bias = None if row is None else (row - row[..., -1:]).to(q.dtype)
    return functional.scaled_dot_product_attention(
        q,
        keys,
        values,
        attn_mask=bias,
        enable_gqa=keys.shape[1] != q.shape[1],
        scale=scores.scale,
    )
