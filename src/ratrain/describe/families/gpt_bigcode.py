"""StarCoder, SantaCoder: GPT-2 with one key head for all, and matrices as others hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.families import gpt2
from ratrain.describe.families.llama import Activation
from ratrain.describe.family import Family, Packed
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class _GptBigCode(gpt2.Gpt2Keys):
    activation_function: Activation = "gelu_pytorch_tanh"
    multi_query: bool = True


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_GptBigCode, config, place, strict=False)
    fields = gpt2.of_gpt2(read, place)
    return {**fields, "kv_heads": 1} if read.multi_query else fields


def _write(model: ModelSpec) -> dict[str, Any]:
    return {**gpt2.gpt2_keys(model), "multi_query": model.kv_heads == 1}


_QKV = Packed(gpt2.QKV.tensor, gpt2.QKV.of, by_head=True)

FAMILY = Family(
    "gpt_bigcode",
    "GPTBigCodeForCausalLM",
    "StarCoder, StarCoderBase, SantaCoder",
    _read,
    _write,
    {**gpt2.FAMILY.tensors, **dict.fromkeys(_QKV.of, _QKV)},
)
