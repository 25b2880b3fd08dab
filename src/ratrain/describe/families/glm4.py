"""GLM-4-0414 and GLM-Z1: GLM with norms behind attention and MLP too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratrain.describe.families.glm import TENSORS, read_glm, write_glm
from ratrain.describe.family import Family
from ratrain.readers.place import Place


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    return {**read_glm(config, place), "norm_places": "both"}


FAMILY = Family(
    "glm4",
    "Glm4ForCausalLM",
    "GLM-4-0414, GLM-Z1: 9B, 32B",
    _read,
    write_glm,
    {
        **TENSORS,
        "attention.norm": "model.layers.{}.post_self_attn_layernorm",
        "mlp.norm": "model.layers.{}.post_mlp_layernorm",
    },
)
