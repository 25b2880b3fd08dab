"""OPT: learned positions from the third row of their table on, layer norm, ReLU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Heads, Layers, Positions, WideWidth, Width
from ratrain.describe.families.gpt2 import GPT
from ratrain.describe.families.llama import Activation
from ratrain.describe.family import Family, fields_of, keys_of, refuse
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import load
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


_KEYS = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "ffn": "ffn_dim",
    "vocab": "vocab_size",
    "max_positions": "max_position_embeddings",
    "activation": "activation_function",
    "qkv_bias": "enable_bias",
    "tied_embeddings": "tie_word_embeddings",
}


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Opt, config, place, strict=False)
    narrow = read.word_embed_proj_dim not in (None, read.hidden_size)
    headless = bool(config.get("_remove_final_layer_norm"))
    bare = not read.layer_norm_elementwise_affine
    cases = (
        ("do_layer_norm_before", not read.do_layer_norm_before, "norms behind its residuals"),
        ("_remove_final_layer_norm", headless, "no norm before its head"),
        ("layer_norm_elementwise_affine", bare, "bare norms"),
        ("word_embed_proj_dim", narrow, "an embedding narrower than its layers"),
    )
    named = [(key, is_so, f"an OPT with {what}") for key, is_so, what in cases]
    refuse(place, named, "use another size: all but 350M are without it")
    return {
        **GPT,
        **fields_of(read, _KEYS),
        **dict.fromkeys(("output_bias", "mlp_bias"), read.enable_bias),
        "kv_heads": read.num_attention_heads,
        "head_dim": None,
        "norm_epsilon": _EPSILON,
        "position": "learned",
        "position_offset": _OFFSET,
    }


def _write(model: ModelSpec) -> dict[str, Any]:
    return {**keys_of(model, _KEYS), "word_embed_proj_dim": model.hidden}


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
