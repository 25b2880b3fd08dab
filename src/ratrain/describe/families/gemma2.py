"""Gemma 2: norms before and after, every second layer with a window, soft caps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Heads, Positions
from ratrain.describe.families.gemma import PIECES
from ratrain.describe.families.llama import ATTENTION, MLP, OUTSIDE, Activation, LlamaKeys, of_keys
from ratrain.describe.families.llama import to_keys as llama_keys
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec, Positive
from ratrain.describe.rotary import LayerType, check_types, types_of, windowed
from ratrain.describe.strict import load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class GemmaKeys(LlamaKeys):
    """The keys of Gemma 2; those of Gemma 3, some with other defaults."""

    head_dim: Heads | None = 256
    max_position_embeddings: Positions = 8192
    hidden_activation: Activation = "gelu_pytorch_tanh"
    tie_word_embeddings: bool = True
    query_pre_attn_scalar: Positive = 256
    sliding_window: Positions | None = 4096
    layer_types: tuple[LayerType, ...] | None = None
    final_logit_softcapping: Positive | None = 30.0
    attn_logit_softcapping: Positive | None = 50.0


def of_gemma(
    read: GemmaKeys, place: Place, every: int, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The fields of a ModelSpec that Gemma's keys say; every so many layers are without a window,
    where the keys do not say which."""
    model = {**of_keys(read, place), **PIECES, **(more or {})}
    check_types(read.layer_types, read.num_hidden_layers, place)
    types = read.layer_types or tuple(
        "sliding_attention" if (layer + 1) % every else "full_attention"
        for layer in range(read.num_hidden_layers)
    )
    usual = read.query_pre_attn_scalar == read.head_dim
    return {
        **model,
        "activation": read.hidden_activation,
        "norm_places": "both",
        "attention_scale": None if usual else read.query_pre_attn_scalar**-0.5,
        "attention_softcap": read.attn_logit_softcapping,
        "logit_softcap": read.final_logit_softcapping,
        **windowed(read.sliding_window, types, model),
    }


def to_gemma(model: ModelSpec) -> dict[str, Any]:
    """Gemma's keys of a model."""
    scale = model.attention_scale
    return {
        **llama_keys(model, "hidden_act"),
        "hidden_activation": model.activation,
        "attention_bias": model.qkv_bias,
        "query_pre_attn_scalar": model.head_dim if scale is None else round(scale**-2),
        "sliding_window": model.window or model.max_positions,
        "layer_types": types_of(model),
        "final_logit_softcapping": model.logit_softcap,
        "attn_logit_softcapping": model.attention_softcap,
    }


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    return of_gemma(load(GemmaKeys, config, place, strict=False), place, 2)


TENSORS = {
    **OUTSIDE,
    **ATTENTION,
    **MLP,
    "norm1": "model.layers.{}.input_layernorm",
    "attention.norm": "model.layers.{}.post_attention_layernorm",
    "norm2": "model.layers.{}.pre_feedforward_layernorm",
    "mlp.norm": "model.layers.{}.post_feedforward_layernorm",
}

FAMILY = Family("gemma2", "Gemma2ForCausalLM", "Gemma 2", _read, to_gemma, TENSORS)
