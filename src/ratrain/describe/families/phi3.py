"""Phi-3, Phi-3.5-mini, Phi-4: LLaMA with packed matrices; some rotate a part of each head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Positions
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
from ratrain.describe.family import Family, Packed
from ratrain.describe.model import ModelSpec
from ratrain.describe.rotary import windowed
from ratrain.describe.strict import load
from ratrain.readers.place import Place

_QKV = Packed("model.layers.{}.self_attn.qkv_proj", ("attention.q", "attention.k", "attention.v"))
GATE_UP = Packed("model.layers.{}.mlp.gate_up_proj", ("mlp.gate", "mlp.up"))


@dataclass(frozen=True)
class _Phi3(LlamaKeys):
    max_position_embeddings: Positions = 4096
    rms_norm_eps: Epsilon = 1e-5
    sliding_window: Positions | None = None


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Phi3, config, place, strict=False)
    model = {**of_keys(read, place), "qkv_bias": False, "output_bias": False, "mlp_bias": False}
    return {**model, **windowed(read.sliding_window, (), model)}


def _write(model: ModelSpec) -> dict[str, Any]:
    keys = {**to_keys(model), "sliding_window": model.window}
    scaling = model.rope_scaling
    original = model.max_positions if scaling is None else scaling.original_positions
    return {**keys, "original_max_position_embeddings": original}


FAMILY = Family(
    "phi3",
    "Phi3ForCausalLM",
    "Phi-3, Phi-3.5-mini, Phi-4",
    _read,
    _write,
    {
        **OUTSIDE,
        **dict.fromkeys(_QKV.of, _QKV),
        "attention.output": ATTENTION["attention.output"],
        **dict.fromkeys(GATE_UP.of, GATE_UP),
        "mlp.down": MLP["mlp.down"],
        **NORMS,
    },
)
