"""StableLM: LLaMA with layer norms, and heads rotated in part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Fraction, Positions
from ratrain.describe.families.llama import TENSORS, Epsilon, LlamaKeys, of_keys, to_keys
from ratrain.describe.family import Family, refuse
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class _StableLm(LlamaKeys):
    max_position_embeddings: Positions = 4096
    layer_norm_eps: Epsilon = 1e-5
    partial_rotary_factor: Fraction | None = 0.25
    use_qkv_bias: bool = False
    qk_layernorm: bool = False
    use_parallel_residual: bool = False


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_StableLm, config, place, strict=False)
    own = ("qk_layernorm", read.qk_layernorm, "a norm of its own for each head's queries and keys")
    refuse(place, [own], "use a model without it, as StableLM 2 1.6B and StableLM 3B are")
    return {
        **of_keys(read, place),
        "head_dim": None,
        "norm": "layer",
        "norm_epsilon": read.layer_norm_eps,
        "qkv_bias": read.use_qkv_bias,
        "output_bias": False,
        "mlp_bias": False,
        **dict.fromkeys(("parallel_residual", "shared_norm"), read.use_parallel_residual),
    }


def _write(model: ModelSpec) -> dict[str, Any]:
    return {
        **to_keys(model, "rms_norm_eps", "head_dim"),
        "layer_norm_eps": model.norm_epsilon,
        "partial_rotary_factor": model.rotary_share,
        "use_qkv_bias": model.qkv_bias,
        "use_parallel_residual": model.parallel_residual,
    }


FAMILY = Family(
    "stablelm", "StableLmForCausalLM", "StableLM 3B, StableLM 2 1.6B", _read, _write, TENSORS
)
