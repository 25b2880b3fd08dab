"""Qwen2 and Qwen2.5: biases on queries, keys and values; a window on upper layers, if at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Natural, Positions
from ratrain.describe.families.llama import TENSORS, LlamaKeys, of_keys, to_keys
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec
from ratrain.describe.rotary import LayerType, check_types, types_of, windowed
from ratrain.describe.strict import load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class QwenKeys(LlamaKeys):
    """Qwen's keys beside LLaMA's."""

    use_sliding_window: bool = False
    sliding_window: Positions | None = 4096
    max_window_layers: Natural = 28
    layer_types: tuple[LayerType, ...] | None = None


def of_qwen(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """The fields of a ModelSpec that Qwen's keys say."""
    read = load(QwenKeys, config, place, strict=False)
    model = of_keys(read, place)
    check_types(read.layer_types, read.num_hidden_layers, place)
    types = read.layer_types or tuple(
        "full_attention" if layer < read.max_window_layers else "sliding_attention"
        for layer in range(read.num_hidden_layers)
    )
    window = read.sliding_window if read.use_sliding_window else None
    return {**model, "mlp_bias": False, **windowed(window, types, model)}


def qwen_keys(model: ModelSpec) -> dict[str, Any]:
    """The keys of a model beside its biases."""
    window: dict[str, Any] = {"use_sliding_window": model.window is not None}
    if model.window is not None:
        window |= {"sliding_window": model.window, "layer_types": types_of(model)}
    return {**to_keys(model), **window}


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    return {**of_qwen(config, place), "qkv_bias": True, "output_bias": False}


FAMILY = Family("qwen2", "Qwen2ForCausalLM", "Qwen2, Qwen2.5", _read, qwen_keys, TENSORS)
