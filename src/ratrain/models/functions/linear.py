"""Linear maps whose weights live in a `Weights`: forward, and the two halves of backward.

Activations are matrices with a row a token. A weight is read when it is needed, each time. A matrix
that has a low-rank adapter gives W x + s B (A x). In a tensor group A is divided where W is by
columns, and B where W is by rows; the other one is whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat

import torch
from torch import Tensor

from ratrain.models.functions.chunks import CPU_KERNELS
from ratrain.models.functions.rows import Rows, by_rank, summed
from ratrain.models.tensor_group import TensorGroup, leads
from ratrain.models.weights import Weights

STACKING = ("cuda",)
"""Kinds of device on which matrices that read the same input are one product, where they lie one
below another: a GPU takes some time to begin each product. On CPUs the bits stay those of each."""

_WIDENED = 1 << 16
"""Elements that are widened at once."""


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums over tensors of `dtype`: fp32, and fp64 for itself."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def row_dots(a: Tensor, b: Tensor) -> Tensor:
    """Of each row of two matrices the sum of their products, [rows] in fp32."""
    sums = a.new_empty(len(a), dtype=accumulation_dtype(a.dtype))
    for rows in _pieces(a):
        torch.sum(a[rows] * b[rows], 1, dtype=sums.dtype, out=sums[rows])
    return sums


def scale_rows_(a: Tensor, factors: Tensor) -> Tensor:
    """Multiplies each row by its factor [rows], in place."""
    for rows in _pieces(a):
        a[rows].mul_(factors[rows].unsqueeze(1))
    return a


def _pieces(a: Tensor) -> Iterator[slice]:
    """Some rows at a time where 16 bits are widened beside fp32: on a CPU."""
    whole = a.device.type not in CPU_KERNELS
    step = max(1, len(a) if whole else _WIDENED // a.shape[1])
    yield from (slice(begin, begin + step) for begin in range(0, len(a), step))


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    """x W^T + b."""
    return _plus_adapter(weights, name, x, _plain_linear(weights, name, x))


def _plain_linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    weight = weights[f"{name}.weight"].t()
    return torch.addmm(weights[f"{name}.bias"], x, weight) if _biased(weights, name) else x @ weight


def _plus_adapter(weights: Weights, name: str, x: Tensor, output: Tensor) -> Tensor:
    """`output`, with what the matrix's adapter gives added in place."""
    adapter = weights.layout.adapter_of.get(name)
    if adapter is None:
        return output
    down = x @ weights[adapter.a].t()
    return output.addmm_(down, weights[adapter.b].t(), alpha=weights.layout.adapter_scale)


def linears(weights: Weights, names: tuple[str, ...], x: Tensor) -> list[Tensor]:
    """The same for several matrices; in one product where they are stacked on such a device."""
    stacked = _stacked(weights, names, x)
    if stacked is None:
        return [linear(weights, name, x) for name in names]
    sizes = [weights.layout.by_name[f"{name}.weight"].shape[0] for name in names]
    outputs = (x @ stacked.t()).split(sizes, 1)
    return [_plus_adapter(weights, *each) for each in zip(names, repeat(x), outputs, strict=False)]


def _stacked(weights: Weights, names: tuple[str, ...], x: Tensor) -> Tensor | None:
    if x.device.type not in STACKING:
        return None
    return weights.stacked(tuple(f"{name}.weight" for name in names))


def side_by_side(parts: Sequence[Tensor]) -> Tensor | None:
    """Columns of one matrix as that matrix: those of the first, then those of the next; None: they
    are not. Only on devices that stack."""
    first = parts[0]
    if first.device.type not in STACKING:
        return None
    stride, at, width = first.stride(0), first.data_ptr(), 0
    for part in parts:
        if part.data_ptr() != at + width * part.element_size():
            return None
        if part.stride() != (stride, 1):
            return None
        width += part.shape[1]
    return first.as_strided((first.shape[0], width), (stride, 1)) if width <= stride else None


def linear_onto(
    weights: Weights, name: str, x: Tensor, residual: Tensor, group: TensorGroup | None = None
) -> Tensor:
    """residual + x W^T + b, in one product; or this rank's part of the group's sum that gives it:
    rank 0's carries residual and bias, or where the group divides rows, each rank's on its own."""
    weight = weights[f"{name}.weight"].t()
    if group is not None and group.divides_rows:
        output = _plus_adapter(weights, name, x, x @ weight)
        own = by_rank(output, group)[group.division.rank].add_(residual)
        if _biased(weights, name):
            own.add_(weights[f"{name}.bias"])
        return output
    if not leads(group):
        return _plus_adapter(weights, name, x, x @ weight)
    output = _plus_adapter(weights, name, x, torch.addmm(residual, x, weight))
    return output.add_(weights[f"{name}.bias"]) if _biased(weights, name) else output


