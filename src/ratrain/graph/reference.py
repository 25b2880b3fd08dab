"""The same network in memory, by torch's own autograd: what the partitioned one is held against."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch.nn import functional

from ratrain.graph.csr import Matrix, aggregation
from ratrain.graph.network import SLOPE, Parameters
from ratrain.graph.read import GraphData
from ratrain.graph.units import Unit

TINY = 1e-3


class InMemory:
    """A network over a whole graph, its nodes in their own order."""

    def __init__(self, data: GraphData, kind: str, units: tuple[Unit, ...], precision: str) -> None:
        self._units = units
        matrix = aggregation(data.graph, kind, precision)
        self._matrix, self._transposed = _sparse(matrix), _sparse(matrix.transposed())
        self._rows = torch.from_numpy(matrix.pattern.rows().astype(np.int64))
        self._columns = torch.from_numpy(matrix.pattern.columns.astype(np.int64))
        every = np.arange(data.graph.nodes)
        self._features = torch.from_numpy(data.features.rows(every).astype(precision))
        self._labels = torch.from_numpy(data.labels)
        self._is_train = torch.from_numpy(data.is_train)

    def gradients(self, parameters: Parameters) -> float:
        """The loss of an epoch; gradients are left in the parameters."""
        for parameter in parameters.values():
            parameter.grad = None
        rows = self._features
        for unit in self._units:
            rows = self._unit(unit, rows, parameters)
        learned = self._is_train
        loss = functional.cross_entropy(rows[learned], self._labels[learned])
        loss.backward()  # pyright: ignore[reportUnknownMemberType]
        return float(loss.detach())

    def _unit(self, u: Unit, rows: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        def of(name: str) -> torch.Tensor:
            return parameters[f"{u.number}.{name}"]

        if u.scores:
            out = rows @ of("weight")
            by_head = out.reshape(len(out), u.scores, -1)
            scores = [(by_head * of(side)).sum(-1) for side in ("source", "target")]
            return torch.cat([out, *scores], 1)
        if u.attends:
            out = self._attention(u, rows)
        else:
            summed = _Product.apply(rows, self._matrix, self._transposed) if u.sums else rows
            out = summed @ of("weight")
        if u.own:
            out = out + rows @ of("own")
        out = out + of("bias")
        return out.relu() if u.relu else out

    def _attention(self, u: Unit, rows: torch.Tensor) -> torch.Tensor:
        d, h, n = u.width, u.heads, len(rows)
        linear = rows[:, d : d + h][self._columns] + rows[:, d + h :][self._rows]
        weights = functional.leaky_relu(linear, SLOPE)
        index = self._rows[:, None].expand(-1, h)
        most = torch.full((n, h), -torch.inf, dtype=rows.dtype)
        most = most.scatter_reduce(0, index, weights.detach(), "amax")
        weights = torch.exp(weights - most[self._rows])
        total = torch.zeros_like(most).index_add(0, self._rows, weights)
        weights = weights / total[self._rows]
        messages = rows[:, :d].reshape(n, h, -1)[self._columns] * weights[:, :, None]
        out = torch.zeros(n, h, d // h, dtype=rows.dtype).index_add(0, self._rows, messages)
        return out.reshape(n, d)


class _Product(torch.autograd.Function):
    """A sparse matrix times rows; torch's own backward of it would transpose it every time."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: torch.autograd.function.FunctionCtx,
        rows: torch.Tensor,
        matrix: torch.Tensor,
        transposed: torch.Tensor,
    ) -> torch.Tensor:
        ctx.transposed = transposed  # type: ignore[attr-defined]
        return matrix @ rows

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor
    ) -> tuple[torch.Tensor, None, None]:
        return ctx.transposed @ grad, None, None  # type: ignore[attr-defined]


def _sparse(matrix: Matrix) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR a beta
        nodes = matrix.pattern.nodes
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.pattern.starts),
            torch.from_numpy(matrix.pattern.columns.astype(np.int64)),
            torch.from_numpy(matrix.values),
            (nodes, nodes),
        )


def largest_error(got: Parameters, wanted: Parameters) -> float:
    """The largest difference of a parameter's gradient over the largest entry of it; of one that is
    nothing but rounding (`TINY`), over that much of the network's largest."""
    pairs: list[tuple[float, float]] = []
    for name, parameter in wanted.items():
        gradient, other = parameter.grad, got[name].grad
        assert gradient is not None and other is not None
        pairs.append((float((other - gradient).abs().max()), float(gradient.abs().max())))
    least = TINY * max(scale for _, scale in pairs) or 1.0
    return max(error / max(scale, least) for error, scale in pairs)
