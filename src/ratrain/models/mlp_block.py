"""x + down(silu(gate(norm(x))) up(norm(x))): the second half of a layer as one function.

Kept for backward: x, norm out, gate, up, their product, and one number a token.

In a tensor group each rank has some of the f columns. The output is this rank's part of a sum that
is left to the caller; the gradient of x is complete: it is summed here. Where the group divides
rows, x and its gradient are this rank's own, and so is what the gradient of the output says.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from ratrain.models import kernels
from ratrain.models.linear import input_gradient, linear, linear_onto, weight_gradient
from ratrain.models.norm import rms_norm, rms_norm_gradients
from ratrain.models.rows import Rows, by_rank, own_rows, summed
from ratrain.models.tensor_group import TensorGroup, divides_rows
from ratrain.models.weights import Weights


class MlpBlock(Function):
    """apply(x [b, S, h], weights, epsilon, group) -> [b, S, h]; where the group divides rows, of
    this rank's own x [rows, h] its part of all, [t, rows, h]. Backward may run once: it writes its
    gradients over what was kept."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Weights, epsilon: float, group: TensorGroup | None
    ) -> Tensor:
        flat = x.flatten(0, -2)
        normed, rstd = rms_norm(flat, weights["norm2.weight"], epsilon)
        inputs = Rows(normed, group)
        gate = linear(weights, "mlp.gate", inputs.all())
        up = linear(weights, "mlp.up", inputs.all())
        inputs.let_go()
        act = _gated(gate, up)
        ctx.save_for_backward(x, normed, rstd, gate, up, act)
        ctx.weights, ctx.group = weights, group
        output = by_rank(linear_onto(weights, "mlp.down", act, flat, group), group)
        return output if divides_rows(group) else output.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        x, normed, rstd, gate, up, act = ctx.saved_tensors
        weights: Weights = ctx.weights
        group: TensorGroup | None = ctx.group
        grad, inputs = Rows(own_rows(grads[0], group), group), Rows(normed, group)
        weight_gradient(weights, "mlp.down", grad, Rows(act))
        d_act = input_gradient(weights, "mlp.down", grad.all())
        d_gate, d_up = _gated_gradients_(d_act, gate, up)
        del d_act
        grad.let_go()
        weight_gradient(weights, "mlp.gate", Rows(d_gate), inputs)
        weight_gradient(weights, "mlp.up", Rows(d_up), inputs)
        d_normed = input_gradient(weights, "mlp.gate", d_gate)
        d_normed = input_gradient(weights, "mlp.up", d_up, d_normed)
        inputs.let_go()
        d_normed = summed(by_rank(d_normed, group), group)
        weight = weights["norm2.weight"]
        dx, d_weight = rms_norm_gradients(d_normed, x.flatten(0, -2), rstd, weight, grad.own)
        if group is not None and group.divides_rows:
            group.sum_(d_weight)  # of its own rows on each rank; else it is complete
        weights.add("norm2.weight", d_weight)
        return dx.view(x.shape), None, None, None


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) up."""
    if c := kernels.kernels_for(gate):
        return kernels.gated(c, gate, up)
    return functional.silu(gate).mul_(up)


def _gated_gradients_(d_act: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of gate and up where act = silu(gate) up, written over gate and up."""
    if c := kernels.kernels_for(gate):
        kernels.gated_gradients_(c, d_act, gate, up)
        return gate, up
    d_silu = d_act * up
    torch.mul(functional.silu(gate), d_act, out=up)
    torch.ops.aten.silu_backward.grad_input(d_silu, gate, grad_input=gate)
    return gate, up
