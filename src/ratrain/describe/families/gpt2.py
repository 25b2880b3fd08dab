"""GPT-2: learned positions, layer norm, matrices that its files hold as (inputs, outputs)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Heads, Layers, Positions, WideWidth, Width
from ratrain.describe.families.llama import Activation, Epsilon
from ratrain.describe.family import Family, Packed, fields_of, keys_of, refuse
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import load
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
class GptKeys:
    """What GPT-2 and GPT-J say alike."""

    n_embd: Width
    n_head: Heads
    n_layer: Layers
    vocab_size: WideWidth
    n_inner: WideWidth | None = None
    n_positions: Positions = 1024
    activation_function: Activation = "gelu_new"
    layer_norm_epsilon: Epsilon = 1e-5
    tie_word_embeddings: bool = True


@dataclass(frozen=True)
class Gpt2Keys(GptKeys):
    """GPT-2's keys; StarCoder's are some more."""

    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False


KEYS = {
    "hidden": "n_embd",
    "heads": "n_head",
    "layers": "n_layer",
    "vocab": "vocab_size",
    "max_positions": "n_positions",
    "activation": "activation_function",
    "norm_epsilon": "layer_norm_epsilon",
    "tied_embeddings": "tie_word_embeddings",
}


def of_gpt(read: GptKeys) -> dict[str, Any]:
    """The fields of a ModelSpec that the keys of GPT-2 and GPT-J say."""
    return {
        **GPT,
        **fields_of(read, KEYS),
        "kv_heads": read.n_head,
        "head_dim": None,
        "ffn": read.n_inner or 4 * read.n_embd,
    }


def gpt_keys(model: ModelSpec) -> dict[str, Any]:
    """Those keys of a model."""
    return {**keys_of(model, KEYS), "n_inner": model.ffn}


def of_gpt2(read: Gpt2Keys, place: Place) -> dict[str, Any]:
    """The fields of a ModelSpec that they say."""
    odd = ("scale_attn_by_inverse_layer_idx", "add_cross_attention")
    cases = [(key, getattr(read, key), f"a GPT-2 with {key}") for key in odd]
    refuse(place, cases, "use a model without it")
    scale = None if read.scale_attn_weights else 1.0
    return {**of_gpt(read), "position": "learned", "attention_scale": scale}


def gpt2_keys(model: ModelSpec) -> dict[str, Any]:
    """Those keys of a model."""
    return {**gpt_keys(model), "scale_attn_weights": model.attention_scale is None}


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    return of_gpt2(load(Gpt2Keys, config, place, strict=False), place)


QKV = Packed("transformer.h.{}.attn.c_attn", ("attention.q", "attention.k", "attention.v"))

FAMILY = Family(
    "gpt2",
    "GPT2LMHeadModel",
    "GPT-2, DistilGPT2, Cerebras-GPT",
    _read,
    gpt2_keys,
    {
        "embedding.tokens": "transformer.wte",
        "embedding.positions": "transformer.wpe",
        "norm1": "transformer.h.{}.ln_1",
        **dict.fromkeys(QKV.of, QKV),
        "attention.output": "transformer.h.{}.attn.c_proj",
        "norm2": "transformer.h.{}.ln_2",
        "mlp.up": "transformer.h.{}.mlp.c_fc",
        "mlp.down": "transformer.h.{}.mlp.c_proj",
        "head.norm": "transformer.ln_f",
        "head.logits": "lm_head",
    },
    transposed=frozenset((*QKV.of, "attention.output", "mlp.up", "mlp.down")),
)
