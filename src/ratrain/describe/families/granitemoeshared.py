"""Granite with experts, and beside them an MLP that every token has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from ratrain.describe.families.granitemoe import (
    TENSORS,
    GraniteMoeKeys,
    granite_moe_keys,
    of_granite_moe,
)
from ratrain.describe.family import Family, Packed
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import Rule, load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class _GraniteMoeShared(GraniteMoeKeys):
    shared_intermediate_size: Annotated[int, Rule(low=0, high=1 << 24)] = 0


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_GraniteMoeShared, config, place, strict=False)
    return {**of_granite_moe(read, place), "shared_expert": read.shared_intermediate_size or None}


def _write(model: ModelSpec) -> dict[str, Any]:
    return {**granite_moe_keys(model), "shared_intermediate_size": model.shared_expert or 0}


_SHARED = "model.layers.{}.shared_mlp"
_GATE_UP = Packed(f"{_SHARED}.input_linear", ("mlp.gate", "mlp.up"))

FAMILY = Family(
    "granitemoeshared",
    "GraniteMoeSharedForCausalLM",
    "Granite with a shared expert",
    _read,
    _write,
    {
        **TENSORS,
        **dict.fromkeys(_GATE_UP.of, _GATE_UP),
        "mlp.down": f"{_SHARED}.output_linear",
    },
)
