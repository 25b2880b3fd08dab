"""A ModelSpec from a Hugging Face `config.json`.

Each family's keys are a dataclass, read by the strict loader; keys that say nothing about sizes are
left alone. A null stands for the default only where Transformers writes it so itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from ratrain.describe.amounts import Heads, Layers, Positions, WideWidth, Width
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import Rule, load, nearest
from ratrain.errors import SpecError
from ratrain.readers.files import shown
from ratrain.readers.json import read_json_table
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
Theta = Annotated[float, Rule(low=1, high=1e15)]


@dataclass(frozen=True)
class _Rope:
    """Transformers 5 writes these into a table; earlier versions beside the rest."""

    rope_theta: Theta | None = None


@dataclass(frozen=True)
class _Llama:
    """LLaMA's keys; those of Mistral, and of the families below."""

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
    rope_parameters: _Rope | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False


@dataclass(frozen=True)
class _Baichuan(_Llama):
    model_max_length: Positions | None = None
    position_embedding: Literal["ROPE", "ALIBI", "rope", "alibi"] | None = None
    norm_head: bool | None = None


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


@dataclass(frozen=True)
class _GptNeox(_Llama):
    hidden_act: Activation = "gelu"
    attention_bias: bool = True
    layer_norm_eps: Epsilon = 1e-5
    rotary_emb_base: Theta = 10000.0
    use_parallel_residual: bool = True


def load_config(path: Path | str) -> ModelSpec:
    """The model of a config.json file."""
    table, place = read_json_table(Path(path))
    return model_from_config(table, place)


def model_from_config(config: Mapping[str, Any], place: Place | None = None) -> ModelSpec:
    """The model of a parsed config. Keys that say nothing about sizes are ignored."""
    place = place or Place("config.json", form="json")
    family = config.get("model_type")
    if not isinstance(family, str) or family not in _READERS:
        raise SpecError(
            f"model_type {shown(family)} is not supported" if family else "model_type is missing",
            place=str(place.at("model_type")),
            fix=nearest(str(family), _READERS),
        )
    read = _READERS[family](config, place)
    if read["head_dim"] is None:
        read["head_dim"] = _head_dim(read["hidden"], read["heads"], family, place)
    name = _name_of(config, place.file, family)
    try:
        return ModelSpec(**read, name=name, family=family, source=place.file or "a config.json")
    except SpecError as error:  # numbers that contradict each other, by our name of the key
        where = place.at(_THEIR_KEYS.get(error.place, error.place))
        raise SpecError(error.what, place=str(where), fix=error.fix) from None


_THEIR_KEYS = {"kv_heads": "num_key_value_heads"}


def _head_dim(hidden: int, heads: int, family: str, place: Place) -> int:
    """The width of a head where the config does not give it."""
    if hidden % heads:
        divisors = [n for n in range(1, 2 * heads + 1) if hidden % n == 0]
        near = min(divisors, key=lambda n: abs(n - heads))
        raise SpecError(
            f"{heads} heads do not divide a hidden size of {hidden}",
            place=str(place.at("n_head" if family == "gpt2" else "num_attention_heads")),
            fix=f"use {near} heads" + (", or give head_dim" if family != "gpt2" else ""),
        )
    return hidden // heads


def _name_of(config: Mapping[str, Any], file: str, family: str) -> str:
    """What the config calls itself, else its folder's name."""
    name = config.get("_name_or_path")
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        name = Path(file).parent.name
    return name[-255:] or family


def _llama(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    return _of_llama(load(_Llama, config, place, strict=False))


def _of_llama(read: _Llama) -> dict[str, Any]:
    inner = read.rope_parameters
    return {
        "hidden": read.hidden_size,
        "layers": read.num_hidden_layers,
        "heads": read.num_attention_heads,
        "kv_heads": read.num_key_value_heads or read.num_attention_heads,
        "head_dim": read.head_dim,
        "ffn": read.intermediate_size,
        "vocab": read.vocab_size,
        "max_positions": read.max_position_embeddings,
        "activation": read.hidden_act,
        "norm_epsilon": read.rms_norm_eps,
        "rope_theta": (inner and inner.rope_theta) or read.rope_theta,
        "qkv_bias": read.attention_bias,
        "output_bias": read.attention_bias,
        "mlp_bias": read.mlp_bias,
        "tied_embeddings": read.tie_word_embeddings,
    }


def _qwen2(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    return {**_llama(config, place), "qkv_bias": True, "output_bias": False}


def _baichuan(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """Baichuan2. The 13B model (hidden 5120) uses ALiBi, the 7B model RoPE; only Baichuan2
    (vocabulary 125,696) normalises its head: arXiv 2309.10305. The published configs say neither;
    `position_embedding` and `norm_head` say it where they are given, as in files we write."""
    read = load(_Baichuan, config, place, strict=False)
    usual = "alibi" if read.hidden_size >= 5120 else "rope"
    normed = read.vocab_size == 125696 if read.norm_head is None else read.norm_head
    return {
        **_of_llama(read),
        "max_positions": read.model_max_length or read.max_position_embeddings,
        "position": (read.position_embedding or usual).lower(),
        "norm_head": normed,
    }


_GPT = {"gated_mlp": False, "norm": "layer", "qkv_bias": True, "output_bias": True}


def _gpt2(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Gpt2, config, place, strict=False)
    return {
        **_GPT,
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
        "mlp_bias": True,
        "tied_embeddings": read.tie_word_embeddings,
    }


def _gpt_neox(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_GptNeox, config, place, strict=False)
    return {
        **_of_llama(read),
        **_GPT,
        "qkv_bias": read.attention_bias,
        "output_bias": read.attention_bias,
        "mlp_bias": True,
        "norm_epsilon": read.layer_norm_eps,
        "rope_theta": read.rotary_emb_base,
        "parallel_residual": read.use_parallel_residual,
    }


_READERS: dict[str, Callable[[Mapping[str, Any], Place], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _qwen2,
    "baichuan": _baichuan,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
}
