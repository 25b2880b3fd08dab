"""OPT: learned positions from the third row of their table on, layer norm, ReLU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Heads, Layers, Positions, WideWidth, Width
from ratrain.describe.families.gpt2 import GPT
from ratrain.describe.families.llama import Activation
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import load
from ratrain.errors import SpecError
from ratrain.readers.place import Place

_EPSILON = 1e-5  # no key says it
_OFFSET = 2


@dataclass(frozen=True)
class _Opt:
    hidden_size: Width
    num_hidden_layers: Layers
    num_attention_heads: Heads
    ffn_dim: WideWidth
    vocab_size: WideWidth
    max_position_embeddings: Positions = 2048
    activation_function: Activation = "relu"
    word_embed_proj_dim: Width | None = None
    do_layer_norm_before: bool = True
    layer_norm_elementwise_affine: bool = True
    enable_bias: bool = True
    tie_word_embeddings: bool = True


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Opt, config, place, strict=False)
    for key, is_so, what in (
        ("do_layer_norm_before", not read.do_layer_norm_before, "norms behind its residuals"),
        (
            "_remove_final_layer_norm",
            bool(config.get("_remove_final_layer_norm")),
            "no norm before its head",
        ),
        ("layer_norm_elementwise_affine", not read.layer_norm_elementwise_affine, "bare norms"),
        (
            "word_embed_proj_dim",
            read.word_embed_proj_dim not in (None, read.hidden_size),
            "an embedding narrower than its layers",
        ),
    ):
        if is_so:
            raise SpecError(
                f"an OPT with {what} is not supported",
                place=str(place.at(key)),
                fix="use another size: all but 350M are without it",
            )
    return {
        **GPT,
        **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), read.enable_bias),
        "hidden": read.hidden_size,
        "layers": read.num_hidden_layers,
        "heads": read.num_attention_heads,
        "kv_heads": read.num_attention_heads,
        "head_dim": None,
        "ffn": read.ffn_dim,
        "vocab": read.vocab_size,
        "max_positions": read.max_position_embeddings,
        "activation": read.activation_function,
        "norm_epsilon": _EPSILON,
        "position": "learned",
        "position_offset": _OFFSET,
        "tied_embeddings": read.tie_word_embeddings,
    }


def _write(model: ModelSpec) -> dict[str, Any]:
    return {
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "ffn_dim": model.ffn,
        "vocab_size": model.vocab,
        "max_position_embeddings": model.max_positions,
        "activation_function": model.activation,
        "word_embed_proj_dim": model.hidden,
        "enable_bias": model.qkv_bias,
        "tie_word_embeddings": model.tied_embeddings,
    }


_LAYER = "model.decoder.layers.{}"
FAMILY = Family(
    "opt",
    "OPTForCausalLM",
    "OPT 125M to 66B (not 350M), Galactica",
    _read,
    _write,
    {
        "embedding.tokens": "model.decoder.embed_tokens",
        "embedding.positions": "model.decoder.embed_positions",
        "norm1": f"{_LAYER}.self_attn_layer_norm",
        "attention.q": f"{_LAYER}.self_attn.q_proj",
        "attention.k": f"{_LAYER}.self_attn.k_proj",
        "attention.v": f"{_LAYER}.self_attn.v_proj",
        "attention.output": f"{_LAYER}.self_attn.out_proj",
        "norm2": f"{_LAYER}.final_layer_norm",
        "mlp.up": f"{_LAYER}.fc1",
        "mlp.down": f"{_LAYER}.fc2",
        "head.norm": "model.decoder.final_layer_norm",
        "head.logits": "lm_head",
    },
)
