"""Granite: LLaMA with four multipliers, of embeddings, scores, residuals and logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.families.llama import TENSORS, LlamaKeys, biased_keys, of_keys
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec, Positive
from ratrain.describe.strict import load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class GraniteKeys(LlamaKeys):
    """Granite's keys; those of its models with experts are more."""

    embedding_multiplier: Positive = 1.0
    attention_multiplier: Positive = 1.0
    residual_multiplier: Positive = 1.0
    logits_scaling: Positive = 1.0


def of_granite(read: GraniteKeys, place: Place) -> dict[str, Any]:
    """The fields of a ModelSpec that they say."""
    head_dim = read.head_dim or read.hidden_size / read.num_attention_heads
    usual = read.attention_multiplier == head_dim**-0.5
    return {
        **of_keys(read, place),
        "embedding_multiplier": None
        if read.embedding_multiplier == 1
        else read.embedding_multiplier,
        "attention_scale": None if usual else read.attention_multiplier,
        "residual_multiplier": read.residual_multiplier,
        "logits_divisor": read.logits_scaling,
    }


def granite_keys(model: ModelSpec) -> dict[str, Any]:
    """Those keys of a model."""
    return {
        **biased_keys(model),
        "embedding_multiplier": model.embedding_multiplier or 1.0,
        "attention_multiplier": model.attention_scale or model.head_dim**-0.5,
        "residual_multiplier": model.residual_multiplier,
        "logits_scaling": model.logits_divisor,
    }


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    return of_granite(load(GraniteKeys, config, place, strict=False), place)


FAMILY = Family(
    "granite", "GraniteForCausalLM", "Granite 3.x, dense: 2B, 8B", _read, granite_keys, TENSORS
)
