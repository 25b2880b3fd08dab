"""Gemma (the first): norms that multiply by 1 + their weight, a scaled embedding, GeGLU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Heads, Positions
from ratrain.describe.families.llama import TENSORS, Activation, LlamaKeys, of_keys, to_keys
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import load
from ratrain.readers.place import Place

PIECES = {"norm_plus_one": True, "scaled_embedding": True, "mlp_bias": False}


@dataclass(frozen=True)
class _Gemma(LlamaKeys):
    head_dim: Heads | None = 256
    max_position_embeddings: Positions = 8192
    hidden_act: Activation = "gelu_pytorch_tanh"
    tie_word_embeddings: bool = True


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    return {**of_keys(load(_Gemma, config, place, strict=False), place), **PIECES}


def _write(model: ModelSpec) -> dict[str, Any]:
    activation = {"hidden_activation": model.activation}
    return {**to_keys(model), **activation, "attention_bias": model.qkv_bias}


FAMILY = Family("gemma", "GemmaForCausalLM", "Gemma 1", _read, _write, TENSORS)
