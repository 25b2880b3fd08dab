"""An MLP's activation, of its gate where it has one, and the gradients of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ratrain.models import kernels
from ratrain.models.trainable import ACTIVATIONS, GELU, GELU_TANH, RELU, RELU2, SILU

_ATEN: Any = torch.ops.aten


class _Function(NamedTuple):
    """A function of each element, and its gradient written over its input: (gradient, input)."""

    value: Callable[[Tensor], Tensor]
    gradient_: Callable[[Tensor, Tensor], object]


_FUNCTIONS = {
    SILU: _Function(
        functional.silu, lambda d, x: _ATEN.silu_backward.grad_input(d, x, grad_input=x)
    ),
    GELU: _Function(
        functional.gelu, lambda d, x: _ATEN.gelu_backward.grad_input(d, x, grad_input=x)
    ),
    GELU_TANH: _Function(
        lambda x: functional.gelu(x, approximate="tanh"),
        lambda d, x: _ATEN.gelu_backward.grad_input(d, x, approximate="tanh", grad_input=x),
    ),
    RELU: _Function(torch.relu, lambda d, x: torch.mul(d, x > 0, out=x)),
    RELU2: _Function(lambda x: x.relu().square_(), lambda d, x: x.relu_().mul_(2).mul_(d)),
}


def activated(name: str, up: Tensor, gate: Tensor | None) -> Tensor:
    """f(gate) up, or f(up) where there is no gate; `name`: as Transformers calls f."""
    kind = ACTIVATIONS[name]
    if gate is None:
        return _FUNCTIONS[kind].value(up)
    if kind == SILU and (c := kernels.kernels_for(gate)):
        return c.gated(gate, up)
    return _FUNCTIONS[kind].value(gate).mul_(up)


def activation_gradients_(name: str, d_act: Tensor, up: Tensor, gate: Tensor | None) -> None:
    """Writes over up and gate their gradients, by that of `activated`."""
    kind = ACTIVATIONS[name]
    function = _FUNCTIONS[kind]
    if gate is None:
        function.gradient_(d_act, up)
        return
    if kind == SILU and (c := kernels.kernels_for(gate)):
        c.gated_gradients_(d_act, gate, up)
        return
    d_value = d_act * up
    torch.mul(function.value(gate), d_act, out=up)
    function.gradient_(d_value, gate)
