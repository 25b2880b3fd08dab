"""Seed-OSS: LLaMA with biases on queries, keys and values, and on attention's output by choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Heads, Positions
from ratrain.describe.families.llama import TENSORS, LlamaKeys, of_keys, to_keys
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class _SeedOss(LlamaKeys):
    head_dim: Heads | None = 128
    num_key_value_heads: Heads | None = 8
    max_position_embeddings: Positions = 524_288
    attention_bias: bool = True
    attention_out_bias: bool = False


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_SeedOss, config, place, strict=False)
    return {**of_keys(read, place), "output_bias": read.attention_out_bias}


def _write(model: ModelSpec) -> dict[str, Any]:
    return {
        **to_keys(model),
        "attention_bias": model.qkv_bias,
        "attention_out_bias": model.output_bias,
        "mlp_bias": model.mlp_bias,
    }


FAMILY = Family("seed_oss", "SeedOssForCausalLM", "Seed-OSS-36B", _read, _write, TENSORS)
