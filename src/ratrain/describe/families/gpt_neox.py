"""GPT-NeoX and Pythia: attention and MLP read the same input, a part of each head is rotated, and
queries, keys and values are packed head by head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Fraction
from ratrain.describe.families.gpt2 import GPT
from ratrain.describe.families.llama import Activation, Epsilon, LlamaKeys, of_keys, to_keys
from ratrain.describe.family import Family, Packed
from ratrain.describe.model import ModelSpec
from ratrain.describe.rotary import Theta
from ratrain.describe.strict import load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class _GptNeox(LlamaKeys):
    hidden_act: Activation = "gelu"
    attention_bias: bool = True
    layer_norm_eps: Epsilon = 1e-5
    rotary_emb_base: Theta = 10000.0
    rotary_pct: Fraction = 0.25
    use_parallel_residual: bool = True


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_GptNeox, config, place, strict=False)
    rope = read.rope_parameters
    return {
        **of_keys(read, place),
        **GPT,
        "kv_heads": read.num_attention_heads,
        "head_dim": None,
        "qkv_bias": read.attention_bias,
        "output_bias": read.attention_bias,
        "norm_epsilon": read.layer_norm_eps,
        "rope_theta": (rope and rope.rope_theta) or read.rotary_emb_base,
        "rotary_share": (rope and rope.partial_rotary_factor) or read.rotary_pct,
        "parallel_residual": read.use_parallel_residual,
    }


_UNKNOWN = (
    *("num_key_value_heads", "head_dim", "rms_norm_eps"),
    *("rope_theta", "partial_rotary_factor"),
)


def _write(model: ModelSpec) -> dict[str, Any]:
    return {
        **to_keys(model, *_UNKNOWN),
        "attention_bias": model.qkv_bias,
        "layer_norm_eps": model.norm_epsilon,
        "rotary_emb_base": model.rope_theta,
        "rotary_pct": model.rotary_share,
        "use_parallel_residual": model.parallel_residual,
    }


_QKV = Packed(
    "gpt_neox.layers.{}.attention.query_key_value",
    ("attention.q", "attention.k", "attention.v"),
    by_head=True,
)

FAMILY = Family(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    "GPT-NeoX-20B, Pythia",
    _read,
    _write,
    {
        "embedding.tokens": "gpt_neox.embed_in",
        "norm1": "gpt_neox.layers.{}.input_layernorm",
        **dict.fromkeys(_QKV.of, _QKV),
        "attention.output": "gpt_neox.layers.{}.attention.dense",
        "norm2": "gpt_neox.layers.{}.post_attention_layernorm",
        "mlp.up": "gpt_neox.layers.{}.mlp.dense_h_to_4h",
        "mlp.down": "gpt_neox.layers.{}.mlp.dense_4h_to_h",
        "head.norm": "gpt_neox.final_layer_norm",
        "head.logits": "embed_out",
    },
)
