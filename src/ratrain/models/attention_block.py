"""x + attention(norm(x)): the first half of a layer as one differentiable function. Families put
norms before attention, behind it, or both, and may normalise queries and keys. Where the MLP reads
the same norm's output, that is a second output.

Kept for backward: x, norm out, q, k (turned), v, attention out, and three numbers or fewer a
token, or the softmax where attention stores its scores; what norms of queries, keys and attention's
result read. Weights are read again in backward; their gradients go to the `Weights`.

In a tensor group each rank has some of the heads. The output is complete: it is summed here. The
gradient of x is this rank's part of a sum that is left to the caller; what norm's backward does
is linear in the gradient, so parts pass it as they are, and only its weight's gradient, h numbers,
is summed here. Where the group divides rows, x and the output are this rank's own; norm out is
gathered for the products, and in backward x, since norm's backward then needs all of its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd import Function

from ratrain.describe.model import ModelSpec
from ratrain.models.functions.attention import FLASH, AttentionCore, Scores
from ratrain.models.functions.linear import (
    accumulation_dtype,
    input_gradient,
    input_gradients,
    linear,
    linear_onto,
    linear_summed,
    linears,
    side_by_side,
    weight_gradient,
    weight_gradients,
)
from ratrain.models.functions.norm import Norm, norm_of
from ratrain.models.functions.positions import Rotary, alibi_row, rotary_of, rotary_table, rotate_
from ratrain.models.functions.rows import Rows, add_own, by_rank, own_rows, spread, summed
from ratrain.models.functions.stored_attention import CAPPED
from ratrain.models.shapes import LayerShape, layer_shape
from ratrain.models.tensor_group import TensorGroup, divides_rows, dividing, division_of
from ratrain.models.weights import Weights

QKV = ("attention.q", "attention.k", "attention.v")
Q_NORM, K_NORM = "attention.q_norm", "attention.k_norm"


@dataclass(frozen=True)
class AttentionPlan:
    """What the block needs to know: sizes, and positions of `length` tokens at most."""

    shape: LayerShape
    length: int
    rotary: Rotary | None
    alibi: bool
    scores: Scores  # but for ALiBi's row
    before: Norm | None
    after: Norm | None
    qk_norms: tuple[Norm, Norm] | None
    whole_width: bool  # these are of all heads at once
    shares_norm: bool = False  # what `before` makes is for the MLP too
    multiplier: float = 1.0  # of the result, by that of the values
    group: TensorGroup | None = None
    core: AttentionCore = FLASH

    def turn_rows_(
        self,
        parts: tuple[Tensor, Tensor],
        batch: tuple[int, int],
        *,
        first: int = 0,
        back: bool = False,
    ) -> None:
        """Rotates queries and keys [batch x S, heads d] in place, or their gradients back; the
        first of them has position `first`."""
        if self.rotary is None:
            return
        whole = side_by_side(parts)
        for part in parts if whole is None else (whole,):
            x = part.view(*batch, -1, self.shape.head_dim)
            cos, sin, back_sin = rotary_table(self.length, self.rotary, x.device)
            here = slice(first, first + x.shape[1])
            turn = (back_sin if back else sin)[here]
            rotate_(x, cos[here], turn, pairs=self.rotary.pairs)

    def scores_of(self, q: Tensor) -> Scores:
        """How scores are made for queries [batch, heads, S, d]."""
        if not self.alibi:
            return self.scores
        dtype, division = accumulation_dtype(q.dtype), self.shape.division
        heads = self.shape.heads * division.degree
        row = alibi_row(self.length, heads, dtype, q.device)
        return self.scores._replace(row=row[:, division.of(heads), :, : q.shape[2]])

    def rows_of(self, x: Tensor) -> Tensor:
        """Queries or keys [tokens, width] as the rows that their norms take."""
        return x if self.whole_width else x.reshape(-1, self.shape.head_dim)


def attention_plan(
    spec: ModelSpec, layer: int, length: int, group: TensorGroup | None, core: AttentionCore
) -> AttentionPlan:
    """The plan of a model's layer."""
    if spec.attention_softcap is not None and core is FLASH:
        core = CAPPED
    epsilon, plus_one = spec.norm_epsilon, spec.norm_plus_one
    qk_norms = Norm(Q_NORM, epsilon, plus_one=plus_one), Norm(K_NORM, epsilon, plus_one=plus_one)
    return AttentionPlan(
        shape=layer_shape(spec, division_of(group)),
        length=length,
        rotary=rotary_of(spec, layer),
        alibi=spec.position == "alibi",
        scores=Scores(
            scale=spec.attention_scale,
            softcap=spec.attention_softcap,
            window=spec.window_of(layer),
        ),
        before=None if spec.norm_places == "after" else norm_of(spec, "norm1"),
        after=None if spec.norm_places == "before" else norm_of(spec, "attention.norm"),
        qk_norms=None if spec.qk_norm == "none" else qk_norms,
        whole_width=spec.qk_norm == "width",
        shares_norm=spec.shared_norm,
        multiplier=spec.residual_multiplier,
        group=group,
        core=core,
    )


class Projected(NamedTuple):
    """Queries, keys and values [batch, heads, S, d], and what their norms read and made."""

    q: Tensor
    k: Tensor
    v: Tensor
    unnormed: tuple[Tensor | None, ...] = (None, None)
    statistics: tuple[Tensor | None, ...] = (None, None)


