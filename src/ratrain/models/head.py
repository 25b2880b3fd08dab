"""Final norm, logits and loss as one function of the last layer's output.

Kept for backward: the input, norm out, logits, and one number a token. The gradient of the
logits is written over them. fp32 copies exist for a few rows at a time only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ratrain.models.linear import accumulation_dtype
from ratrain.models.norm import rms_norm, rms_norm_gradients, row_lengths
from ratrain.models.weights import Weights

NORM, LOGITS = "head.norm.weight", "head.logits"
IGNORED = -100  # a target that is not counted
CHUNK_ELEMENTS = 1 << 20  # of fp32 scratch, 4 MB: stays in a core's cache
LEAST_LENGTH = 1e-12  # torch.nn.functional.normalize's


@dataclass(frozen=True)
class HeadPlan:
    """`normalised`: the rows of the matrix count by direction alone (Baichuan2's NormHead)."""

    epsilon: float
    normalised: bool


class HeadLoss(Function):
    """apply(x [b, S, h], weights, targets [b, S], plan) -> sum of the tokens' losses, fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Weights, targets: Tensor, plan: HeadPlan) -> Tensor:
        normed, rstd = rms_norm(x.flatten(0, 1), weights[NORM], plan.epsilon)
        logits, inverse = _logits(normed, weights, plan)
        ctx.save_for_backward(x, normed, rstd, targets, logits, inverse)
        ctx.weights = weights
        return _losses(logits, targets.flatten()).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        x, normed, rstd, targets, logits, inverse = ctx.saved_tensors
        weights: Weights = ctx.weights
        lengthwise: Tensor | None = None if inverse is None else torch.zeros_like(inverse)
        d_logits = _logits_gradient_(logits, targets.flatten(), grads[0], inverse, lengthwise)
        weights.add_product(LOGITS, d_logits, normed)
        if inverse is not None and lengthwise is not None:
            # What would only lengthen a row leaves no trace in the logits: take it out.
            weights.add_scaled_rows(LOGITS, lengthwise.mul_(inverse).mul_(inverse).neg_())
        d_normed = d_logits @ weights[LOGITS]
        dx, d_weight = rms_norm_gradients(d_normed, x.flatten(0, 1), rstd, weights[NORM])
        weights.add(NORM, d_weight)
        return dx.view(x.shape), None, None, None


def head_logits(x: Tensor, weights: Weights, plan: HeadPlan) -> Tensor:
    """Logits [b, S, V] of the last layer's output, not differentiable."""
    with torch.no_grad():
        normed, _ = rms_norm(x.flatten(0, 1), weights[NORM], plan.epsilon)
        return _logits(normed, weights, plan)[0].view(*x.shape[:2], -1)


def _logits(normed: Tensor, weights: Weights, plan: HeadPlan) -> tuple[Tensor, Tensor | None]:
    """(logits [tokens, V], one over the length of each row of the matrix, or None)."""
    matrix = weights[LOGITS]
    logits = normed @ matrix.t()
    if not plan.normalised:
        return logits, None
    inverse = row_lengths(matrix).squeeze(1).clamp_min_(LEAST_LENGTH).reciprocal_()
    return logits.mul_(inverse), inverse


def _chunks(logits: Tensor) -> Iterator[slice]:
    rows = max(1, CHUNK_ELEMENTS // logits.shape[1])
    for begin in range(0, logits.shape[0], rows):
        yield slice(begin, begin + rows)


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of each row in fp32; 0 where the target is not counted."""
    dtype = accumulation_dtype(logits.dtype)
    losses = torch.empty(targets.shape, dtype=dtype, device=logits.device)
    for rows in _chunks(logits):
        logp = torch.log_softmax(logits[rows], dim=-1, dtype=dtype)
        wanted = targets[rows].clamp_min(0).unsqueeze(1)
        losses[rows] = logp.gather(1, wanted).squeeze(1).neg_()
    return losses.masked_fill_(targets == IGNORED, 0)


def _logits_gradient_(
    logits: Tensor,
    targets: Tensor,
    grad: Tensor,
    inverse: Tensor | None,
    lengthwise: Tensor | None,
) -> Tensor:
    """grad (softmax(logits) - one hot), over `logits`; NormHead: times `inverse`, of the product.

    `lengthwise` gains, for each row of the matrix, the sum over tokens of gradient x logit.
    """
    dtype = accumulation_dtype(logits.dtype)
    scale = (targets != IGNORED).to(dtype).mul_(grad).unsqueeze_(1)
    for rows in _chunks(logits):
        found = torch.softmax(logits[rows], dim=-1, dtype=dtype)
        wanted = targets[rows].clamp_min(0).unsqueeze(1)
        found.scatter_add_(1, wanted, torch.full_like(found[:, :1], -1))
        found.mul_(scale[rows])
        if inverse is not None and lengthwise is not None:
            lengthwise.add_((found * logits[rows]).sum(0))
            found.mul_(inverse)
        logits[rows] = found
    return logits
