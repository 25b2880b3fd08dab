"""Qwen3 (dense): queries and keys are normalised, head by head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratrain.describe.families.llama import QK_NORMS, TENSORS
from ratrain.describe.families.qwen2 import of_qwen, qwen_keys
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec
from ratrain.readers.place import Place

HEAD_DIM = 128  # where a config does not say it


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = of_qwen(config, place)
    return {**read, "head_dim": read["head_dim"] or HEAD_DIM, "qk_norm": "head"}


def _write(model: ModelSpec) -> dict[str, Any]:
    return {**qwen_keys(model), "attention_bias": model.qkv_bias}


FAMILY = Family(
    "qwen3", "Qwen3ForCausalLM", "Qwen3 (dense)", _read, _write, {**TENSORS, **QK_NORMS}
)
