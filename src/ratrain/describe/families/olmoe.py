"""OLMoE: LLaMA with experts, and queries and keys normalised over their whole width."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Count, Positions
from ratrain.describe.families.llama import (
    ATTENTION,
    NORMS,
    OUTSIDE,
    QK_NORMS,
    Epsilon,
    of_keys,
    to_keys,
)
from ratrain.describe.families.mixtral import (
    STACKED,
    ExpertKeys,
    Weight,
    balance_keys,
    balance_of,
    experts_of,
)
from ratrain.describe.families.qwen3_moe import EXPERTS
from ratrain.describe.family import Family, refuse
from ratrain.describe.model import Experts, ModelSpec
from ratrain.describe.strict import load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class _Olmoe(ExpertKeys):
    num_experts_per_tok: Count = 8
    max_position_embeddings: Positions = 4096
    rms_norm_eps: Epsilon = 1e-5
    router_aux_loss_coef: Weight = 0.01
    num_experts: Count = 64
    norm_topk_prob: bool = False
    clip_qkv: float | None = None


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Olmoe, config, place, strict=False)
    clipped = ("clip_qkv", read.clip_qkv is not None, "clipping of queries, keys and values")
    refuse(place, [clipped], "use a model without it, as OLMoE-1B-7B is")
    return {
        **of_keys(read, place),
        "head_dim": None,
        "mlp_bias": False,
        "qk_norm": "width",
        "experts": experts_of(read.num_experts, read, place, normalised=read.norm_topk_prob),
        "balance_loss": balance_of(read),
    }


def _write(model: ModelSpec) -> dict[str, Any]:
    experts = model.experts or Experts(1, 1)  # a model without any reads as another then
    return {
        **to_keys(model, "head_dim"),
        **balance_keys(model),
        "attention_bias": model.qkv_bias,
        "num_experts": experts.count,
        "num_experts_per_tok": experts.chosen,
        "norm_topk_prob": experts.normalised,
    }


FAMILY = Family(
    "olmoe",
    "OlmoeForCausalLM",
    "OLMoE-1B-7B",
    _read,
    _write,
    {**OUTSIDE, **ATTENTION, **QK_NORMS, **NORMS, **EXPERTS},
    also=STACKED,
)
