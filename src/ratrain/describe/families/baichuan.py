"""Baichuan2. The 13B model (hidden 5120) uses ALiBi, the 7B model RoPE; only Baichuan2 (vocabulary
125,696) normalises its head: arXiv 2309.10305. The published configs say neither;
`position_embedding` and `norm_head` say it where they are given, as in files we write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ratrain.describe.amounts import Positions
from ratrain.describe.families.llama import TENSORS, LlamaKeys, of_keys, to_keys
from ratrain.describe.family import Family, Packed
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import load
from ratrain.readers.place import Place

_PACKED = Packed("model.layers.{}.self_attn.W_pack", ("attention.q", "attention.k", "attention.v"))


@dataclass(frozen=True)
class _Baichuan(LlamaKeys):
    model_max_length: Positions | None = None
    position_embedding: Literal["ROPE", "ALIBI", "rope", "alibi"] | None = None
    norm_head: bool | None = None


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Baichuan, config, place, strict=False)
    usual = "alibi" if read.hidden_size >= 5120 else "rope"
    normed = read.vocab_size == 125696 if read.norm_head is None else read.norm_head
    return {
        **of_keys(read, place),
        "kv_heads": read.num_attention_heads,
        "head_dim": None,
        **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), False),
        "max_positions": read.model_max_length or read.max_position_embeddings,
        "position": (read.position_embedding or usual).lower(),
        "norm_head": normed,
    }


def _write(model: ModelSpec) -> dict[str, Any]:
    extra = {"position_embedding": model.position.upper(), "norm_head": model.norm_head}
    return {**to_keys(model), **extra, "model_max_length": model.max_positions}


FAMILY = Family(
    "baichuan",
    "BaichuanForCausalLM",
    "Baichuan2-7B and -13B",
    _read,
    _write,
    {**TENSORS, **dict.fromkeys(_PACKED.of, _PACKED)},
)
