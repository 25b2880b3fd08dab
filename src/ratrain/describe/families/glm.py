"""GLM-4: LLaMA with biases on queries, keys and values, packed matrices, and half of each head
rotated in pairs of neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Fraction, Heads, Positions
from ratrain.describe.families.llama import (
    ATTENTION,
    MLP,
    NORMS,
    OUTSIDE,
    Epsilon,
    LlamaKeys,
    of_keys,
    to_keys,
)
from ratrain.describe.families.phi3 import GATE_UP
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class _Glm(LlamaKeys):
    num_key_value_heads: Heads | None = 2
    head_dim: Heads | None = 128
    max_position_embeddings: Positions = 131_072
    rms_norm_eps: Epsilon = 1.5625e-7
    partial_rotary_factor: Fraction | None = 0.5
    attention_bias: bool = True


def read_glm(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """The fields of a ModelSpec that GLM's keys say."""
    fields = of_keys(load(_Glm, config, place, strict=False), place)
    return {**fields, "output_bias": False, "mlp_bias": False, "rotary_pairs": True}


def write_glm(model: ModelSpec) -> dict[str, Any]:
    """GLM's keys of a model."""
    share = {"partial_rotary_factor": model.rotary_share}
    return {**to_keys(model), **share, "attention_bias": model.qkv_bias}


TENSORS = {
    **OUTSIDE,
    **ATTENTION,
    **dict.fromkeys(GATE_UP.of, GATE_UP),
    "mlp.down": MLP["mlp.down"],
    **NORMS,
}

FAMILY = Family("glm", "GlmForCausalLM", "GLM-4 9B (-hf)", read_glm, write_glm, TENSORS)
