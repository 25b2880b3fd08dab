"""Models made of a user's own modules: what is known of one without torch, and who declares them.

Such a model is a first unit, blocks that are alike, and a last unit. Its code is declared by a
plugin or a module that the environment names (docs/how-to/own-blocks.md); a job says its name.
Files hold its parameters' names and shapes: what checkpoints depend on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ratrain.describe.own_units import FIRST, LAST
from ratrain.plugins import Registry

if TYPE_CHECKING:
    from ratrain.describe.model import ModelSpec

FAMILY = "own"
"""What stands where other models have the name of their family."""


@dataclass(frozen=True)
class Work:
    """What a pass through a unit computes and moves."""

    gemm_flops: float
    attention_flops: float
    moved_bytes: float  # read and written by all that is no product
    kernels: int

    def times(self, factor: float) -> Work:
        """The same of more tokens, in as many kernels."""
        flops, attention = self.gemm_flops * factor, self.attention_flops * factor
        return Work(flops, attention, self.moved_bytes * factor, self.kernels)


@dataclass(frozen=True)
class UnitCost:
    """What a unit takes for one micro-batch. `kept_bytes`: what autograd keeps for backward,
    without the unit's input; `scratch_bytes`: what a pass holds at once besides that and its
    output."""

    kept_bytes: int
    scratch_bytes: int
    forward: Work
    backward: Work


class OwnModel(Protocol):
    """What declares a model (`ratrain.models.own`)."""

    def spec(self, name: str) -> ModelSpec:
        """The model as jobs and plans have it."""
        ...

    def module(self, kind: str) -> Any:
        """A new module of a unit: "embedding" (the first), "layer" or "head" (the last)."""
        ...

    def cost(self, kind: str, sequence: int, micro_batch: int, dtype: str) -> UnitCost:
        """What a unit takes."""
        ...


OWN_MODELS: Registry[OwnModel] = Registry("model")


def kind_of(unit: str) -> str:
    """The kind of unit "e", "0" .. "L-1" or "h"."""
    return {FIRST: "embedding", LAST: "head"}.get(unit, "layer")


def name_in_files(unit: str, parameter: str) -> str:
    """What an exported folder calls a parameter."""
    return f"{ {FIRST: 'first', LAST: 'last'}.get(unit, f'blocks.{unit}') }.{parameter}"


def own_cost(
    model: ModelSpec, kind: str, sequence: int, micro_batch: int = 1, dtype: str = "bf16"
) -> UnitCost:
    """The `UnitCost` of a unit of a model of one's own."""
    return OWN_MODELS[model.name].cost(kind, sequence, micro_batch, dtype)
