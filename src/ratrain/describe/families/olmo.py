"""OLMo (the first): LLaMA with layer norms that have neither weight nor bias."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.families.llama import ATTENTION, MLP, OUTSIDE, LlamaKeys, of_keys, to_keys
from ratrain.describe.family import Family, refuse
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import load
from ratrain.readers.place import Place

_EPSILON = 1e-5  # no key says it


@dataclass(frozen=True)
class _Olmo(LlamaKeys):
    clip_qkv: float | None = None


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Olmo, config, place, strict=False)
    clipped = ("clip_qkv", read.clip_qkv is not None, "clipping of queries, keys and values")
    refuse(place, [clipped], "use a model without it, as OLMo-1B and OLMo-7B are")
    return {
        **of_keys(read, place),
        "head_dim": None,
        "mlp_bias": False,
        "norm": "layer",
        "norm_weight": False,
        "norm_bias": False,
        "norm_epsilon": _EPSILON,
    }


def _write(model: ModelSpec) -> dict[str, Any]:
    return {**to_keys(model, "rms_norm_eps", "head_dim"), "attention_bias": model.qkv_bias}


FAMILY = Family(
    "olmo",
    "OlmoForCausalLM",
    "OLMo 1B, 7B (the first)",
    _read,
    _write,
    {**OUTSIDE, **ATTENTION, **MLP},
)
