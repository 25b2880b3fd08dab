"""RMS norm, forward and backward, in fp32 whatever its input (arXiv 1910.07467)."""

from __future__ import annotations

import torch
from torch import Tensor

from ratrain.models import kernels
from ratrain.models.linear import accumulation_dtype
from ratrain.models.rows import by_rank
from ratrain.models.tensor_group import TensorGroup, leads


def row_lengths(x: Tensor) -> Tensor:
    """The Euclidean length of each row, [rows, 1] in fp32."""
    return torch.ops.aten.linalg_vector_norm(x, 2, [-1], True, dtype=accumulation_dtype(x.dtype))


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """(w x r, r) with r = 1 / sqrt(mean(x^2) + epsilon), one a row.

    x r is rounded to x's dtype before the product with w, as in Hugging Face's models.
    """
    if c := kernels.kernels_for(x):
        return kernels.rms_norm(c, x, weight, epsilon)
    rstd = row_lengths(x).square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
    return (x * rstd).to(x.dtype).mul_(weight), rstd


def rms_norm_gradients(
    grad: Tensor, x: Tensor, rstd: Tensor, weight: Tensor, residual_grad: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(gradient of x, plus `residual_grad`; gradient of w).

    dx = r (w g - x r^2 mean(w g x)), dw = sum over rows of g x r.
    """
    if c := kernels.kernels_for(x):
        return kernels.rms_norm_gradients(c, grad, x, rstd, weight, residual_grad)
    wide, wide_grad, scale = (t.to(rstd.dtype) for t in (x, grad, weight))
    scaled = (wide * rstd).mul_(wide_grad)  # g x r
    weight_grad = scaled.sum(0)
    mean = torch.mv(scaled, scale).unsqueeze_(1).div_(x.shape[-1])
    result = torch.mul(wide_grad, scale, out=scaled).mul_(rstd)
    result.addcmul_(wide, mean.mul_(rstd).mul_(rstd), value=-1)
    if residual_grad is not None:
        result.add_(residual_grad)
    return result.to(x.dtype), weight_grad


def part_norm_gradients(
    grad: Tensor,
    x: Tensor,
    rstd: Tensor,
    weight: Tensor,
    residual_grad: Tensor | None,
    group: TensorGroup | None,
) -> tuple[Tensor, Tensor]:
    """The same where `grad` is this rank's part of a sum, and so is the gradient of x: the
    residual's is in rank 0's, or of its own rows in each rank's. The gradient of w is complete.

    Where the group divides rows `grad`, `x` and `rstd` are of all of them, and the gradient is
    written over `grad`, the rows of one rank after those of another, [t, rows, h].
    """
    if group is None or not group.divides_rows:
        residual = residual_grad if leads(group) else None
        result, weight_grad = rms_norm_gradients(grad, x, rstd, weight, residual)
    else:
        result, weight_grad = by_rank(grad, group), torch.zeros_like(weight, dtype=rstd.dtype)
        xs, rstds = by_rank(x, group), by_rank(rstd, group)
        for rank, block in enumerate(result):
            residual = residual_grad if rank == group.division.rank else None
            made = rms_norm_gradients(block, xs[rank], rstds[rank], weight, residual)
            block.copy_(made[0])
            weight_grad += made[1]
    if group is not None:
        group.sum_(weight_grad)
    return result, weight_grad
