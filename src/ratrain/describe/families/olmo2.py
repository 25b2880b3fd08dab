"""OLMo 2: norms behind attention and MLP, and of queries and keys over their whole width."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.families.llama import (
    ATTENTION,
    MLP,
    OUTSIDE,
    QK_NORMS,
    Epsilon,
    LlamaKeys,
    of_keys,
    to_keys,
)
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import load
from ratrain.readers.place import Place

PIECES = {"mlp_bias": False, "norm_places": "after", "qk_norm": "width"}
"""What OLMo 2 and 3 have beside LLaMA."""


@dataclass(frozen=True)
class _Olmo2(LlamaKeys):
    rms_norm_eps: Epsilon = 1e-5


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    return {**of_keys(load(_Olmo2, config, place, strict=False), place), **PIECES}


def write(model: ModelSpec) -> dict[str, Any]:
    """The keys of a model, its window aside."""
    return {**to_keys(model), "attention_bias": model.qkv_bias}


FAMILY = Family(
    "olmo2",
    "Olmo2ForCausalLM",
    "OLMo 2",
    _read,
    write,
    {
        **OUTSIDE,
        **ATTENTION,
        **QK_NORMS,
        **MLP,
        "attention.norm": "model.layers.{}.post_attention_layernorm",
        "mlp.norm": "model.layers.{}.post_feedforward_layernorm",
    },
)
