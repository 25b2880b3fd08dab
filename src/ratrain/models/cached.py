"""A layer that continues from cached keys and values, so that one more token costs one token."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from ratrain.models.attention import composed_attention
from ratrain.models.attention_block import AttentionPlan
from ratrain.models.differentiable import differentiable
from ratrain.models.linear import linear, linear_onto
from ratrain.models.mlp_block import MlpBlock
from ratrain.models.norm import rms_norm
from ratrain.models.positions import rotary_table, rotate_
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
    plan, batch = layer.plan, x.shape[:2]
    flat = x.flatten(0, 1)
    normed, _ = rms_norm(flat, weights["norm1.weight"], plan.shape.epsilon)
    heads = (*batch, -1, plan.shape.head_dim)
    q, k, v = (linear(weights, f"attention.{name}", normed).view(heads) for name in "qkv")
    first = cache.length
    if plan.rope_theta is not None:
        table = rotary_table(plan.length, plan.shape.head_dim, plan.rope_theta, x.device)
        cos, sin = (part[first : first + batch[1]] for part in table)
        rotate_(q, cos, sin)
        rotate_(k, cos, sin)
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    keys, values = cache.append(k, v)
    row = plan.row(keys)
    output = composed_attention(q, keys, values, row) if first == 0 else _last(q, keys, values, row)
    mixed = output.transpose(1, 2).reshape(flat.shape[0], -1)
    between = linear_onto(weights, "attention.output", mixed, flat).view(x.shape)
    return differentiable(MlpBlock, between, weights, plan.shape.epsilon, None)


def _last(q: Tensor, keys: Tensor, values: Tensor, row: Tensor | None) -> Tensor:
    """The last token's attention to all keys: nothing to mask."""
    bias = None if row is None else (row - row[..., -1:]).to(q.dtype)
    return functional.scaled_dot_product_attention(
        q, keys, values, attn_mask=bias, enable_gqa=keys.shape[1] != q.shape[1]
    )
