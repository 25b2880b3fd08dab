"""Cohere (Command-R, Aya): attention and MLP read one norm, a layer norm without a bias; heads are
rotated in pairs, and logits are multiplied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Positions
from ratrain.describe.families.llama import (
    ATTENTION,
    MLP,
    NORMS,
    OUTSIDE,
    Epsilon,
    LlamaKeys,
    of_keys,
    to_keys,
)
from ratrain.describe.family import Family, refuse
from ratrain.describe.model import ModelSpec, Positive
from ratrain.describe.rotary import Theta
from ratrain.describe.strict import load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class CohereKeys(LlamaKeys):
    """What Cohere and Cohere2 say alike."""

    max_position_embeddings: Positions = 8192
    layer_norm_eps: Epsilon = 1e-5
    logit_scale: Positive = 0.0625
    tie_word_embeddings: bool = True


@dataclass(frozen=True)
class _Cohere(CohereKeys):
    rope_theta: Theta = 500_000.0
    use_qk_norm: bool = False


def of_cohere(read: CohereKeys, place: Place) -> dict[str, Any]:
    """The fields of a ModelSpec that their keys say."""
    return {
        **of_keys(read, place),
        "head_dim": None,
        "mlp_bias": False,
        "norm": "layer",
        "norm_bias": False,
        "norm_epsilon": read.layer_norm_eps,
        "parallel_residual": True,
        "shared_norm": True,
        "rotary_pairs": True,
        "logits_divisor": 1 / read.logit_scale,
    }


def cohere_keys(model: ModelSpec) -> dict[str, Any]:
    """Those keys of a model."""
    return {
        **to_keys(model, "rms_norm_eps", "head_dim"),
        "layer_norm_eps": model.norm_epsilon,
        "logit_scale": 1 / model.logits_divisor,
        "attention_bias": model.qkv_bias,
    }


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Cohere, config, place, strict=False)
    own = ("use_qk_norm", read.use_qk_norm, "a norm of its own for each head's queries and keys")
    refuse(place, [own], "use a model without it: all of Cohere's but Command-R+ are")
    return of_cohere(read, place)


TENSORS = {**OUTSIDE, **ATTENTION, **MLP, "norm1": NORMS["norm1"]}

FAMILY = Family("cohere", "CohereForCausalLM", "Command-R 35B, Aya 23", _read, cohere_keys, TENSORS)
