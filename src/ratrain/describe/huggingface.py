"""A ModelSpec from a Hugging Face `config.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import Place, load, nearest
from ratrain.errors import SpecError


def load_config(path: Path | str) -> ModelSpec:
    """The model of a config.json file."""
    path = Path(path)
    try:
        table: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"cannot read the file: {error.strerror}", place=str(path)) from error
    except ValueError as error:
        raise SpecError(f"not valid JSON: {error}", place=str(path)) from error
    if not isinstance(table, dict):
        raise SpecError("not a JSON object", place=str(path))
    return model_from_config(cast("dict[str, Any]", table), str(path))


def model_from_config(config: Mapping[str, Any], file: str = "config.json") -> ModelSpec:
    """The model of a parsed config. Keys that say nothing about sizes are ignored."""
    family = str(config.get("model_type", ""))
    if family not in _READERS:
        raise SpecError(
            f'model_type "{family}" is not supported',
            place=file,
            fix=nearest(family, list(_READERS)),
        )
    read = _Config(config, file)
    table: dict[str, Any] = {
        "name": str(config.get("_name_or_path") or Path(file).parent.name or family),
        "family": family,
        "source": file,
        **_READERS[family](read),
    }
    hidden, heads = table["hidden"], table["heads"]
    if "head_dim" not in table:
        if hidden % heads:
            raise SpecError(f"{heads} heads do not divide a hidden size of {hidden}", place=file)
        table["head_dim"] = hidden // heads
    return load(ModelSpec, table, Place(file))


class _Config:
    """Reads keys of a config; a missing one is an error that names it."""

    def __init__(self, config: Mapping[str, Any], file: str) -> None:
        self._config, self._file = config, file

    def need(self, key: str) -> int:
        value = self._config.get(key)
        if value is None:
            raise SpecError(f'the key "{key}" is missing', place=self._file, fix=f"add {key}")
        if not isinstance(value, int) or value < 1:
            raise SpecError(
                f"{value!r} is not a size", place=f"{self._file} {key}", fix="use a whole number"
            )
        return value

    def get(self, key: str, default: Any) -> Any:
        value = self._config.get(key)
        return default if value is None else value


def _llama(read: _Config) -> dict[str, Any]:
    heads = read.need("num_attention_heads")
    bias = read.get("attention_bias", False)
    table: dict[str, Any] = {
        "hidden": read.need("hidden_size"),
        "layers": read.need("num_hidden_layers"),
        "heads": heads,
        "kv_heads": read.get("num_key_value_heads", heads),
        "ffn": read.need("intermediate_size"),
        "vocab": read.need("vocab_size"),
        "max_positions": read.get("max_position_embeddings", 2048),
        "activation": read.get("hidden_act", "silu"),
        "norm_epsilon": read.get("rms_norm_eps", 1e-6),
        "rope_theta": _rope_theta(read),
        "qkv_bias": bias,
        "output_bias": bias,
        "mlp_bias": read.get("mlp_bias", False),
        "tied_embeddings": read.get("tie_word_embeddings", False),
    }
    if read.get("head_dim", 0):
        table["head_dim"] = read.need("head_dim")
    return table


def _rope_theta(read: _Config) -> Any:
    """Transformers 5 writes it into a table, `rope_parameters`; earlier ones beside the rest."""
    table = read.get("rope_parameters", None)
    inner = cast("dict[str, Any]", table) if isinstance(table, dict) else {}
    return inner.get("rope_theta", read.get("rope_theta", 10000.0))


def _qwen2(read: _Config) -> dict[str, Any]:
    return {**_llama(read), "qkv_bias": True, "output_bias": False}


def _baichuan(read: _Config) -> dict[str, Any]:
    """Baichuan2. The 13B model (hidden 5120) uses ALiBi, the 7B model RoPE; only Baichuan2
    (vocabulary 125,696) normalises its head: arXiv 2309.10305. The published configs say neither;
    `position_embedding` and `norm_head` say it where they are given, as in files we write."""
    table = _llama(read)
    table["max_positions"] = read.get("model_max_length", table["max_positions"])
    usual = "alibi" if table["hidden"] >= 5120 else "rope"
    table["position"] = str(read.get("position_embedding", usual)).lower()
    table["norm_head"] = read.get("norm_head", table["vocab"] == 125696)
    return table


_GPT = {"gated_mlp": False, "norm": "layer", "qkv_bias": True, "output_bias": True}


def _gpt2(read: _Config) -> dict[str, Any]:
    hidden, heads = read.need("n_embd"), read.need("n_head")
    return {
        **_GPT,
        "hidden": hidden,
        "layers": read.need("n_layer"),
        "heads": heads,
        "kv_heads": heads,
        "ffn": read.get("n_inner", 4 * hidden),
        "vocab": read.need("vocab_size"),
        "max_positions": read.get("n_positions", 1024),
        "activation": read.get("activation_function", "gelu_new"),
        "position": "learned",
        "mlp_bias": True,
        "tied_embeddings": read.get("tie_word_embeddings", True),
    }


def _gpt_neox(read: _Config) -> dict[str, Any]:
    bias = read.get("attention_bias", True)
    return {
        **_llama(read),
        **_GPT,
        "qkv_bias": bias,
        "output_bias": bias,
        "mlp_bias": True,
        "activation": read.get("hidden_act", "gelu"),
        "norm_epsilon": read.get("layer_norm_eps", 1e-5),
        "rope_theta": read.get("rotary_emb_base", 10000.0),
        "parallel_residual": read.get("use_parallel_residual", True),
    }


_READERS: dict[str, Callable[[_Config], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _qwen2,
    "baichuan": _baichuan,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
}
