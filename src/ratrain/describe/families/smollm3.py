"""SmolLM3: LLaMA with layers that do not rotate queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Count, Heads, Natural, Positions
from ratrain.describe.families.llama import TENSORS, LlamaKeys, biased_keys, of_keys
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec
from ratrain.describe.rotary import LayerType, Theta, check_types, types_of, windowed
from ratrain.describe.strict import load
from ratrain.errors import SpecError
from ratrain.readers.place import Place


@dataclass(frozen=True)
class _SmolLM3(LlamaKeys):
    num_key_value_heads: Heads | None = 4
    max_position_embeddings: Positions = 32768
    rope_theta: Theta = 2_000_000.0
    use_sliding_window: bool = False
    sliding_window: Positions | None = None
    no_rope_layers: tuple[Natural, ...] | None = None  # 0: of a layer that does not rotate
    no_rope_layer_interval: Count = 4
    layer_types: tuple[LayerType, ...] | None = None
    tie_word_embeddings: bool = True


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_SmolLM3, config, place, strict=False)
    layers, every = range(read.num_hidden_layers), read.no_rope_layer_interval
    rotates = read.no_rope_layers or tuple(int((layer + 1) % every != 0) for layer in layers)
    if len(rotates) < len(layers):
        raise SpecError(
            f"{len(rotates)} entries for {len(layers)} layers",
            place=str(place.at("no_rope_layers")),
            fix="give one for each layer",
        )
    check_types(read.layer_types, read.num_hidden_layers, place)
    types = read.layer_types or tuple(
        "full_attention" if rotates[layer] else "sliding_attention" for layer in layers
    )
    model = of_keys(read, place)
    window = read.sliding_window if read.use_sliding_window else None
    return {
        **model,
        "unrotated_layers": tuple(layer for layer in layers if not rotates[layer]),
        **windowed(window, types, model),
    }


def _write(model: ModelSpec) -> dict[str, Any]:
    window: dict[str, Any] = {"use_sliding_window": model.window is not None}
    if model.window is not None:
        window |= {"sliding_window": model.window, "layer_types": types_of(model)}
    return {
        **biased_keys(model),
        **window,
        "no_rope_layers": [int(i not in model.unrotated_layers) for i in range(model.layers)],
    }


FAMILY = Family("smollm3", "SmolLM3ForCausalLM", "SmolLM3-3B", _read, _write, TENSORS)