def projected(
    weights: Weights, plan: AttentionPlan, inputs: Tensor, batch: tuple[int, int], first: int = 0
) -> Projected:
    """Queries, keys and values of tokens [batch x S, h], the first of each at position `first`."""
    if plan.qk_norms is None:
        q, k, v = linears(weights, QKV, inputs)
        made = Projected(q, k, v)
    else:  # which read each by itself
        q, k, v = (linear(weights, name, inputs) for name in QKV)
        (normed_q, q_made), (normed_k, k_made) = (
            norm.forward(weights, plan.rows_of(part))
            for norm, part in zip(plan.qk_norms, (q, k), strict=True)
        )
        made = Projected(normed_q, normed_k, v, (q, k), (q_made, k_made))
    plan.turn_rows_((made.q, made.k), batch, first=first)
    if plan.multiplier != 1:
        made.v.mul_(plan.multiplier)
    q, k, v = (part.view(*batch, -1, plan.shape.head_dim).transpose(1, 2) for part in made[:3])
    return made._replace(q=q, k=k, v=v)


def onto_residual(
    weights: Weights, plan: AttentionPlan, mixed: Tensor, flat: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(x + attention's result, complete; what the norm behind attention read, and made)."""
    name, group = "attention.output", plan.group
    if plan.after is None:
        between = linear_onto(weights, name, mixed, flat, group)
        return summed(by_rank(between, group), group), None, None
    result = linear_summed(weights, name, mixed, group)
    normed, statistics = plan.after.forward(weights, result)
    return normed.add_(flat), result, statistics


class AttentionBlock(Function):
    """apply(x [b, S, h], weights, plan, (b, S)) -> [b, S, h]; where the group divides rows, of x as
    `spread` makes it this rank's own rows. With a norm that is shared also what it makes, in the
    shape of x."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Weights, plan: AttentionPlan, batch: tuple[int, int]
    ) -> Tensor | tuple[Tensor, Tensor]:
        group = plan.group
        flat = own_rows(x, group)
        normed, rstd = (flat, None) if plan.before is None else plan.before.forward(weights, flat)
        inputs = Rows(normed, group)
        q, k, v, unnormed, made = projected(weights, plan, inputs.all(), batch)
        inputs.let_go()
        forward = plan.core.forward if ctx.needs_input_grad[0] else plan.core.forward_alone
        output, kept = forward(q, k, v, plan.scores_of(q))
        between, result, after = onto_residual(weights, plan, mixed_heads(output), flat)
        ctx.save_for_backward(
            *(x, normed, rstd, q, k, v, output, kept, result, after), *unnormed, *made
        )
        ctx.weights, ctx.plan = weights, plan
        between = between if divides_rows(group) else between.view(x.shape)
        return (between, in_shape(normed, x, group)) if plan.shares_norm else between

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        x, normed, rstd, q, k, v, output, kept, result, after, *qk = ctx.saved_tensors
        weights: Weights = ctx.weights
        plan: AttentionPlan = ctx.plan
        group, flat = plan.group, own_rows(x, plan.group)
        residual = grads[0].flatten(0, -2)
        own = residual
        if plan.after is not None:
            own = plan.after.backward(weights, own, result, after, None, dividing(group))
        grad = Rows(own, group)
        weight_gradient(weights, "attention.output", grad, Rows(mixed_heads(output)), group)
        d_mixed = input_gradient(weights, "attention.output", grad.all())
        grad.let_go()
        heads = (q.shape[0], q.shape[2], -1, plan.shape.head_dim)
        d_out = d_mixed.view(heads).transpose(1, 2)
        parts = plan.core.backward(d_out, q, k, v, output, kept, plan.scores_of(q))
        del d_mixed, d_out
        batch, tokens = heads[:2], heads[0] * heads[1]
        dq, dk, dv = (part.transpose(1, 2).reshape(tokens, -1) for part in parts)
        del parts
        plan.turn_rows_((dq, dk), batch, back=True)
        if plan.multiplier != 1:
            dv.mul_(plan.multiplier)
        if plan.qk_norms is not None:
            dq, dk = (
                norm.backward(weights, plan.rows_of(d), *read, None, group).view(tokens, -1)
                for norm, d, read in zip(
                    plan.qk_norms,
                    (dq, dk),
                    ((plan.rows_of(qk[0]), qk[2]), (plan.rows_of(qk[1]), qk[3])),
                    strict=True,
                )
            )
        inputs = Rows(normed.detach(), group)  # without a norm it is the input of the graph
        if divides_rows(group) and plan.before is not None:
            flat = Rows(flat, group).all()
            known, rstd = plan.before.forward(weights, flat)
            inputs = Rows(normed, group, known)
            del known
        weight_gradients(weights, QKV, (dq, dk, dv), inputs, group)
        d_normed = input_gradients(weights, QKV, (dq, dk, dv))
        del dq, dk, dv
        if plan.shares_norm:
            d_normed.add_(grads[1].reshape(d_normed.shape))
        inputs.let_go()
        if plan.before is None:
            dx = add_own(by_rank(d_normed, group), residual, group)
        else:
            dx = plan.before.part_backward(weights, d_normed, flat, rstd, residual, group)
        return dx.view(x.shape), None, None, None


def in_shape(rows: Tensor, x: Tensor, group: TensorGroup | None) -> Tensor:
    """Rows [tokens, h] that are here, as a unit that takes x takes them."""
    return spread(rows, group) if divides_rows(group) else rows.view(x.shape)


def mixed_heads(output: Tensor) -> Tensor:
    """Attention's output [batch, heads, S, d] with a row a token."""
    return output.transpose(1, 2).flatten(2).flatten(0, 1)
