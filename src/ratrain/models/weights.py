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


class Weights:
    """Named windows on a flat view, and a sink for gradients."""

    def __init__(self, layout: UnitParameters) -> None:
        self.layout = layout
        self._view: dict[str, Tensor] = {}
        self._gradient: dict[str, Tensor] = {}
        self._deferred: list[Callable[[], None]] | None = None

    def attach_view(self, flat: Tensor) -> None:
        """Weights are read from `flat` from now on."""
        self._view = self._windows(flat)

    def attach_gradient(self, flat: Tensor | None) -> None:
        """Gradients are added to `flat` from now on; None: there is no place for them."""
        self._gradient = {} if flat is None else self._windows(flat)

    def __getitem__(self, name: str) -> Tensor:
        return self._view[name]

    def add_product(self, name: str, grad_output: Tensor, inputs: Tensor) -> None:
        """gradient += grad_output^T inputs, of matrices with a row a token."""
        if self._deferred is not None:
            self._deferred.append(lambda: self._product(name, grad_output, inputs))
        else:
            self._product(name, grad_output, inputs)

    def add(self, name: str, gradient: Tensor) -> None:
        """gradient += a whole parameter's gradient."""
        if self._deferred is not None:
            self._deferred.append(lambda: self._sum(name, gradient))
        else:
            self._sum(name, gradient)

    def add_rows(self, name: str, rows: Tensor, gradient: Tensor) -> None:
        """gradient[rows[i]] += gradient[i]: an embedding's."""
        self._gradient[name].index_add_(0, rows, gradient)

    def defer(self) -> list[Callable[[], None]]:
        """Keeps weight gradients for later; the list returned is what `play` takes."""
        self._deferred = []
        return self._deferred

    def stop_deferring(self) -> None:
        self._deferred = None

    @staticmethod
    def play(deferred: list[Callable[[], None]]) -> None:
        """Adds the weight gradients kept, in the order in which they were made."""
        while deferred:
            deferred.pop(0)()

    def _product(self, name: str, grad_output: Tensor, inputs: Tensor) -> None:
        torch.addmm(self._gradient[name], grad_output.t(), inputs, out=self._gradient[name])

    def _sum(self, name: str, gradient: Tensor) -> None:
        self._gradient[name].add_(gradient)

    def _windows(self, flat: Tensor) -> dict[str, Tensor]:
        return {p.name: flat[p.offset : p.end].view(p.shape) for p in self.layout.parameters}
