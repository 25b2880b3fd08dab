"""Arcee: LLaMA with an MLP without a gate, of squared ReLU."""

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
    Activation,
    Epsilon,
    LlamaKeys,
    biased_keys,
    of_keys,
)
from ratrain.describe.family import Family
from ratrain.describe.strict import load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class _Arcee(LlamaKeys):
    hidden_act: Activation = "relu2"
    rms_norm_eps: Epsilon = 1e-5
    max_position_embeddings: Positions = 4096


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    return {**of_keys(load(_Arcee, config, place, strict=False), place), "gated_mlp": False}


TENSORS = {
    **OUTSIDE,
    **ATTENTION,
    **NORMS,
    **{module: MLP[module] for module in ("mlp.up", "mlp.down")},
}

FAMILY = Family("arcee", "ArceeForCausalLM", "AFM-4.5B", _read, biased_keys, TENSORS)
