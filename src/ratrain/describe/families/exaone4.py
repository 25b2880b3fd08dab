"""EXAONE 4: norms behind attention and MLP, and of queries and keys head by head; where there is a
window, layers without it do not rotate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Positions
from ratrain.describe.families import olmo2
from ratrain.describe.families.llama import Epsilon, LlamaKeys, of_keys, to_keys
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec
from ratrain.describe.rotary import LayerType, check_types, windowed
from ratrain.describe.strict import load
from ratrain.errors import SpecError
from ratrain.readers.place import Place


@dataclass(frozen=True)
class _Exaone4(LlamaKeys):
    rms_norm_eps: Epsilon = 1e-5
    sliding_window: Positions | None = 4096
    layer_types: tuple[LayerType, ...] | None = None


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Exaone4, config, place, strict=False)
    if read.sliding_window is not None and read.layer_types is None:
        raise SpecError(
            "a window without the types of layers",
            place=str(place.at("sliding_window")),
            fix="give layer_types one of full_attention and sliding_attention for each layer, or "
            "set sliding_window to null",
        )
    check_types(read.layer_types, read.num_hidden_layers, place)
    types = () if read.sliding_window is None else read.layer_types or ()
    model = {**of_keys(read, place), **olmo2.PIECES, "qk_norm": "head"}
    model |= dict.fromkeys(("qkv_bias", "output_bias"), False)
    return {
        **model,
        **windowed(read.sliding_window, types, model),
        "unrotated_layers": tuple(i for i, kind in enumerate(types) if kind == "full_attention"),
    }


def _write(model: ModelSpec) -> dict[str, Any]:
    plain = model.window is None and not model.unrotated_layers
    types = [
        "full_attention" if plain or layer in model.unrotated_layers else "sliding_attention"
        for layer in range(model.layers)
    ]
    window = None if plain else model.window or model.max_positions
    return {**to_keys(model), "sliding_window": window, "layer_types": types}


FAMILY = Family(
    "exaone4",
    "Exaone4ForCausalLM",
    "EXAONE 4.0 1.2B, 32B",
    _read,
    _write,
    olmo2.FAMILY.tensors,
)
