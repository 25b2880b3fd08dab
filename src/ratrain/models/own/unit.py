"""A user's module as a unit: its parameters are windows on a flat view, gradients go to the
`Weights` as backward makes them, and what autograd keeps of a weight is only where it is: the view
may lie elsewhere in backward.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from ratrain.describe.model import ModelSpec
from ratrain.describe.own import kind_of
from ratrain.errors import SpecError
from ratrain.models.functions.differentiable import differentiable
from ratrain.models.functions.dropout import drawing
from ratrain.models.micro_batch import MicroBatch
from ratrain.models.own.modules import KINDS, shared_module
from ratrain.models.parameters import UnitParameters
from ratrain.models.weights import Weights


@dataclass(frozen=True)
class OwnUnit:
    """The first unit maps tokens to [b, S, h], blocks that to the same, the last one that and
    targets to each token's loss, [b, S] or [b x S]: 0 where a target is -100."""

    layout: UnitParameters
    model: str
    kind: str
    hidden: int
    name: str
    made: nn.Module | None = None  # what is called; None: as its model says

    def forward(self, weights: Weights, x: Tensor, batch: MicroBatch) -> Tensor:
        keeps = _kept_by_place(weights) if torch.is_grad_enabled() else nullcontext()
        with drawing(batch.drawn, self.name), keeps:
            output = self._called(weights, x, batch)
            return output.sum(dtype=torch.float32) if self.kind == "head" else output

    def _called(self, weights: Weights, x: Tensor, batch: MicroBatch) -> Tensor:
        given = {
            name: differentiable(_Parameter, x, weights, name)
            if torch.is_grad_enabled() and parameter.trained
            else weights[name]
            for name, parameter in self.layout.by_name.items()
        }
        module = self._module(weights)
        if self.kind == "embedding":
            output = functional_call(module, given, (batch.tokens,))
            output = self._checked(output, (*batch.tokens.shape, self.hidden))
            return output if output.requires_grad else differentiable(_After, x, output)
        if self.kind == "layer":
            return self._checked(functional_call(module, given, (x,)), tuple(x.shape))
        losses = functional_call(module, given, (x, batch.targets))
        if isinstance(losses, Tensor) and losses.shape == batch.targets.shape:
            return losses
        return self._checked(losses, (batch.targets.numel(),))

    def logits(self, weights: Weights, x: Tensor) -> Tensor:
        """[b, S, V], not differentiable: what the last unit's module has a method `logits` for."""
        module = self._module(weights)
        if not hasattr(module, "logits"):
            raise SpecError(
                "has no method `logits`, which texts are sampled from",
                place=f"model {self.model}, last",
                fix="give it one: from [batch, tokens, hidden] to [batch, tokens, vocabulary]",
            )
        given = {name: weights[name] for name in self.layout.by_name}
        with torch.no_grad():
            return functional_call(_Logits(module), {f"of.{n}": w for n, w in given.items()}, (x,))

    def _module(self, weights: Weights) -> nn.Module:
        flat = next(each for each in weights.flats if each is not None)
        return self.made or shared_module(self.model, self.kind, flat.device, flat.dtype)

    def _checked(self, output: Any, shape: tuple[int, ...]) -> Tensor:
        if isinstance(output, Tensor) and tuple(output.shape) == shape:
            return output
        what = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise SpecError(
            f"gives {what} where {shape} is wanted",
            place=f"model {self.model}, {KINDS[self.kind]}",
            fix='give each token\'s loss: cross_entropy(..., reduction="none")'
            if self.kind == "head"
            else "give [batch, tokens, hidden]",
        )


def own_unit(spec: ModelSpec, name: str, layout: UnitParameters) -> OwnUnit:
    """Unit "e", "0" .. "L-1" or "h" of a user's model."""
    return OwnUnit(layout, spec.name, kind_of(name), spec.hidden, name)


class _Logits(nn.Module):
    """A module's `logits` as what calling it does."""

    def __init__(self, of: nn.Module) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: Tensor) -> Tensor:
        return self.of.logits(x)  # pyright: ignore


class _Parameter(Function):
    """apply(x, weights, name) -> a parameter, whose gradient goes to the weights. `x`: a leaf, so
    that the way to the parameter is gone when the leaf's gradient is asked for."""

    @staticmethod
    def forward(ctx: Any, _x: Tensor, weights: Weights, name: str) -> Tensor:
        ctx.weights, ctx.name = weights, name
        return weights[name].detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        ctx.weights.add(ctx.name, grads[0])
        return None, None, None


class _After(Function):
    """apply(x, output) -> output, as if it depended on x."""

    @staticmethod
    def forward(_ctx: Any, _x: Tensor, output: Tensor) -> Tensor:
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:  # noqa: ARG004
        return None, None


class _Place(NamedTuple):
    """Where a window on a unit's weights is."""

    frozen: bool
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]


def _kept_by_place(weights: Weights) -> AbstractContextManager[Any]:
    """What autograd keeps inside, but for the weights: of those it keeps where they are."""
    storages = [flat is not None and _storage(flat) for flat in weights.flats]

    def pack(tensor: Tensor) -> Tensor | _Place:
        for number, flat in enumerate(weights.flats):
            if flat is not None and storages[number] == _storage(tensor):
                offset = int(tensor.storage_offset() - flat.storage_offset())
                return _Place(bool(number), offset, tensor.shape, tensor.stride())
        return tensor

    def unpack(kept: Tensor | _Place) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        flat = weights.flats[kept.frozen]
        assert flat is not None, "weights are read where none are attached"
        return flat.as_strided(kept.shape, kept.stride, flat.storage_offset() + kept.offset)

    return saved_tensors_hooks(pack, unpack)


def _storage(tensor: Tensor) -> int:
    """Which memory a tensor lies in."""
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]
