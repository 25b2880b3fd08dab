"""x + attention(norm(x)): the first half of a layer as one differentiable function.

Kept for backward: x, norm out, q, k (turned), v, attention out, and three numbers or fewer a
token, or the softmax where attention stores its scores. Weights are read again in backward; their
gradients go to the `Weights`.

In a tensor group each rank has some of the heads. The output is complete: it is summed here. The
gradient of x is this rank's part of a sum that is left to the caller; what norm's backward does
is linear in the gradient, so parts pass it as they are, and only its weight's gradient, h numbers,
is summed here. Where the group divides rows, x and the output are this rank's own; norm out is
gathered for the products, and in backward x, since norm's backward then needs all of its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd import Function

from ratrain.models.attention import FLASH, AttentionCore
from ratrain.models.linear import (
    accumulation_dtype,
    input_gradient,
    linear,
    linear_onto,
    weight_gradient,
)
from ratrain.models.norm import part_norm_gradients, rms_norm
from ratrain.models.positions import alibi_row, rotary_table, rotate_
from ratrain.models.rows import Rows, by_rank, own_rows, summed
from ratrain.models.shapes import LayerShape
from ratrain.models.tensor_group import TensorGroup, divides_rows
from ratrain.models.weights import Weights


@dataclass(frozen=True)
class AttentionPlan:
    """What the block needs to know: sizes, and positions of `length` tokens at most."""

    shape: LayerShape
    length: int
    rope_theta: float | None  # None: ALiBi
    group: TensorGroup | None = None
    core: AttentionCore = FLASH

    def turn_(self, x: Tensor, *, back: bool = False) -> None:
        """Rotates queries or keys [batch, S, heads, d] in place, or their gradients back."""
        if self.rope_theta is None:
            return
        cos, sin = rotary_table(self.length, x.shape[-1], self.rope_theta, x.device)
        length = x.shape[1]
        rotate_(x, cos[:length], -sin[:length] if back else sin[:length])

    def row(self, q: Tensor) -> Tensor | None:
        """The ALiBi row for queries [batch, heads, S, d], or None."""
        if self.rope_theta is not None:
            return None
        dtype, division = accumulation_dtype(q.dtype), self.shape.division
        heads = self.shape.heads * division.degree
        row = alibi_row(self.length, heads, dtype, q.device)
        return row[:, division.of(heads), :, : q.shape[2]]


class AttentionBlock(Function):
    """apply(x [b, S, h], weights, plan, (b, S)) -> [b, S, h]; where the group divides rows, of x as
    `spread` makes it this rank's own rows."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Weights, plan: AttentionPlan, batch: tuple[int, int]
    ) -> Tensor:
        shape, group = plan.shape, plan.group
        flat = own_rows(x, group)
        normed, rstd = rms_norm(flat, weights["norm1.weight"], shape.epsilon)
        inputs = Rows(normed, group)
        heads = (*batch, -1, shape.head_dim)
        q, k, v = (linear(weights, f"attention.{name}", inputs.all()).view(heads) for name in "qkv")
        inputs.let_go()
        plan.turn_(q)
        plan.turn_(k)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        core = plan.core
        forward = core.forward if ctx.needs_input_grad[0] else core.forward_alone
        output, kept = forward(q, k, v, plan.row(q))
        ctx.save_for_backward(x, normed, rstd, q, k, v, output, kept)
        ctx.weights, ctx.plan = weights, plan
        between = linear_onto(weights, "attention.output", _mixed(output), flat, group)
        between = summed(by_rank(between, group), group)
        return between if divides_rows(group) else between.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        x, normed, rstd, q, k, v, output, kept = ctx.saved_tensors
        weights: Weights = ctx.weights
        plan: AttentionPlan = ctx.plan
        group, flat = plan.group, own_rows(x, plan.group)
        grad, weight = Rows(grads[0].flatten(0, -2), group), weights["norm1.weight"]
        weight_gradient(weights, "attention.output", grad, Rows(_mixed(output)))
        d_mixed = input_gradient(weights, "attention.output", grad.all())
        grad.let_go()
        heads = (q.shape[0], q.shape[2], -1, plan.shape.head_dim)
        d_out = d_mixed.view(heads).transpose(1, 2)
        parts = plan.core.backward(d_out, q, k, v, output, kept, plan.row(q))
        del d_mixed, d_out
        dq, dk, dv = (part.transpose(1, 2) for part in parts)
        plan.turn_(dq, back=True)
        plan.turn_(dk, back=True)
        inputs = Rows(normed, group)
        if divides_rows(group):
            flat = Rows(flat, group).all()
            known, rstd = rms_norm(flat, weight, plan.shape.epsilon)
            inputs = Rows(normed, group, known)
            del known
        d_normed: Tensor | None = None
        for name, part in zip("qkv", (dq, dk, dv), strict=True):
            rows = part.reshape(flat.shape[0], -1)
            weight_gradient(weights, f"attention.{name}", Rows(rows), inputs)
            d_normed = input_gradient(weights, f"attention.{name}", rows, d_normed)
        inputs.let_go()
        assert d_normed is not None
        dx, d_weight = part_norm_gradients(d_normed, flat, rstd, weight, grad.own, group)
        weights.add("norm1.weight", d_weight)
        return dx.view(x.shape), None, None, None


def _mixed(output: Tensor) -> Tensor:
    """Attention's output [batch, heads, S, d] with a row a token."""
    return output.transpose(1, 2).flatten(2).flatten(0, 1)
