"""GPT-2: learned positions, layer norm, matrices that its files hold as (inputs, outputs)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Heads, Layers, Positions, WideWidth, Width
from ratrain.describe.families.llama import Activation, Epsilon
from ratrain.describe.family import Family, Packed
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import load
from ratrain.errors import SpecError
from ratrain.readers.place import Place

GPT = {
    "gated_mlp": False,
    "norm": "layer",
    "qkv_bias": True,
    "output_bias": True,
    "mlp_bias": True,
}
"""What all GPTs have."""


@dataclass(frozen=True)
class _Gpt2:
    n_embd: Width
    n_head: Heads
    n_layer: Layers
    vocab_size: WideWidth
    n_inner: WideWidth | None = None
    n_positions: Positions = 1024
    activation_function: Activation = "gelu_new"
    layer_norm_epsilon: Epsilon = 1e-5
    tie_word_embeddings: bool = True
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Gpt2, config, place, strict=False)
    for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if getattr(read, key):
            raise SpecError(
                f"a GPT-2 with {key} is not supported",
                place=str(place.at(key)),
                fix="use a model without it",
            )
    return {
        **GPT,
        "hidden": read.n_embd,
        "layers": read.n_layer,
        "heads": read.n_head,
        "kv_heads": read.n_head,
        "head_dim": None,
        "ffn": read.n_inner or 4 * read.n_embd,
        "vocab": read.vocab_size,
        "max_positions": read.n_positions,
        "activation": read.activation_function,
        "norm_epsilon": read.layer_norm_epsilon,
        "position": "learned",
        "attention_scale": None if read.scale_attn_weights else 1.0,
        "tied_embeddings": read.tie_word_embeddings,
    }


def _write(model: ModelSpec) -> dict[str, Any]:
    return {
        "n_embd": model.hidden,
        "n_head": model.heads,
        "n_layer": model.layers,
        "vocab_size": model.vocab,
        "n_inner": model.ffn,
        "n_positions": model.max_positions,
        "activation_function": model.activation,
        "layer_norm_epsilon": model.norm_epsilon,
        "tie_word_embeddings": model.tied_embeddings,
        "scale_attn_weights": model.attention_scale is None,
    }


_QKV = Packed("transformer.h.{}.attn.c_attn", ("attention.q", "attention.k", "attention.v"))

FAMILY = Family(
    "gpt2",
    "GPT2LMHeadModel",
    "GPT-2, DistilGPT2, Cerebras-GPT",
    _read,
    _write,
    {
        "embedding.tokens": "transformer.wte",
        "embedding.positions": "transformer.wpe",
        "norm1": "transformer.h.{}.ln_1",
        **dict.fromkeys(_QKV.of, _QKV),
        "attention.output": "transformer.h.{}.attn.c_proj",
        "norm2": "transformer.h.{}.ln_2",
        "mlp.up": "transformer.h.{}.mlp.c_fc",
        "mlp.down": "transformer.h.{}.mlp.c_proj",
        "head.norm": "transformer.ln_f",
        "head.logits": "lm_head",
    },
    transposed=frozenset((*_QKV.of, "attention.output", "mlp.up", "mlp.down")),
)
