"""A user's model: what makes its units, and how large it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ratrain.describe.model import ModelSpec
from ratrain.describe.own import FAMILY, OWN_MODELS, UnitCost
from ratrain.describe.own_units import OwnTensor, OwnUnits
from ratrain.errors import SpecError
from ratrain.models.own.modules import KINDS, module_at


@dataclass(frozen=True)
class OwnModel:
    """A decoder of one's own. Each of the three makes a module:

    first: called with token numbers [b, S] int64, gives [b, S, hidden]
    block: called with [b, S, hidden], gives the same; there are `layers` of them
    last: called with [b, S, hidden] and targets [b, S], gives each token's loss
    """

    first: Callable[[], nn.Module]
    block: Callable[[], nn.Module]
    last: Callable[[], nn.Module]
    layers: int
    hidden: int
    vocab: int  # token numbers are below it
    max_positions: int = 1 << 20  # tokens of a sequence at most

    def module(self, kind: str) -> nn.Module:
        """A new module of a unit."""
        return getattr(self, KINDS[kind])()

    @lru_cache(maxsize=8)  # noqa: B019 - models are declared once, for a process' life
    def spec(self, name: str) -> ModelSpec:
        """The model as jobs and plans have it."""
        units = OwnUnits(*(self._tensors(name, kind) for kind in KINDS))
        return ModelSpec(
            name=name,
            family=FAMILY,
            hidden=self.hidden,
            layers=self.layers,
            heads=1,
            kv_heads=1,
            head_dim=1,
            ffn=1,
            vocab=self.vocab,
            max_positions=self.max_positions,
            source=f"{self.block.__module__}",
            position="none",
            own=units,
        )

    @lru_cache(maxsize=512)  # noqa: B019
    def cost(self, kind: str, sequence: int, micro_batch: int, dtype: str) -> UnitCost:
        """What a unit takes, traced without computing anything."""
        from ratrain.models.own.traced import traced_cost  # a second, which ranks do without

        name = next(name for name, model in OWN_MODELS.items() if model is self)
        return traced_cost(self.spec(name), kind, sequence, micro_batch, dtype)

    def _tensors(self, name: str, kind: str) -> tuple[OwnTensor, ...]:
        try:
            with torch.device("meta"), _Unfilled():
                module = module_at(name, kind, self.module(kind))
        except (RuntimeError, NotImplementedError) as error:
            raise SpecError(
                f"its module cannot be made without values: {error}",
                place=f"model {name}, {KINDS[kind]}",
                fix="let no shape depend on what a tensor holds",
            ) from error
        return tuple(
            OwnTensor(path, tuple(each.shape) or (1,)) for path, each in module.named_parameters()
        )


_FILLING = frozenset(name for name in dir(nn.init) if name.endswith("_") and name[0] != "_")


class _Unfilled(TorchFunctionMode):
    """What fills tensors at random is left out: of those without memory it would import all of
    torch's compiler, in every rank."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        filled: Any = args[0] if args else kwargs.get("tensor")
        if getattr(func, "__name__", "") in _FILLING and filled.is_meta:
            return filled
        return func(*args, **kwargs)


def declare_model(name: str, model: OwnModel) -> None:
    """Makes a model known to jobs by a name."""
    OWN_MODELS.declare(name, model)
