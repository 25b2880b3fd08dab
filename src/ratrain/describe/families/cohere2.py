"""Cohere2 (Command-R7B, Command-A): Cohere with a window on three layers of four; the others do not
rotate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Count, Positions
from ratrain.describe.families.cohere import TENSORS, CohereKeys, cohere_keys, of_cohere
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec
from ratrain.describe.rotary import LayerType, check_types, windowed
from ratrain.describe.strict import load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class _Cohere2(CohereKeys):
    sliding_window: Positions | None = 4096
    sliding_window_pattern: Count = 4
    layer_types: tuple[LayerType, ...] | None = None


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Cohere2, config, place, strict=False)
    check_types(read.layer_types, read.num_hidden_layers, place)
    layers, every = range(read.num_hidden_layers), read.sliding_window_pattern
    types = read.layer_types or tuple(
        "sliding_attention" if (layer + 1) % every else "full_attention" for layer in layers
    )
    if read.sliding_window is None:  # no layer has a window then, and none rotates
        types = ("full_attention",) * len(layers)
    model = of_cohere(read, place)
    return {
        **model,
        **windowed(read.sliding_window, types, model),
        "unrotated_layers": tuple(i for i in layers if types[i] == "full_attention"),
    }


def _write(model: ModelSpec) -> dict[str, Any]:
    types = [
        "full_attention" if layer in model.unrotated_layers else "sliding_attention"
        for layer in range(model.layers)
    ]
    window = model.window or model.max_positions
    return {**cohere_keys(model), "sliding_window": window, "layer_types": types}


FAMILY = Family("cohere2", "Cohere2ForCausalLM", "Command-R7B, Command-A", _read, _write, TENSORS)
