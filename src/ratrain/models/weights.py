"""A unit's weights as its functions read them, and the place where their gradients add up.

Gradients do not pass through autograd's leaves: each function with weights adds its weight
gradient to the buffer that is attached at that moment, in one product. So the executor decides
where a gradient lies, backward can be split (input gradient now, weight gradient later), and a
view may live in another buffer in backward than in forward.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ratrain.models.parameters import UnitParameters

CHUNK_ELEMENTS = 1 << 20
"""Of a product or of rows in another dtype than the gradient's: bounds what they take beside it."""


class Weights:
    """Named windows on a flat view, and a sink for gradients."""

    def __init__(self, layout: UnitParameters) -> None:
        self.layout = layout
        self._view: dict[str, Tensor] = {}
        self._gradient: dict[str, Tensor] = {}
        self._deferred: list[Callable[[], None]] | None = None

    def attach_view(self, flat: Tensor | None) -> None:
        """Weights are read from `flat` from now on; None: they are not read for a while."""
        self._view = {} if flat is None else self._windows(flat)

    def attach_gradient(self, flat: Tensor | None) -> None:
        """Gradients are added to `flat` from now on; None: there is no place for them."""
        self._gradient = {} if flat is None else self._windows(flat)

    def __getitem__(self, name: str) -> Tensor:
        return self._view[name]

    def add_product(self, name: str, grad_output: Tensor, inputs: Tensor) -> None:
        """gradient += grad_output^T inputs, of matrices with a row a token."""
        self._now_or_later(lambda: self._product(name, grad_output, inputs))

    def add(self, name: str, gradient: Tensor) -> None:
        """gradient += a whole parameter's gradient."""
        self._now_or_later(lambda: self._sum(name, gradient))

    def add_rows(self, name: str, rows: Tensor, gradient: Tensor) -> None:
        """gradient[rows[i]] += gradient[i]: an embedding's."""
        self._now_or_later(lambda: self._rows(name, rows, gradient))

    def add_scaled_rows(self, name: str, scale: Tensor) -> None:
        """gradient[i] += scale[i] weight[i], of the weight as it is now, even if kept for later."""
        weight = self._view[name]
        if self._deferred is not None:
            product = (weight * scale.unsqueeze(1)).to(weight.dtype)
            self._deferred.append(lambda: self._sum(name, product))
            return
        for rows in _row_chunks(weight):
            product = (weight[rows] * scale[rows].unsqueeze(1)).to(weight.dtype)
            self._gradient[name][rows].add_(product)

    def defer(self) -> list[Callable[[], None]]:
        """Keeps weight gradients for later; the list returned is what `play` takes."""
        self._deferred = []
        return self._deferred

    def stop_deferring(self) -> None:
        """Weight gradients are added at once again."""
        self._deferred = None

    @staticmethod
    def play(deferred: list[Callable[[], None]]) -> None:
        """Adds the weight gradients kept, in the order in which they were made, and lets go of
        what each kept."""
        deferred.reverse()
        while deferred:
            deferred.pop()()

    def _now_or_later(self, addition: Callable[[], None]) -> None:
        if self._deferred is None:
            addition()
        else:
            self._deferred.append(addition)

    def _product(self, name: str, grad_output: Tensor, inputs: Tensor) -> None:
        gradient = self._gradient[name]
        if gradient.dtype == grad_output.dtype:
            torch.addmm(gradient, grad_output.t(), inputs, out=gradient)
            return
        for rows in _row_chunks(gradient):
            gradient[rows].add_(grad_output[:, rows].t() @ inputs)

    def _sum(self, name: str, gradient: Tensor) -> None:
        self._gradient[name].add_(gradient)

    def _rows(self, name: str, rows: Tensor, gradient: Tensor) -> None:
        into = self._gradient[name]
        whole = gradient.dtype == into.dtype
        for part in [slice(None)] if whole else _row_chunks(gradient):
            wide = gradient[part].to(into.dtype)
            if into.device.type == "cpu":
                into.index_add_(0, rows[part], wide)
            else:  # sorts the rows first: the same order of sums each time, where index_add_ races
                into.index_put_((rows[part],), wide, accumulate=True)

    def _windows(self, flat: Tensor) -> dict[str, Tensor]:
        return {p.name: flat[p.offset : p.end].view(p.shape) for p in self.layout.parameters}


def _row_chunks(matrix: Tensor) -> list[slice]:
    """Slices of rows of at most CHUNK_ELEMENTS elements, or of one row."""
    rows = max(1, CHUNK_ELEMENTS // matrix.shape[1])
    return [slice(begin, begin + rows) for begin in range(0, matrix.shape[0], rows)]
