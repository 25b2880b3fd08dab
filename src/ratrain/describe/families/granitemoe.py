"""Granite with experts: its four multipliers, and experts of which a token's have weights that add
up to one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Count
from ratrain.describe.families.granite import GraniteKeys, granite_keys, of_granite
from ratrain.describe.families.llama import ATTENTION, NORMS, OUTSIDE
from ratrain.describe.families.mixtral import ExpertKeys, balance_keys, balance_of, experts_of
from ratrain.describe.family import Family, Packed
from ratrain.describe.model import Experts, ModelSpec
from ratrain.describe.strict import load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class GraniteMoeKeys(GraniteKeys, ExpertKeys):
    """What Granite's models with experts say, with one that all tokens share or without."""

    num_local_experts: Count = 8


def of_granite_moe(read: GraniteMoeKeys, place: Place) -> dict[str, Any]:
    """The fields of a ModelSpec that they say."""
    return {
        **of_granite(read, place),
        "mlp_bias": False,
        "experts": experts_of(read.num_local_experts, read, place, normalised=True),
        "balance_loss": balance_of(read),
    }


def granite_moe_keys(model: ModelSpec) -> dict[str, Any]:
    """Those keys of a model."""
    experts = model.experts or Experts(1, 1)  # a model without any reads as another then
    return {
        **granite_keys(model),
        **balance_keys(model),
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.chosen,
    }


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    return of_granite_moe(load(GraniteMoeKeys, config, place, strict=False), place)


_SPARSE = "model.layers.{}.block_sparse_moe"
_GATE_UP = Packed(f"{_SPARSE}.input_linear.weight", ("experts.gate", "experts.up"))
TENSORS = {
    **OUTSIDE,
    **ATTENTION,
    **NORMS,
    "mlp.router": f"{_SPARSE}.router.layer",
    **dict.fromkeys(_GATE_UP.of, _GATE_UP),
    "experts.down": f"{_SPARSE}.output_linear.weight",
}

FAMILY = Family(
    "granitemoe",
    "GraniteMoeForCausalLM",
    "Granite 3.x 1B-A400M, 3B-A800M",
    _read,
    granite_moe_keys,
    TENSORS,
)
