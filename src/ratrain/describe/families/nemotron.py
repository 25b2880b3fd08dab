"""Nemotron, Minitron: an MLP without a gate, of squared ReLU, layer norms by 1 + their weight, and
heads rotated in part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Fraction, Positions
from ratrain.describe.families.arcee import TENSORS
from ratrain.describe.families.llama import Activation, Epsilon, LlamaKeys, biased_keys, of_keys
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class _Nemotron(LlamaKeys):
    hidden_act: Activation = "relu2"
    norm_eps: Epsilon = 1e-5
    max_position_embeddings: Positions = 4096
    partial_rotary_factor: Fraction | None = 0.5


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Nemotron, config, place, strict=False)
    return {
        **of_keys(read, place),
        "gated_mlp": False,
        "norm": "layer",
        "norm_plus_one": True,
        "norm_epsilon": read.norm_eps,
    }


def _write(model: ModelSpec) -> dict[str, Any]:
    share = {"partial_rotary_factor": model.rotary_share}
    return {**biased_keys(model, "rms_norm_eps"), **share, "norm_eps": model.norm_epsilon}


FAMILY = Family(
    "nemotron",
    "NemotronForCausalLM",
    "Minitron 4B, 8B, Nemotron-4 15B, 340B",
    _read,
    _write,
    TENSORS,
)
