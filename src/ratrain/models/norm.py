"""RMS norm, forward and backward, in fp32 whatever its input (arXiv 1910.07467)."""

from __future__ import annotations

import torch
from torch import Tensor

from ratrain.models.linear import accumulation_dtype


def row_lengths(x: Tensor) -> Tensor:
    """The Euclidean length of each row, [rows, 1] in fp32."""
    return torch.ops.aten.linalg_vector_norm(x, 2, [-1], True, dtype=accumulation_dtype(x.dtype))


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """(w x r, r) with r = 1 / sqrt(mean(x^2) + epsilon), one a row.

    x r is rounded to x's dtype before the product with w, as in Hugging Face's models.
    """
    rstd = row_lengths(x).square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
    return (x * rstd).to(x.dtype).mul_(weight), rstd


def rms_norm_gradients(
    grad: Tensor, x: Tensor, rstd: Tensor, weight: Tensor, residual_grad: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(gradient of x, plus `residual_grad`; gradient of w).

    dx = r (w g - x r^2 mean(w g x)), dw = sum over rows of g x r.
    """
    wide, wide_grad, scale = (t.to(rstd.dtype) for t in (x, grad, weight))
    scaled = (wide * rstd).mul_(wide_grad)  # g x r
    weight_grad = scaled.sum(0)
    mean = torch.mv(scaled, scale).unsqueeze_(1).div_(x.shape[-1])
    result = torch.mul(wide_grad, scale, out=scaled).mul_(rstd)
    result.addcmul_(wide, mean.mul_(rstd).mul_(rstd), value=-1)
    if residual_grad is not None:
        result.add_(residual_grad)
    return result.to(x.dtype), weight_grad
