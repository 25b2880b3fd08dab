"""x + mlp(norm(x)): the second half of a layer as one function. The MLP is down(f(gate) up), or
down(f(up)), or several of which each token has some (`experts`), or both; families put norms before
it, behind it, or both.

Kept for backward: x, norm out, what is inside, what a norm behind the MLP reads, and a number or
two a token.

In a tensor group each rank has some of the f columns, or of the experts. The output is this rank's
part of a sum that is left to the caller; the gradient of x is complete: it is summed here. Where
the group divides rows, x and its gradient are this rank's own, and so is what the gradient of the
output says.

Where attention and MLP read the same input (GPT-NeoX), x is the layer's, or what attention's norm
made of it (Phi), the output is added `onto` attention's, and the gradient of x is left to the
caller too, as a part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from torch.autograd import Function

from ratrain.describe.model import ModelSpec
from ratrain.describe.parameters import SHARE
from ratrain.models.expert_load import ExpertLoad
from ratrain.models.experts import Balance, SparseMlp, sparse_mlp
from ratrain.models.functions.activation import activated, activation_gradients_
from ratrain.models.functions.linear import (
    input_gradient,
    input_gradients,
    linear_onto,
    linear_summed,
    linears,
    row_dots,
    weight_gradient,
    weight_gradients,
)
from ratrain.models.functions.norm import Norm, norm_of
from ratrain.models.functions.rows import Rows, by_rank, own_rows, part_of, summed
from ratrain.models.tensor_group import TensorGroup, divides_rows, dividing, leads
from ratrain.models.weights import Weights

SHARE_WEIGHT = f"{SHARE}.weight"
_OF_DENSE = 4
"""What DenseMlp keeps."""


class Inside(Protocol):
    """What stands between a block's norms, of rows that are `inputs`. `load`: what is counted of
    its experts, where it has some."""

    @property
    def load(self) -> ExpertLoad | None: ...

    def balance(self, targets: Tensor, loss_weight: float, /) -> Balance | None:
        """What else it is trained for, of a micro-batch whose losses are times `loss_weight`."""
        ...

    def forward(
        self, weights: Weights, inputs: Rows, residual: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """(this rank's part of residual + output, or without a residual the complete output, of the
        rows that are to be here; what backward needs)."""
        ...

    def backward(
        self,
        weights: Weights,
        grad: Rows,
        inputs: Rows,
        kept: tuple[Any, ...],
        balance: Balance | None,
        /,
    ) -> Tensor:
        """This rank's part of the gradient of all rows; the weights' are added."""
        ...


@dataclass(frozen=True)
class DenseMlp:
    """One MLP: kept are gate, up and their product. `shares`: it counts by as much as a token says,
    which is kept too."""

    activation: str
    gated: bool
    multiplier: float = 1.0  # of the result, by that of what is inside
    shares: bool = False
    group: TensorGroup | None = None

    @property
    def widening(self) -> tuple[str, ...]:
        """The matrices that read the rows."""
        return ("mlp.gate", "mlp.up") if self.gated else ("mlp.up",)

    @property
    def load(self) -> None:
        return None

    def balance(self, _targets: Tensor, _loss_weight: float) -> None:
        return None

    def forward(
        self, weights: Weights, inputs: Rows, residual: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        *gates, up = linears(weights, self.widening, inputs.all())
        gate = gates[0] if gates else None
        share = (inputs.all() @ weights[SHARE_WEIGHT].t()).sigmoid_() if self.shares else None
        inputs.let_go()
        act = activated(self.activation, up, gate)
        if share is not None:
            act.mul_(share)
        if self.multiplier != 1:
            act.mul_(self.multiplier)
        if residual is None:
            output = linear_summed(weights, "mlp.down", act, self.group)
        else:
            part = linear_onto(weights, "mlp.down", act, residual, self.group)
            output = by_rank(part, self.group)
        return output, (gate, up, act, share)

    def backward(
        self,
        weights: Weights,
        grad: Rows,
        inputs: Rows,
        kept: tuple[Any, ...],
        _balance: Balance | None,
    ) -> Tensor:
        gate, up, act, share = kept
        weight_gradient(weights, "mlp.down", grad, Rows(act), self.group)
        d_act = input_gradient(weights, "mlp.down", grad.all())
        if self.multiplier != 1:
            d_act.mul_(self.multiplier)
        d_said = None if share is None else self._share_gradient(d_act, act, share)
        activation_gradients_(self.activation, d_act, up, gate)
        del d_act
        grad.let_go()
        made = [up] if gate is None else [gate, up]
        weight_gradients(weights, self.widening, made, inputs, self.group)
        result = input_gradients(weights, self.widening, made)
        if d_said is not None:
            weights.add_product(SHARE_WEIGHT, Rows(d_said), inputs)
            if leads(self.group):
                result.addmm_(d_said, weights[SHARE_WEIGHT])
        return result

    def _share_gradient(self, d_act: Tensor, act: Tensor, share: Tensor) -> Tensor:
        """The gradient of what each token says, before its sigmoid, [tokens, 1]; that of `act`
        becomes the gradient of what it was before it was shared."""
        said = row_dots(d_act, act).unsqueeze_(1)
        if self.group is not None:
            self.group.sum_(said)
        d_act.mul_(share)
        return said.mul_(1 - share).to(act.dtype)


@dataclass(frozen=True)
class SharedMlp:
    """Experts, and beside them an MLP that every token has."""

    sparse: SparseMlp
    dense: DenseMlp

    @property
    def load(self) -> ExpertLoad:
        return self.sparse.load

    def balance(self, targets: Tensor, loss_weight: float) -> Balance | None:
        return self.sparse.balance(targets, loss_weight)

    def forward(
        self, weights: Weights, inputs: Rows, residual: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        part, of_sparse = self.sparse.part(weights, inputs)
        output, of_dense = self.dense.forward(weights, inputs, residual)
        return output.add_(part), (*of_dense, *of_sparse)

    def backward(
        self,
        weights: Weights,
        grad: Rows,
        inputs: Rows,
        kept: tuple[Any, ...],
        balance: Balance | None,
    ) -> Tensor:
        of_dense, of_sparse = kept[:_OF_DENSE], kept[_OF_DENSE:]
        d_rows = self.sparse.backward(weights, grad, inputs, of_sparse, balance)
        return d_rows.add_(self.dense.backward(weights, grad, inputs, of_dense, None))


@dataclass(frozen=True)
class MlpPlan:
    """What the block needs to know."""

    inside: Inside
    before: Norm | None
    after: Norm | None
    group: TensorGroup | None = None


def mlp_plan(spec: ModelSpec, group: TensorGroup | None) -> MlpPlan:
    """The plan of a model's layers."""
    return MlpPlan(
        inside=_inside(spec, group),
        before=None if spec.norm_places == "after" or spec.shared_norm else norm_of(spec, "norm2"),
        after=None if spec.norm_places == "before" else norm_of(spec, "mlp.norm"),
        group=group,
    )


