"""ERNIE 4.5, dense: LLaMA whose heads rotate in pairs of neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Heads, Positions
from ratrain.describe.families.llama import TENSORS, Epsilon, LlamaKeys, of_keys, to_keys
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec
from ratrain.describe.rotary import Theta
from ratrain.describe.strict import load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class _Ernie(LlamaKeys):
    num_key_value_heads: Heads | None = 2
    head_dim: Heads | None = 128
    max_position_embeddings: Positions = 131_072
    rms_norm_eps: Epsilon = 1e-5
    rope_theta: Theta = 500_000.0
    tie_word_embeddings: bool = True
    use_bias: bool = False


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Ernie, config, place, strict=False)
    biases = dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), read.use_bias)
    return {**of_keys(read, place), **biases, "rotary_pairs": True}


def _write(model: ModelSpec) -> dict[str, Any]:
    return {**to_keys(model), "use_bias": model.qkv_bias}


FAMILY = Family("ernie4_5", "Ernie4_5ForCausalLM", "ERNIE 4.5 0.3B, dense", _read, _write, TENSORS)
