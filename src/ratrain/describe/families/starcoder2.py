"""StarCoder2: Mistral with layer norms, an MLP without a gate, and biases everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Positions
from ratrain.describe.families.llama import (
    ATTENTION,
    NORMS,
    OUTSIDE,
    Activation,
    Epsilon,
    LlamaKeys,
    of_keys,
    to_keys,
)
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec
from ratrain.describe.rotary import windowed
from ratrain.describe.strict import load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class _Starcoder2(LlamaKeys):
    max_position_embeddings: Positions = 4096
    hidden_act: Activation = "gelu_pytorch_tanh"
    norm_epsilon: Epsilon = 1e-5
    sliding_window: Positions | None = None
    use_bias: bool = True
    tie_word_embeddings: bool = True


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Starcoder2, config, place, strict=False)
    model = {
        **of_keys(read, place),
        **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), read.use_bias),
        "gated_mlp": False,
        "norm": "layer",
        "norm_epsilon": read.norm_epsilon,
    }
    return {**model, **windowed(read.sliding_window, (), model)}


def _write(model: ModelSpec) -> dict[str, Any]:
    return {
        **to_keys(model, "rms_norm_eps"),
        "norm_epsilon": model.norm_epsilon,
        "sliding_window": model.window,
        "use_bias": model.qkv_bias,
    }


FAMILY = Family(
    "starcoder2",
    "Starcoder2ForCausalLM",
    "StarCoder2 3B, 7B, 15B",
    _read,
    _write,
    {
        **OUTSIDE,
        **ATTENTION,
        **NORMS,
        "mlp.up": "model.layers.{}.mlp.c_fc",
        "mlp.down": "model.layers.{}.mlp.c_proj",
    },
)