def _inside(spec: ModelSpec, group: TensorGroup | None) -> Inside:
    multiplier, shares = spec.residual_multiplier, spec.shared_expert_gate
    dense = DenseMlp(spec.activation, spec.gated_mlp, multiplier, shares, group)
    if spec.experts is None:
        return dense
    sparse = sparse_mlp(spec, group)
    return SharedMlp(sparse, dense) if spec.shared_expert else sparse


class MlpBlock(Function):
    """apply(x [b, S, h], onto, weights, plan, balance) -> [b, S, h]; where the group divides rows,
    of this rank's own x [rows, h] its part of all, [t, rows, h]. `onto`: None, or what the output
    is added to in place of x, which is then as `spread` makes it. Backward may run once: it writes
    its gradients over what was kept."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        onto: Tensor | None,
        weights: Weights,
        plan: MlpPlan,
        balance: Balance | None = None,
    ) -> Tensor:
        group = plan.group
        flat = x.flatten(0, -2) if onto is None else own_rows(x, group)
        normed, rstd = (flat, None) if plan.before is None else plan.before.forward(weights, flat)
        inputs = Rows(normed, group)
        residual = flat if onto is None else onto.flatten(0, -2)
        result, after = None, None
        if plan.after is None:
            output, kept = plan.inside.forward(weights, inputs, residual)
        else:
            result, kept = plan.inside.forward(weights, inputs, None)
            whole, after = plan.after.forward(weights, result)
            output = part_of(whole.add_(residual), group)
        ctx.save_for_backward(x, normed, rstd, result, after, *kept)
        ctx.weights, ctx.plan, ctx.balance = weights, plan, balance
        ctx.onto_shape = None if onto is None else onto.shape
        return output if divides_rows(group) else output.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        x, normed, rstd, result, after, *kept = ctx.saved_tensors
        weights: Weights = ctx.weights
        plan: MlpPlan = ctx.plan
        group = plan.group
        residual = own_rows(grads[0], group)
        own = residual
        if plan.after is not None:
            own = plan.after.backward(weights, own, result, after, None, dividing(group))
        grad = Rows(own, group)
        inputs = Rows(normed.detach(), group)  # without a norm it is the input of the graph
        d_normed = plan.inside.backward(weights, grad, inputs, tuple(kept), ctx.balance)
        grad.let_go()
        inputs.let_go()
        del kept
        if ctx.onto_shape is None:
            dx = _own_gradient(weights, plan, d_normed, x, rstd, residual)
            return dx.view(x.shape), None, None, None, None
        dx = _part_gradient(weights, plan, d_normed, own_rows(x, group), rstd)
        return dx.view(x.shape), residual.view(ctx.onto_shape), None, None, None


def _own_gradient(
    weights: Weights,
    plan: MlpPlan,
    d_normed: Tensor,
    x: Tensor,
    rstd: Tensor,
    residual: Tensor,
) -> Tensor:
    """The gradient of x, complete, of the rows that are here."""
    group = plan.group
    d_normed = summed(by_rank(d_normed, group), group)
    if plan.before is None:
        return d_normed.add_(residual)
    flat = x.flatten(0, -2)
    return plan.before.backward(weights, d_normed, flat, rstd, residual, dividing(group))


def _part_gradient(
    weights: Weights, plan: MlpPlan, d_normed: Tensor, flat: Tensor, rstd: Tensor
) -> Tensor:
    """This rank's part of the gradient of x, without the residual's."""
    if plan.before is None:
        return d_normed
    if divides_rows(plan.group):
        flat = Rows(flat, plan.group).all()
        rstd = plan.before.statistics(weights, flat)
    return plan.before.part_backward(weights, d_normed, flat, rstd, None, plan.group)
