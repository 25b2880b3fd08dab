"""The kernels in C as torch's operators, for tensors of a device that calls the CPU's operators
itself (`ratrain.devices.deferred`)."""

from __future__ import annotations

from threading import Lock
from typing import Any

import torch
from torch import Tensor

_SPACE = "ratrain"
_SCHEMAS = {
    "rms_norm": "(Tensor x, Tensor weight, float epsilon) -> (Tensor, Tensor)",
    "rms_norm_gradients": "(Tensor grad, Tensor x, Tensor rstd, Tensor weight, "
    "Tensor? residual_grad) -> (Tensor, Tensor)",
    "gated": "(Tensor gate, Tensor up) -> Tensor",
    "gated_gradients_": "(Tensor grad, Tensor(a!) gate, Tensor(b!) up) -> ()",
    "rotate_": "(Tensor(a!) x, Tensor cosines, Tensor sines) -> ()",
}


class QueuedKernels:
    """`models.kernels.Kernels` whose functions are operators."""

    def __init__(self, kernels: object) -> None:
        self._library = torch.library.Library(_SPACE, "FRAGMENT")
        for name, schema in _SCHEMAS.items():
            self._library.define(name + schema)
            self._library.impl(name, getattr(kernels, name), "CPU")
        self._operators: Any = getattr(torch.ops, _SPACE)

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        return self._operators.rms_norm(x, weight, epsilon)

    def rms_norm_gradients(
        self, grad: Tensor, x: Tensor, rstd: Tensor, weight: Tensor, residual_grad: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return self._operators.rms_norm_gradients(grad, x, rstd, weight, residual_grad)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        return self._operators.gated(gate, up)

    def gated_gradients_(self, grad: Tensor, gate: Tensor, up: Tensor) -> None:
        self._operators.gated_gradients_(grad, gate, up)

    def rotates(self, x: Tensor) -> bool:
        return x.is_contiguous()

    def rotate_(self, x: Tensor, cosines: Tensor, sines: Tensor) -> None:
        self._operators.rotate_(x, cosines, sines)


_made: list[QueuedKernels] = []
_one_at_a_time = Lock()


def queued(kernels: object) -> QueuedKernels:
    """The same, as operators. torch takes a name once in a process: lanes that ask together, or who
    has loaded the library anew, get those that are there."""
    with _one_at_a_time:
        if not _made:
            _made.append(QueuedKernels(kernels))
    return _made[0]
