"""Gemma 3, text: Gemma 2 with normalised queries and keys, and rotary angles of their own in layers
with a window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Count, Positions
from ratrain.describe.families.gemma2 import TENSORS, GemmaKeys, of_gemma, to_gemma
from ratrain.describe.families.llama import QK_NORMS
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec, Positive
from ratrain.describe.rotary import LayerRopes, Theta, scaling_of
from ratrain.describe.strict import load
from ratrain.errors import SpecError
from ratrain.readers.place import Place


@dataclass(frozen=True)
class _Gemma3(GemmaKeys):
    max_position_embeddings: Positions = 131_072
    final_logit_softcapping: Positive | None = None
    attn_logit_softcapping: Positive | None = None
    rope_theta: Theta = 1e6
    rope_local_base_freq: Theta = 1e4
    sliding_window_pattern: Count = 6
    use_bidirectional_attention: bool | None = None


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    own = {key: value for key, value in config.items() if key != "rope_parameters"}
    read = load(_Gemma3, own, place, strict=False)
    ropes = load(LayerRopes, config.get("rope_parameters") or {}, place, strict=False)
    if read.use_bidirectional_attention:
        raise SpecError(
            "attention to later tokens is not supported",
            place=str(place.at("use_bidirectional_attention")),
            fix="use a model that generates text",
        )
    full, local = ropes.full_attention, ropes.sliding_attention
    table, positions = read.rope_scaling or full, read.max_position_embeddings
    more = {
        "qk_norm": "head",
        "rope_theta": (full and full.rope_theta) or read.rope_theta,
        "rope_scaling": scaling_of(table, positions, place),
        "local_rope_theta": (local and local.rope_theta) or read.rope_local_base_freq,
    }
    fields = of_gemma(read, place, read.sliding_window_pattern, more)
    return fields if fields["window"] is not None else {**fields, "local_rope_theta": None}


def _write(model: ModelSpec) -> dict[str, Any]:
    return {**to_gemma(model), "rope_local_base_freq": model.local_rope_theta or 1e4}


FAMILY = Family(
    "gemma3_text",
    "Gemma3ForCausalLM",
    "Gemma 3, text only: 270M and 1B",
    _read,
    _write,
    {**TENSORS, **QK_NORMS},
)
