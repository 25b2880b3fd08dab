"""GPT-Neo, TinyStories: GPT-2 with scores that are not scaled, and a window on every second
layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ratrain.describe.amounts import Heads, Layers, Positions, WideWidth, Width
from ratrain.describe.families.gpt2 import GPT
from ratrain.describe.families.llama import Activation, Epsilon
from ratrain.describe.family import Family, fields_of, keys_of
from ratrain.describe.model import ModelSpec
from ratrain.describe.rotary import windowed
from ratrain.describe.strict import load
from ratrain.errors import SpecError
from ratrain.readers.place import Place

_KEYS = {
    "hidden": "hidden_size",
    "layers": "num_layers",
    "heads": "num_heads",
    "vocab": "vocab_size",
    "max_positions": "max_position_embeddings",
    "activation": "activation_function",
    "norm_epsilon": "layer_norm_epsilon",
    "tied_embeddings": "tie_word_embeddings",
}


@dataclass(frozen=True)
class _GptNeo:
    hidden_size: Width
    num_layers: Layers
    num_heads: Heads
    vocab_size: WideWidth
    intermediate_size: WideWidth | None = None
    max_position_embeddings: Positions = 2048
    window_size: Positions = 256
    attention_layers: tuple[Literal["global", "local"], ...] | None = None
    activation_function: Activation = "gelu_new"
    layer_norm_epsilon: Epsilon = 1e-5
    tie_word_embeddings: bool = True


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_GptNeo, config, place, strict=False)
    kinds = read.attention_layers
    if kinds is None or len(kinds) != read.num_layers:
        raise SpecError(
            f"{len(kinds or ())} kinds of attention for {read.num_layers} layers",
            place=str(place.at("attention_layers")),
            fix='give "global" or "local" for each layer',
        )
    model = {
        **GPT,
        **fields_of(read, _KEYS),
        "kv_heads": read.num_heads,
        "head_dim": None,
        "ffn": read.intermediate_size or 4 * read.hidden_size,
        "qkv_bias": False,
        "position": "learned",
        "attention_scale": 1.0,
    }
    types = ["full_attention" if kind == "global" else "sliding_attention" for kind in kinds]
    return {**model, **windowed(read.window_size, types, model)}


def _write(model: ModelSpec) -> dict[str, Any]:
    layers = range(model.layers)
    kinds = ["global" if model.window_of(layer) is None else "local" for layer in layers]
    return {
        **keys_of(model, _KEYS),
        "intermediate_size": model.ffn,
        "window_size": model.window or 256,
        "attention_layers": kinds,
        "attention_types": [[kinds, 1]],
    }


_LAYER = "transformer.h.{}"
FAMILY = Family(
    "gpt_neo",
    "GPTNeoForCausalLM",
    "GPT-Neo 125M to 2.7B, TinyStories",
    _read,
    _write,
    {
        "embedding.tokens": "transformer.wte",
        "embedding.positions": "transformer.wpe",
        "norm1": f"{_LAYER}.ln_1",
        "attention.q": f"{_LAYER}.attn.attention.q_proj",
        "attention.k": f"{_LAYER}.attn.attention.k_proj",
        "attention.v": f"{_LAYER}.attn.attention.v_proj",
        "attention.output": f"{_LAYER}.attn.attention.out_proj",
        "norm2": f"{_LAYER}.ln_2",
        "mlp.up": f"{_LAYER}.mlp.c_fc",
        "mlp.down": f"{_LAYER}.mlp.c_proj",
        "head.norm": "transformer.ln_f",
        "head.logits": "lm_head",
    },
)
