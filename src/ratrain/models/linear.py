"""Linear maps whose weights live in a `Weights`: forward, and the two halves of backward.

Activations are matrices with a row a token. A weight is read when it is needed, each time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ratrain.models.rows import Rows, by_rank, summed
from ratrain.models.tensor_group import TensorGroup, leads
from ratrain.models.weights import Weights


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums over tensors of `dtype`: fp32, and fp64 for itself."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    """x W^T + b."""
    weight = weights[f"{name}.weight"].t()
    return torch.addmm(weights[f"{name}.bias"], x, weight) if _biased(weights, name) else x @ weight


def linear_onto(
    weights: Weights, name: str, x: Tensor, residual: Tensor, group: TensorGroup | None = None
) -> Tensor:
    """residual + x W^T + b, in one product; or this rank's part of the group's sum that gives it:
    rank 0's carries residual and bias, or where the group divides rows, each rank's on its own."""
    weight = weights[f"{name}.weight"].t()
    if group is not None and group.divides_rows:
        output = x @ weight
        own = by_rank(output, group)[group.division.rank].add_(residual)
        if _biased(weights, name):
            own.add_(weights[f"{name}.bias"])
        return output
    if not leads(group):
        return x @ weight
    output = torch.addmm(residual, x, weight)
    return output.add_(weights[f"{name}.bias"]) if _biased(weights, name) else output


def linear_summed(weights: Weights, name: str, x: Tensor, group: TensorGroup | None) -> Tensor:
    """x W^T + b where each rank of a group has some columns of W: complete, of the rows that are to
    be here."""
    output = summed(by_rank(x @ weights[f"{name}.weight"].t(), group), group)
    return output.add_(weights[f"{name}.bias"]) if _biased(weights, name) else output


def input_gradient(weights: Weights, name: str, grad: Tensor, onto: Tensor | None = None) -> Tensor:
    """grad W, added to `onto` in place where that is given."""
    weight = weights[f"{name}.weight"]
    return grad @ weight if onto is None else onto.addmm_(grad, weight)


def weight_gradient(weights: Weights, name: str, grad: Rows, x: Rows) -> None:
    """Adds grad^T x to W's gradient, and the sum of grad's rows to b's."""
    weights.add_product(f"{name}.weight", grad, x)
    if _biased(weights, name):
        rows = grad.all()
        weights.add(f"{name}.bias", rows.sum(0, dtype=accumulation_dtype(rows.dtype)))


def _biased(weights: Weights, name: str) -> bool:
    return f"{name}.bias" in weights.layout.by_name
