"""RMS norm and layer norm, forward and backward, in fp32 whatever their input (arXiv 1910.07467,
1607.06450)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ratrain.describe.model import ModelSpec
from ratrain.models import kernels
from ratrain.models.functions.linear import accumulation_dtype
from ratrain.models.functions.rows import by_rank
from ratrain.models.tensor_group import TensorGroup, leads
from ratrain.models.weights import Weights


@dataclass(frozen=True)
class Norm:
    """A norm of rows, by the weights of its name; a layer norm may lack its bias, or both."""

    name: str
    epsilon: float
    layer: bool = False  # subtracts the mean
    biased: bool = False  # of a layer norm
    plus_one: bool = False  # multiplies by 1 + its weight

    def forward(self, weights: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
        """(norm of x [rows, h]; what backward needs beside x: a number a row, or two)."""
        if self.layer:
            bias = weights[f"{self.name}.bias"] if self.biased else None
            return layer_norm(x, self._scale(weights), bias, self.epsilon)
        weight = weights[f"{self.name}.weight"]
        if self.plus_one:
            return rms_norm_plus_one(x, weight, self.epsilon)
        return rms_norm(x, weight, self.epsilon)

    def statistics(self, weights: Weights, x: Tensor) -> Tensor:
        """What `forward` gives for backward."""
        return self.forward(weights, x)[1]

    def backward(
        self,
        weights: Weights,
        grad: Tensor,
        x: Tensor,
        statistics: Tensor,
        residual_grad: Tensor | None = None,
        group: TensorGroup | None = None,
    ) -> Tensor:
        """The gradient of x, plus `residual_grad`. The weights' are added; `group`: each of its
        ranks has some of the rows, so theirs are summed first."""
        scale = self._scale(weights)
        dx, *vectors = self._gradients(grad, x, statistics, scale, residual_grad)
        self._add(weights, vectors, group)
        return dx

    def part_backward(
        self,
        weights: Weights,
        grad: Tensor,
        x: Tensor,
        statistics: Tensor,
        residual_grad: Tensor | None,
        group: TensorGroup | None,
    ) -> Tensor:
        """The same where `grad` is this rank's part of a sum, and so is the gradient of x: the
        residual's is in rank 0's, or of its own rows in each rank's. The weights' are complete.

        Where the group divides rows `grad`, `x` and `statistics` are of all of them, and the
        gradient is written over `grad`, the rows of one rank after those of another, [t, rows, h].
        """
        scale = self._scale(weights)
        if group is None or not group.divides_rows:
            residual = residual_grad if leads(group) else None
            result, *vectors = self._gradients(grad, x, statistics, scale, residual)
        else:
            result, vectors = by_rank(grad, group), list[Tensor]()
            rows = zip(by_rank(x, group), by_rank(statistics, group), strict=True)
            for rank, (own_x, own_statistics) in enumerate(rows):
                residual = residual_grad if rank == group.division.rank else None
                made = self._gradients(result[rank], own_x, own_statistics, scale, residual)
                result[rank].copy_(made[0])
                if not vectors:
                    vectors = [torch.zeros_like(vector) for vector in made[1:]]
                for total, vector in zip(vectors, made[1:], strict=True):
                    total += vector
        self._add(weights, vectors, group)
        return result

    def _gradients(
        self,
        grad: Tensor,
        x: Tensor,
        statistics: Tensor,
        scale: Tensor | None,
        residual_grad: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """(gradient of x, plus `residual_grad`; of weight and bias, those that there are)."""
        if self.layer:
            return layer_norm_gradients(
                grad, x, statistics, scale, residual_grad, biased=self.biased
            )
        assert scale is not None
        return rms_norm_gradients(grad, x, statistics, scale, residual_grad)

    def _scale(self, weights: Weights) -> Tensor | None:
        """What rows are multiplied by, if by anything."""
        name = f"{self.name}.weight"
        if name not in weights.layout.by_name:
            return None
        weight = weights[name]
        return weight.to(accumulation_dtype(weight.dtype)) + 1 if self.plus_one else weight

    def _add(self, weights: Weights, vectors: list[Tensor], group: TensorGroup | None) -> None:
        for kind, gradient in zip(("weight", "bias"), vectors, strict=False):
            name = f"{self.name}.{kind}"
            if group is not None and weights.trains(name):
                group.sum_(gradient)
            weights.add(name, gradient)


def norm_of(spec: ModelSpec, name: str) -> Norm:
    """The norm of that name in a model."""
    layer = spec.norm == "layer"
    biased = layer and spec.norm_bias
    return Norm(name, spec.norm_epsilon, layer, biased, spec.norm_plus_one)


def row_lengths(x: Tensor) -> Tensor:
    """The Euclidean length of each row, [rows, 1] in fp32."""
    return torch.ops.aten.linalg_vector_norm(x, 2, [-1], True, dtype=accumulation_dtype(x.dtype))


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """(w x r, r) with r = 1 / sqrt(mean(x^2) + epsilon), one a row.

    x r is rounded to x's dtype before the product with w, as in Hugging Face's models.
    """
    if c := kernels.kernels_for(x):
        return c.rms_norm(x, weight, epsilon)
    rstd = _reciprocal_deviation(x, epsilon)
    return (x * rstd).to(x.dtype).mul_(weight), rstd


def rms_norm_plus_one(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """((1 + w) x r, r), rounded at the end, as in Gemma."""
    scale = weight.to(accumulation_dtype(x.dtype)) + 1
    if c := kernels.kernels_for(x):
        return c.rms_norm(x, scale, epsilon)
    rstd = _reciprocal_deviation(x, epsilon)
    return (x * rstd).mul_(scale).to(x.dtype), rstd


def _reciprocal_deviation(x: Tensor, epsilon: float) -> Tensor:
    return row_lengths(x).square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()


def rms_norm_gradients(
    grad: Tensor, x: Tensor, rstd: Tensor, weight: Tensor, residual_grad: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(gradient of x, plus `residual_grad`; gradient of w).

    dx = r (w g - x r^2 mean(w g x)), dw = sum over rows of g x r.
    """
    if c := kernels.kernels_for(x):
        return c.rms_norm_gradients(grad, x, rstd, weight, residual_grad)
    wide, wide_grad, scale = (t.to(rstd.dtype) for t in (x, grad, weight))
    scaled = (wide * rstd).mul_(wide_grad)  # g x r
    weight_grad = scaled.sum(0)
    mean = torch.mv(scaled, scale).unsqueeze_(1).div_(x.shape[-1])
    result = torch.mul(wide_grad, scale, out=scaled).mul_(rstd)
    result.addcmul_(wide, mean.mul_(rstd).mul_(rstd), value=-1)
    if residual_grad is not None:
        result.add_(residual_grad)
    return result.to(x.dtype), weight_grad


def layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor]:
    """(w (x - m) r + b; m and r, of each row) with m the mean and r one over the deviation."""
    dtype = accumulation_dtype(x.dtype)
    scale, shift = (None if vector is None else vector.to(dtype) for vector in (weight, bias))
    out, mean, rstd = torch.native_layer_norm(x.to(dtype), x.shape[-1:], scale, shift, epsilon)
    return out.to(x.dtype), torch.cat((mean, rstd), -1)


def layer_norm_gradients(
    grad: Tensor,
    x: Tensor,
    statistics: Tensor,
    weight: Tensor | None,
    residual_grad: Tensor | None,
    *,
    biased: bool = True,
) -> tuple[Tensor, ...]:
    """(gradient of x, plus `residual_grad`; of w and b, those that there are)."""
    wide, wide_grad = (t.to(statistics.dtype) for t in (x, grad))
    scale = None if weight is None else weight.to(statistics.dtype)
    mean, rstd = (part.contiguous() for part in statistics.split(1, -1))
    wanted = [True, scale is not None, biased]
    shift = scale if biased else None  # of it only the shape counts
    dx, *vectors = torch.ops.aten.native_layer_norm_backward(
        wide_grad.contiguous(), wide, x.shape[-1:], mean, rstd, scale, shift, wanted
    )
    if residual_grad is not None:
        dx.add_(residual_grad)
    kept = (vector for vector, there in zip(vectors, wanted[1:], strict=True) if there)
    return dx.to(x.dtype), *kept
