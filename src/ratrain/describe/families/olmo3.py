"""OLMo 3: OLMo 2 with a window on three layers of four, where angles are not stretched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Positions
from ratrain.describe.families import olmo2
from ratrain.describe.families.llama import Epsilon, LlamaKeys, of_keys
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec
from ratrain.describe.rotary import (
    LayerRopes,
    LayerType,
    Theta,
    check_types,
    scaling_of,
    scaling_table,
    types_of,
    windowed,
)
from ratrain.describe.strict import load
from ratrain.readers.place import Place

_THETA = 500_000.0


@dataclass(frozen=True)
class _Olmo3(LlamaKeys):
    rms_norm_eps: Epsilon = 1e-5
    rope_theta: Theta = _THETA
    sliding_window: Positions | None = 4096
    layer_types: tuple[LayerType, ...] | None = None


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    own = {key: value for key, value in config.items() if key != "rope_parameters"}
    read = load(_Olmo3, own, place, strict=False)
    ropes = load(LayerRopes, config.get("rope_parameters") or {}, place, strict=False)
    check_types(read.layer_types, read.num_hidden_layers, place)
    types = read.layer_types or tuple(
        "sliding_attention" if (layer + 1) % 4 else "full_attention"
        for layer in range(read.num_hidden_layers)
    )
    full, local = ropes.full_attention, ropes.sliding_attention
    theta = (full and full.rope_theta) or read.rope_theta
    scaling = scaling_of(read.rope_scaling or full, read.max_position_embeddings, place)
    local_theta = (local and local.rope_theta) or read.rope_theta
    model = {
        **of_keys(read, place),
        **olmo2.PIECES,
        "rope_theta": theta,
        "rope_scaling": scaling,
        "local_rope_theta": None if scaling is None and local_theta == theta else local_theta,
    }
    model |= windowed(read.sliding_window, types, model)
    return model if model["window"] is not None else {**model, "local_rope_theta": None}


def _write(model: ModelSpec) -> dict[str, Any]:
    keys = {**olmo2.write(model), "sliding_window": model.window or model.max_positions}
    keys["layer_types"] = types_of(model)
    local = model.local_rope_theta or model.rope_theta
    if model.rope_theta == local == _THETA:
        return keys
    # Of one angle for all layers, Transformers 5 tells only those without a window.
    full = {"rope_type": "default", **(scaling_table(model) or {}), "rope_theta": model.rope_theta}
    ropes = {
        "full_attention": full,
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }
    others = {key: keys[key] for key in keys if key not in ("rope_scaling", "rope_theta")}
    return {**others, "rope_parameters": ropes}


FAMILY = Family("olmo3", "Olmo3ForCausalLM", "OLMo 3", _read, _write, olmo2.FAMILY.tensors)
