"""Falcon: attention and MLP read one layer norm (some small ones norms of their own, in turn), few
key heads, and queries, keys and values packed by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Heads, Layers, Positions, WideWidth, Width
from ratrain.describe.families.gpt2 import GPT
from ratrain.describe.families.llama import Activation, Epsilon
from ratrain.describe.family import Family, Packed, fields_of, keys_of, refuse
from ratrain.describe.model import ModelSpec
from ratrain.describe.rotary import Rope, Theta, scaling_of, scaling_table
from ratrain.describe.strict import load
from ratrain.readers.place import Place

_KEYS = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
    "max_positions": "max_position_embeddings",
    "activation": "activation",
    "norm_epsilon": "layer_norm_epsilon",
    "qkv_bias": "bias",
    "tied_embeddings": "tie_word_embeddings",
}


@dataclass(frozen=True)
class _Falcon:
    hidden_size: Width
    num_hidden_layers: Layers
    num_attention_heads: Heads
    vocab_size: WideWidth
    num_kv_heads: Heads | None = None
    ffn_hidden_size: WideWidth | None = None
    max_position_embeddings: Positions = 2048
    activation: Activation = "gelu"
    layer_norm_epsilon: Epsilon = 1e-5
    rope_theta: Theta = 10000.0
    rope_parameters: Rope | None = None
    rope_scaling: Rope | None = None
    alibi: bool = False
    bias: bool = False
    multi_query: bool = True
    parallel_attn: bool = True
    new_decoder_architecture: bool = False
    num_ln_in_parallel_attn: int | None = None
    tie_word_embeddings: bool = True


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Falcon, config, place, strict=False)
    new, inner = read.new_decoder_architecture, read.rope_parameters
    two = (new or read.parallel_attn) and (read.num_ln_in_parallel_attn or 1 + new) == 2
    cases = (
        ("alibi", read.alibi, "a Falcon with ALiBi"),
        ("num_ln_in_parallel_attn", two, "a Falcon with two norms of the same input"),
    )
    refuse(place, cases, "use Falcon 7B or Falcon2 11B, or Falcon3, whose model_type is llama")
    every = read.num_kv_heads or read.num_attention_heads
    parallel = new or read.parallel_attn
    return {
        **GPT,
        **fields_of(read, _KEYS),
        **dict.fromkeys(("output_bias", "mlp_bias"), read.bias),
        **dict.fromkeys(("parallel_residual", "shared_norm"), parallel),
        "kv_heads": 1 if read.multi_query and not new else every,
        "head_dim": None,
        "ffn": read.ffn_hidden_size or 4 * read.hidden_size,
        "rope_theta": (inner and inner.rope_theta) or read.rope_theta,
        "rope_scaling": scaling_of(read.rope_scaling or inner, read.max_position_embeddings, place),
    }


def _write(model: ModelSpec) -> dict[str, Any]:
    keys = {
        **keys_of(model, _KEYS),
        "num_kv_heads": model.kv_heads,
        "ffn_hidden_size": model.ffn,
        "rope_theta": model.rope_theta,
        "multi_query": model.kv_heads == 1,
        "parallel_attn": model.parallel_residual,
        "new_decoder_architecture": model.kv_heads not in (1, model.heads),
        "num_ln_in_parallel_attn": 1,
    }
    return keys if model.rope_scaling is None else {**keys, "rope_scaling": scaling_table(model)}


_LAYER = "transformer.h.{}"
_QKV = Packed(
    f"{_LAYER}.self_attention.query_key_value",
    ("attention.q", "attention.k", "attention.v"),
    by_head=True,
)

FAMILY = Family(
    "falcon",
    "FalconForCausalLM",
    "Falcon 7B, Falcon2 11B",
    _read,
    _write,
    {
        "embedding.tokens": "transformer.word_embeddings",
        "norm1": f"{_LAYER}.input_layernorm",
        **dict.fromkeys(_QKV.of, _QKV),
        "attention.output": f"{_LAYER}.self_attention.dense",
        "norm2": f"{_LAYER}.post_attention_layernorm",
        "mlp.up": f"{_LAYER}.mlp.dense_h_to_4h",
        "mlp.down": f"{_LAYER}.mlp.dense_4h_to_h",
        "head.norm": "transformer.ln_f",
        "head.logits": "lm_head",
    },
)
