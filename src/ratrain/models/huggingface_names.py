"""What our parameters are called in Hugging Face's files, and how such a model is configured."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError
from ratrain.models.shapes import EMBEDDING, HEAD, unit_layout, unit_names

EMBEDDING_TENSOR = "model.embed_tokens.weight"
HEAD_TENSOR = "lm_head.weight"
_NORMS = {"norm1.weight": "input_layernorm", "norm2.weight": "post_attention_layernorm"}
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "baichuan": "BaichuanForCausalLM",
}


@dataclass(frozen=True)
class Place:
    """Where a parameter is stored: rows first_row .. first_row + its rows of `tensor`."""

    tensor: str
    shape: tuple[int, ...]  # of the whole tensor
    first_row: int = 0


@dataclass(frozen=True)
class FileTensor:
    """A tensor of a file: one parameter of a unit, or several, one below the other."""

    name: str
    shape: tuple[int, ...]
    unit: str
    parameters: tuple[str, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)


def place_of(spec: ModelSpec, unit_name: str, param_name: str, shape: tuple[int, ...]) -> Place:
    """The place of a parameter in the files of its family.

    Baichuan packs queries, keys and values in one tensor. A tied head is read from the embedding.
    """
    if unit_name == EMBEDDING:
        return Place(EMBEDDING_TENSOR, shape)
    if unit_name == HEAD:
        if param_name == "head.norm.weight":
            return Place("model.norm.weight", shape)
        return Place(EMBEDDING_TENSOR if spec.tied_embeddings else HEAD_TENSOR, shape)
    layer = f"model.layers.{unit_name}"
    if param_name in _NORMS:
        return Place(f"{layer}.{_NORMS[param_name]}.weight", shape)
    group, part, kind = param_name.split(".")
    if group == "mlp":
        return Place(f"{layer}.mlp.{part}_proj.{kind}", shape)
    if part != "output" and naming(spec) == "baichuan":
        return _packed(spec, f"{layer}.self_attn.W_pack.{kind}", part, shape)
    return Place(f"{layer}.self_attn.{part[0]}_proj.{kind}", shape)


def file_tensors(spec: ModelSpec) -> list[FileTensor]:
    """The tensors that a model's files hold, in the order of the forward pass."""
    tensors: dict[str, FileTensor] = {}
    for unit in unit_names(spec):
        for parameter in unit_layout(spec, unit).parameters:
            place = place_of(spec, unit, parameter.name, parameter.shape)
            before = tensors.get(place.tensor)
            if before is None:
                names = (parameter.name,)
            elif before.unit == unit:
                names = (*before.parameters, parameter.name)
            else:
                continue  # a tied head: the embedding's tensor is used for it
            first = before or FileTensor(place.tensor, place.shape, unit, ())
            tensors[place.tensor] = FileTensor(first.name, first.shape, unit, names)
    return list(tensors.values())


def naming(spec: ModelSpec) -> str:
    """The family whose names and code describe `spec`: its own, where that can."""
    if spec.family == "baichuan" or spec.position == "alibi" or spec.norm_head:
        return "baichuan"
    return "qwen2" if spec.qkv_bias and not spec.output_bias else "llama"


def config_of(spec: ModelSpec, end_id: int | None = None) -> dict[str, Any]:
    """A config.json of `spec`, for a tokenizer that ends texts with `end_id`; SpecError where no
    family can say it."""
    family = naming(spec)
    _check_family(spec, family)
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.ffn,
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.max_positions,
        "hidden_act": spec.activation,
        "rms_norm_eps": spec.norm_epsilon,
        "rope_theta": spec.rope_theta,
        "tie_word_embeddings": spec.tied_embeddings,
        "bos_token_id": None,
        "eos_token_id": end_id,
    }
    if family == "llama":
        return {**config, "attention_bias": spec.qkv_bias, "mlp_bias": spec.mlp_bias}
    if family == "qwen2":
        return {**config, "use_sliding_window": False}
    extra = {"position_embedding": spec.position.upper(), "norm_head": spec.norm_head}
    return {**config, **extra, "model_max_length": spec.max_positions}


def _check_family(spec: ModelSpec, family: str) -> None:
    """The biases and heads that a family's published code takes."""
    biases = (spec.qkv_bias, spec.output_bias, spec.mlp_bias)
    allowed = {
        "llama": spec.qkv_bias == spec.output_bias,
        "qwen2": not spec.mlp_bias,
        "baichuan": not any(biases)
        and spec.kv_heads == spec.heads
        and spec.query_hidden == spec.hidden,
    }
    if not allowed[family]:
        raise SpecError(
            "no Hugging Face family has this combination of biases and heads",
            place=f"model {spec.name}, as {family}",
            fix="llama: qkv_bias = output_bias; qwen2: qkv_bias alone; "
            "baichuan: no bias, kv_heads = heads, head_dim = hidden / heads",
        )


def _packed(spec: ModelSpec, tensor: str, part: str, shape: tuple[int, ...]) -> Place:
    q, kv = spec.query_hidden, spec.kv_hidden
    first_row = {"q": 0, "k": q, "v": q + kv}[part]
    return Place(tensor, (q + 2 * kv, *shape[1:]), first_row)
