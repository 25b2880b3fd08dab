"""Final norm, logits and loss as one function of the last layer's output.

Kept for backward: the input, norm out, logits, and one number a token. The gradient of the
logits is written over them. fp32 copies exist for a few rows at a time only.

In a tensor group each rank has the logits of some words. The loss is complete on every rank; the
gradient of the input is this rank's part of a sum that is left to the caller, as in attention, and
as there the input is this rank's own where the group divides rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ratrain.describe.model import ModelSpec
from ratrain.describe.parameters import LOGITS
from ratrain.models import kernels
from ratrain.models.embedding import own_words
from ratrain.models.functions.chunks import chunk_elements
from ratrain.models.functions.divided_loss import divided_losses
from ratrain.models.functions.linear import accumulation_dtype
from ratrain.models.functions.norm import Norm, norm_of, row_lengths
from ratrain.models.functions.rows import Rows, own_rows
from ratrain.models.functions.stored_attention import soft_cap_
from ratrain.models.tensor_group import TensorGroup, divides_rows
from ratrain.models.weights import Weights

NORM = "head.norm"
IGNORED = -100  # a target that is not counted
LEAST_LENGTH = 1e-12  # torch.nn.functional.normalize's


@dataclass(frozen=True)
class HeadPlan:
    """`normalised`: the rows of the matrix count by direction alone (Baichuan2's NormHead).
    `softcap` c: logits are c tanh(logit / c) (Gemma 2). Granite divides them by `divisor`."""

    norm: Norm
    normalised: bool
    softcap: float | None = None
    divisor: float = 1.0
    biased: bool = False
    group: TensorGroup | None = None


def head_plan(spec: ModelSpec, group: TensorGroup | None) -> HeadPlan:
    """The plan of a model's head."""
    norm, softcap = norm_of(spec, NORM), spec.logit_softcap
    return HeadPlan(norm, spec.norm_head, softcap, spec.logits_divisor, spec.head_bias, group)


class HeadLoss(Function):
    """apply(x [b, S, h], weights, targets [b, S], plan) -> sum of the tokens' losses, fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Weights, targets: Tensor, plan: HeadPlan) -> Tensor:
        normed, rstd = plan.norm.forward(weights, own_rows(x, plan.group))
        logits, inverse = _logits(Rows(normed, plan.group).all(), weights, plan)
        target_rows = _wanted(targets.flatten(), logits.shape[1], plan.group)
        losses, logsumexp = _losses(logits, target_rows, plan.group)
        ctx.save_for_backward(x, normed, rstd, targets, logits, inverse, logsumexp)
        ctx.weights, ctx.plan = weights, plan
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        x, normed, rstd, targets, logits, inverse, logsumexp = ctx.saved_tensors
        weights: Weights = ctx.weights
        plan: HeadPlan = ctx.plan
        group, flat = plan.group, own_rows(x, plan.group)
        lengthwise: Tensor | None = None if inverse is None else torch.zeros_like(inverse)
        target_rows = _wanted(targets.flatten(), logits.shape[1], group)
        d_logits = _logits_gradient_(
            *(logits, target_rows, logsumexp, grads[0] / plan.divisor),
            *(inverse, lengthwise, plan.softcap),
        )
        shortening: Tensor | None = None
        if inverse is not None and lengthwise is not None:
            # What would only lengthen a row leaves no trace in the logits: take it out.
            shortening = lengthwise.mul_(inverse).mul_(inverse).neg_()
        inputs = Rows(normed, group)
        if divides_rows(group):
            flat = Rows(flat, group).all()
            known, rstd = plan.norm.forward(weights, flat)
            inputs = Rows(normed, group, known)
            del known
        if plan.biased:
            dtype = accumulation_dtype(d_logits.dtype)
            weights.add(f"{LOGITS}.bias", d_logits.sum(0, dtype=dtype))
        weights.add_product(LOGITS, Rows(d_logits), inputs, shortening)
        inputs.let_go()
        d_normed = d_logits @ weights[LOGITS]
        dx = plan.norm.part_backward(weights, d_normed, flat, rstd, None, group)
        return dx.view(x.shape), None, None, None


def head_logits(x: Tensor, weights: Weights, plan: HeadPlan) -> Tensor:
    """Logits [b, S, V] of the last layer's output, not differentiable."""
    with torch.no_grad():
        normed, _ = plan.norm.forward(weights, x.flatten(0, 1))
        return _logits(normed, weights, plan)[0].view(*x.shape[:2], -1)


def likeliest(x: Tensor, weights: Weights, plan: HeadPlan, rows: Tensor, below: int) -> Tensor:
    """The likeliest word behind each of some rows, of words below a number. `x`: as the loss takes
    it; rows count over its sequences. The same on all ranks of a group."""
    group = plan.group
    chosen = Rows(own_rows(x, group), group).all()[rows]
    logits = _logits(plan.norm.forward(weights, chosen)[0], weights, plan)[0].float()
    first = 0 if group is None else group.division.rank * logits.shape[1]
    logits[:, max(0, below - first) :] = -torch.inf
    values, words = logits.max(1)
    if group is None or group.division.degree == 1:
        return words
    parts = group.gather(torch.stack([values.double(), (words + first).double()]))
    best = torch.stack([part[0] for part in parts]).argmax(0)
    return torch.stack([part[1] for part in parts])[best, torch.arange(len(rows))].long()


def _logits(normed: Tensor, weights: Weights, plan: HeadPlan) -> tuple[Tensor, Tensor | None]:
    """(logits [tokens, V], one over the length of each row of the matrix, or None)."""
    matrix = weights[LOGITS]
    logits = normed @ matrix.t()
    if plan.biased:
        logits.add_(weights[f"{LOGITS}.bias"])
    if plan.divisor != 1:
        logits.div_(plan.divisor)
    if plan.softcap is not None:
        soft_cap_(logits, plan.softcap)
    if not plan.normalised:
        return logits, None
    inverse = row_lengths(matrix).squeeze(1).clamp_min_(LEAST_LENGTH).reciprocal_()
    return logits.mul_(inverse), inverse


def _chunks(logits: Tensor) -> Iterator[slice]:
    rows = max(1, chunk_elements(logits) // logits.shape[1])
    for begin in range(0, logits.shape[0], rows):
        yield slice(begin, begin + rows)


@dataclass(frozen=True)
class _Wanted:
    """Each token's target as a column of the logits here; `elsewhere`: on another rank."""

    column: Tensor
    elsewhere: Tensor | None
    ignored: Tensor


def _wanted(targets: Tensor, columns: int, group: TensorGroup | None) -> _Wanted:
    ignored = targets == IGNORED
    if group is None:
        return _Wanted(targets.clamp_min(0), None, ignored)
    division = group.division
    column, elsewhere = own_words(targets, columns * division.degree, division)
    return _Wanted(column, elsewhere, ignored)


def _losses(
    logits: Tensor, target_rows: _Wanted, group: TensorGroup | None
) -> tuple[Tensor, Tensor | None]:
    """(cross entropy of each row in fp32, 0 where the target is not counted; in a group the log of
    the sum of exponents over all words)."""
    dtype = accumulation_dtype(logits.dtype)
    if group is not None:
        assert target_rows.elsewhere is not None
        column, elsewhere, chunks = target_rows.column, target_rows.elsewhere, _chunks(logits)
        losses, logsumexp = divided_losses(logits, column, elsewhere, group, chunks, dtype)
        return losses.masked_fill_(target_rows.ignored, 0), logsumexp
    if c := kernels.kernels_for_gpu(logits):
        return c.losses(logits, target_rows.column).masked_fill_(target_rows.ignored, 0), None
    losses = torch.empty(logits.shape[0], dtype=dtype, device=logits.device)
    for rows in _chunks(logits):
        logp = torch.log_softmax(logits[rows], dim=-1, dtype=dtype)
        losses[rows] = logp.gather(1, target_rows.column[rows].unsqueeze(1)).squeeze(1).neg_()
    return losses.masked_fill_(target_rows.ignored, 0), None


def _logits_gradient_(
    logits: Tensor,
    target_rows: _Wanted,
    logsumexp: Tensor | None,
    grad: Tensor,
    inverse: Tensor | None,
    lengthwise: Tensor | None,
    softcap: float | None,
) -> Tensor:
    """grad (softmax(logits) - one hot), over `logits`; NormHead: times `inverse`, of the product;
    with a soft cap c times 1 - (logit / c)^2.

    `lengthwise` gains, for each row of the matrix, the sum over tokens of gradient x logit.
    """
    dtype = accumulation_dtype(logits.dtype)
    scale = (~target_rows.ignored).to(dtype).mul_(grad)
    if logsumexp is None and inverse is None and (c := kernels.kernels_for_gpu(logits)):
        c.losses_gradient_(logits, target_rows.column, scale, softcap)
        return logits
    scale.unsqueeze_(1)
    for rows in _chunks(logits):
        gradient = _softmax(logits[rows], None if logsumexp is None else logsumexp[rows], dtype)
        hot = torch.full_like(gradient[:, :1], -1)
        if target_rows.elsewhere is not None:
            hot.masked_fill_(target_rows.elsewhere[rows].unsqueeze(1), 0)
        gradient.scatter_add_(1, target_rows.column[rows].unsqueeze(1), hot)
        gradient.mul_(scale[rows])
        if inverse is not None and lengthwise is not None:
            lengthwise.add_((gradient * logits[rows]).sum(0))
            gradient.mul_(inverse)
        if softcap is not None:
            gradient.addcmul_(gradient, logits[rows].to(dtype).div_(softcap).square_(), value=-1)
        logits[rows] = gradient
    return logits


def _softmax(logits: Tensor, logsumexp: Tensor | None, dtype: torch.dtype) -> Tensor:
    """softmax(logits), of some rows; with `logsumexp` of a part of each row."""
    if logsumexp is None:
        return torch.softmax(logits, dim=-1, dtype=dtype)
    return (logits.to(dtype) - logsumexp.unsqueeze(1)).exp_()
