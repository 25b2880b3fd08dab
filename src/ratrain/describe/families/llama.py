"""LLaMA 1 to 3.3, and the many models that use its code. Other families read most of its keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ratrain.describe.amounts import Fraction, Heads, Layers, Positions, WideWidth, Width
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec
from ratrain.describe.rotary import Rope, Theta, scaling_of, scaling_table
from ratrain.describe.strict import Rule, load
from ratrain.readers.place import Place

Activation = Literal[
    "silu",
    "swish",
    "gelu",
    "gelu_new",
    "gelu_fast",
    "gelu_python",
    "gelu_pytorch_tanh",
    "gelu_accurate",
    "gelu_10",
    "quick_gelu",
    "relu",
    "relu2",
    "relu6",
    "leaky_relu",
    "mish",
    "laplace",
    "linear",
    "prelu",
    "sigmoid",
    "tanh",
    "xielu",
]
"""The names that Transformers knows (its ACT2FN)."""
Epsilon = Annotated[float, Rule(low=1e-15, high=1)]


@dataclass(frozen=True)
class LlamaKeys:
    """LLaMA's keys; others' are those and some more."""

    hidden_size: Width
    num_hidden_layers: Layers
    num_attention_heads: Heads
    intermediate_size: WideWidth
    vocab_size: WideWidth
    num_key_value_heads: Heads | None = None
    head_dim: Heads | None = None
    max_position_embeddings: Positions = 2048
    hidden_act: Activation = "silu"
    rms_norm_eps: Epsilon = 1e-6
    rope_theta: Theta = 10000.0
    rope_parameters: Rope | None = None
    rope_scaling: Rope | None = None
    partial_rotary_factor: Fraction | None = None
    original_max_position_embeddings: Positions | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False


def of_keys(read: LlamaKeys, place: Place) -> dict[str, Any]:
    """The fields of a ModelSpec that LLaMA's keys say."""
    inner = read.rope_parameters
    positions, original = read.max_position_embeddings, read.original_max_position_embeddings
    return {
        "hidden": read.hidden_size,
        "layers": read.num_hidden_layers,
        "heads": read.num_attention_heads,
        "kv_heads": read.num_key_value_heads or read.num_attention_heads,
        "head_dim": read.head_dim,
        "ffn": read.intermediate_size,
        "vocab": read.vocab_size,
        "max_positions": positions,
        "activation": read.hidden_act,
        "norm_epsilon": read.rms_norm_eps,
        "rope_theta": (inner and inner.rope_theta) or read.rope_theta,
        "rope_scaling": scaling_of(read.rope_scaling or inner, positions, place, original),
        "rotary_share": (inner and inner.partial_rotary_factor)
        or read.partial_rotary_factor
        or 1.0,
        "qkv_bias": read.attention_bias,
        "output_bias": read.attention_bias,
        "mlp_bias": read.mlp_bias,
        "tied_embeddings": read.tie_word_embeddings,
    }


def to_keys(model: ModelSpec, *unknown: str) -> dict[str, Any]:
    """LLaMA's keys of a model, those aside that not every family has, and that are `unknown`."""
    keys: dict[str, Any] = {
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.ffn,
        "vocab_size": model.vocab,
        "max_position_embeddings": model.max_positions,
        "hidden_act": model.activation,
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": model.rope_theta,
        "tie_word_embeddings": model.tied_embeddings,
    }
    if model.rotary_share != 1:
        keys["partial_rotary_factor"] = model.rotary_share
    if model.rope_scaling is not None:
        keys["rope_scaling"] = scaling_table(model)
    return {key: value for key, value in keys.items() if key not in unknown}


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    return of_keys(load(LlamaKeys, config, place, strict=False), place)


def biased_keys(model: ModelSpec, *unknown: str) -> dict[str, Any]:
    """The same of a family that says of attention and MLP whether they have biases."""
    keys = to_keys(model, *unknown)
    return {**keys, "attention_bias": model.qkv_bias, "mlp_bias": model.mlp_bias}


OUTSIDE = {
    "embedding.tokens": "model.embed_tokens",
    "head.norm": "model.norm",
    "head.logits": "lm_head",
}
ATTENTION = {
    "attention.q": "model.layers.{}.self_attn.q_proj",
    "attention.k": "model.layers.{}.self_attn.k_proj",
    "attention.v": "model.layers.{}.self_attn.v_proj",
    "attention.output": "model.layers.{}.self_attn.o_proj",
}
MLP = {
    "mlp.gate": "model.layers.{}.mlp.gate_proj",
    "mlp.up": "model.layers.{}.mlp.up_proj",
    "mlp.down": "model.layers.{}.mlp.down_proj",
}
NORMS = {
    "norm1": "model.layers.{}.input_layernorm",
    "norm2": "model.layers.{}.post_attention_layernorm",
}
QK_NORMS = {
    "attention.q_norm": "model.layers.{}.self_attn.q_norm",
    "attention.k_norm": "model.layers.{}.self_attn.k_norm",
}
TENSORS = {**OUTSIDE, **ATTENTION, **MLP, **NORMS}

FAMILY = Family(
    "llama",
    "LlamaForCausalLM",
    "LLaMA 1 to 3.3, SmolLM, TinyLlama, Yi, DeepSeek-Coder",
    _read,
    biased_keys,
    TENSORS,
)
