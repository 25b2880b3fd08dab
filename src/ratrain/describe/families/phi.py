"""Phi-1, Phi-1.5, Phi-2: attention and MLP read one layer norm, a part of each head is rotated, and
everything has a bias, the logits too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Fraction
from ratrain.describe.families.gpt2 import GPT
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
from ratrain.describe.family import Family, refuse
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import load
from ratrain.readers.place import Place

PARALLEL = {**GPT, "parallel_residual": True, "shared_norm": True, "head_bias": True}
"""What GPT-J and Phi have."""


@dataclass(frozen=True)
class _Phi(LlamaKeys):
    hidden_act: Activation = "gelu_new"
    layer_norm_eps: Epsilon = 1e-5
    partial_rotary_factor: Fraction | None = 0.5
    qk_layernorm: bool = False


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Phi, config, place, strict=False)
    own = ("qk_layernorm", read.qk_layernorm, "a norm of its own for queries and keys")
    refuse(place, [own], "use a model without it, as Phi-1, 1.5 and 2 are")
    return {
        **of_keys(read, place),
        **PARALLEL,
        "head_dim": None,
        "norm_epsilon": read.layer_norm_eps,
    }


def _write(model: ModelSpec) -> dict[str, Any]:
    return {
        **to_keys(model, "rms_norm_eps", "head_dim"),
        "partial_rotary_factor": model.rotary_share,
        "layer_norm_eps": model.norm_epsilon,
    }


FAMILY = Family(
    "phi",
    "PhiForCausalLM",
    "Phi-1, Phi-1.5, Phi-2",
    _read,
    _write,
    {
        **OUTSIDE,
        **ATTENTION,
        "attention.output": "model.layers.{}.self_attn.dense",
        "norm1": NORMS["norm1"],
        "mlp.up": "model.layers.{}.mlp.fc1",
        "mlp.down": "model.layers.{}.mlp.fc2",
        "head.norm": "model.final_layernorm",
    },
)