def linear_summed(weights: Weights, name: str, x: Tensor, group: TensorGroup | None) -> Tensor:
    """x W^T + b where each rank of a group has some columns of W: complete, of the rows that are to
    be here."""
    part = _plus_adapter(weights, name, x, x @ weights[f"{name}.weight"].t())
    output = summed(by_rank(part, group), group)
    return output.add_(weights[f"{name}.bias"]) if _biased(weights, name) else output


def input_gradient(weights: Weights, name: str, grad: Tensor, onto: Tensor | None = None) -> Tensor:
    """grad W, added to `onto` in place where that is given."""
    weight = weights[f"{name}.weight"]
    total = grad @ weight if onto is None else onto.addmm_(grad, weight)
    return _plus_adapter_input(weights, name, grad, total)


def _plus_adapter_input(weights: Weights, name: str, grad: Tensor, total: Tensor) -> Tensor:
    adapter = weights.layout.adapter_of.get(name)
    if adapter is None:
        return total
    up = grad @ weights[adapter.b]
    return total.addmm_(up, weights[adapter.a], alpha=weights.layout.adapter_scale)


def weight_gradient(
    weights: Weights, name: str, grad: Rows, x: Rows, group: TensorGroup | None = None
) -> None:
    """Adds grad^T x to W's gradient, and the sum of grad's rows to b's; and to its adapter's."""
    _own_gradient(weights, name, grad, x)
    _adapter_gradients(weights, (name,), (grad,), x, group)


def _own_gradient(weights: Weights, name: str, grad: Rows, x: Rows) -> None:
    weights.add_product(f"{name}.weight", grad, x)
    if _biased(weights, name) and weights.trains(f"{name}.bias"):
        rows = grad.all()
        weights.add(f"{name}.bias", rows.sum(0, dtype=accumulation_dtype(rows.dtype)))


def _adapter_gradients(
    weights: Weights,
    names: Sequence[str],
    grads: Sequence[Rows],
    x: Rows,
    group: TensorGroup | None,
) -> None:
    """Adds s (grad B)^T x to A's gradient, of all matrices that share it, and s grad^T (x A^T) to
    B's. Of the one that is whole on every rank of a group each has a part of the sum."""
    scale, by_name = weights.layout.adapter_scale, weights.layout.by_name
    sharing: dict[str, list[tuple[str, Rows]]] = {}
    for name, grad in zip(names, grads, strict=True):
        adapter = weights.layout.adapter_of.get(name)
        if adapter is not None:
            sharing.setdefault(adapter.a, []).append((adapter.b, grad))
    for a, users in sharing.items():
        down = (x.all() @ weights[a].t()).mul_(scale)
        up = sum_of([grad.all() @ weights[b] for b, grad in users]).mul_(scale)
        if group is not None and group.division.degree > 1:
            group.sum_(up if by_name[a].cut is None else down)
        weights.add_product(a, Rows(up), x)
        for b, grad in users:
            weights.add_product(b, grad, Rows(down))


def sum_of(parts: Sequence[Tensor]) -> Tensor:
    """The sum of tensors that nobody else reads, in their order."""
    total, *others = parts
    for part in others:
        total += part
    return total


def input_gradients(weights: Weights, names: tuple[str, ...], grads: Sequence[Tensor]) -> Tensor:
    """The sum of grad W over several matrices."""
    whole, stacked = side_by_side(grads), _stacked(weights, names, grads[0])
    if whole is not None and stacked is not None:
        total = whole @ stacked
        for name, grad in zip(names, grads, strict=True):
            total = _plus_adapter_input(weights, name, grad, total)
        return total
    total: Tensor | None = None
    for name, grad in zip(names, grads, strict=True):
        total = input_gradient(weights, name, grad, total)
    assert total is not None
    return total


def weight_gradients(
    weights: Weights,
    names: tuple[str, ...],
    grads: Sequence[Tensor],
    x: Rows,
    group: TensorGroup | None = None,
) -> None:
    """Adds grad^T x to each W's gradient, and the sums of rows to the biases'; and to adapters'."""
    _adapter_gradients(weights, names, [Rows(grad) for grad in grads], x, group)
    whole = side_by_side(grads)
    if whole is not None and _stacked(weights, names, whole) is not None:
        weights.add_stacked(tuple(f"{name}.weight" for name in names), whole, x)
        return
    for name, grad in zip(names, grads, strict=True):
        _own_gradient(weights, name, Rows(grad), x)


def _biased(weights: Weights, name: str) -> bool:
    return f"{name}.bias" in weights.layout.by_name
