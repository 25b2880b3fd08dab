"""One call of an operator, with what the device was given and what it made of it, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ratrain.check.arithmetic import Arithmetic
from ratrain.devices.operators import leaves, mapped, rule_of

_FALSE_IN_FP64 = ("half_to_float",)
"""Arguments that only 16-bit tensors can have true."""


def on_host(value: Any) -> Any:
    """Nested arguments with copies of their tensors in host memory."""
    return mapped(lambda x: copied_to_host(x) if isinstance(x, Tensor) else x, value)


def copied_to_host(tensor: Tensor) -> Tensor:
    """A copy of a tensor in host memory. By the one operator that makes it: inside an interception
    `Tensor.to` is an operator too."""
    return torch.ops.aten._to_copy.default(tensor.detach(), device=torch.device("cpu"))


def widened(value: Any) -> Any:
    """Nested arguments with every tensor of floats, and every float dtype, in fp64."""
    return mapped(_wide, value)


def _wide(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.double() if x.is_floating_point() else x.clone()
    if isinstance(x, torch.dtype):
        return torch.float64 if x.is_floating_point else x
    return torch.device("cpu") if isinstance(x, torch.device) else x


@dataclass(frozen=True)
class Call:
    """`args` and `further` lie in host memory, as they were before the call."""

    operator: Any
    args: tuple[Any, ...]
    further: dict[str, Any]
    narrow_terms: int = 0

    @cached_property
    def named(self) -> dict[str, Any]:
        """The arguments that were given, by their names in the schema."""
        return {**dict(zip(rule_of(self.operator).names, self.args, strict=False)), **self.further}

    @cached_property
    def exact(self) -> dict[str, Any]:
        """The same in fp64."""
        return widened(self.named)

    @property
    def name(self) -> str:
        """ "aten.mm.default"."""
        return str(self.operator)

    @property
    def family(self) -> str:
        """What it computes, whichever way it is called: "aten.addmm" of `addmm_` and `addmm.out`
        too."""
        space, name, *_ = self.name.split(".")
        return f"{space}.{name.rstrip('_')}"

    @cached_property
    def arithmetic(self) -> Arithmetic:
        """That of the narrowest floats among the arguments."""
        floats = [t.dtype for t in self._tensors() if t.is_floating_point()]
        narrowest = min(floats, key=lambda dtype: dtype.itemsize, default=torch.float32)
        return Arithmetic(narrowest, self.narrow_terms)

    def _tensors(self) -> list[Tensor]:
        return [x for value in self.named.values() for x in leaves(value) if isinstance(x, Tensor)]

    def results(self, made: Any, args: Sequence[Any], further: dict[str, Any]) -> list[Tensor]:
        """What a call made: the arguments that it writes, else what it returns."""
        rule = rule_of(self.operator)
        if rule.writes:
            named = {**dict(zip(rule.names, args, strict=False)), **further}
            made = [named[name] for name in rule.names if name in rule.writes and name in named]
        return [x for x in leaves(made if type(made) is list else [made]) if isinstance(x, Tensor)]

    def evaluated(self, named: dict[str, Any]) -> list[Tensor]:
        """What torch computes of other values of the arguments, which may be written over."""
        names = rule_of(self.operator).names[: len(self.args)]
        args = tuple(named[name] for name in names)
        further = {k: False if k in _FALSE_IN_FP64 else v for k, v in named.items()}
        further = {name: further[name] for name in self.further}
        args = tuple(False if n in _FALSE_IN_FP64 else a for n, a in zip(names, args, strict=True))
        return self.results(self.operator(*args, **further), args, further)
