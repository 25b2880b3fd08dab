"""Calling an autograd Function as the typed function that it is."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor
from torch.autograd import Function


def differentiable(function: type[Function], *arguments: object) -> Tensor:
    """The output of `function`, which must be one tensor."""
    return cast("Any", function).apply(*arguments)


def differentiables(function: type[Function], *arguments: object) -> tuple[Tensor, ...]:
    """The outputs of `function`, which must be several."""
    return cast("Any", function).apply(*arguments)
