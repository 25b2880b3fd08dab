"""Mistral: LLaMA with a sliding window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Heads, Positions
from ratrain.describe.families.llama import TENSORS, LlamaKeys, of_keys, to_keys
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec
from ratrain.describe.rotary import windowed
from ratrain.describe.strict import load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class _Mistral(LlamaKeys):
    num_key_value_heads: Heads | None = None
    sliding_window: Positions | None = 4096


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Mistral, config, place, strict=False)
    model = {**of_keys(read, place), "qkv_bias": False, "output_bias": False, "mlp_bias": False}
    return {**model, **windowed(read.sliding_window, (), model)}


def _write(model: ModelSpec) -> dict[str, Any]:
    return {**to_keys(model), "sliding_window": model.window}


FAMILY = Family(
    "mistral", "MistralForCausalLM", "Mistral 7B, Mistral Nemo, Zephyr", _read, _write, TENSORS
)
