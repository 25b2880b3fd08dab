"""Qwen3-MoE: Qwen3 with experts in place of each MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Count, Positions, WideWidth
from ratrain.describe.families.llama import (
    ATTENTION,
    NORMS,
    OUTSIDE,
    QK_NORMS,
    of_keys,
    to_keys,
)
from ratrain.describe.families.mixtral import (
    STACKED,
    ExpertKeys,
    balance_keys,
    balance_of,
    experts_of,
)
from ratrain.describe.family import Family, Numbered, refuse
from ratrain.describe.model import Experts, LayerIndex, ModelSpec
from ratrain.describe.rotary import windowed
from ratrain.describe.strict import load
from ratrain.readers.place import Place

_EXPERT = "model.layers.{}.mlp.experts.{}"
EXPERTS = {
    "mlp.router": "model.layers.{}.mlp.gate",
    "experts.gate": Numbered(f"{_EXPERT}.gate_proj"),
    "experts.up": Numbered(f"{_EXPERT}.up_proj"),
    "experts.down": Numbered(f"{_EXPERT}.down_proj"),
}


@dataclass(frozen=True)
class QwenMoeKeys(ExpertKeys):
    """What Qwen2-MoE and Qwen3-MoE say alike."""

    max_position_embeddings: Positions = 32768
    sliding_window: Positions | None = 4096
    use_sliding_window: bool = False
    moe_intermediate_size: WideWidth = 768
    num_experts: Count | None = None
    num_local_experts: Count | None = None  # what Transformers 5 calls them
    norm_topk_prob: bool = False
    decoder_sparse_step: Count = 1
    mlp_only_layers: tuple[LayerIndex, ...] | None = None


@dataclass(frozen=True)
class _Qwen3Moe(QwenMoeKeys):
    num_experts_per_tok: Count = 8


def of_qwen_moe(read: QwenMoeKeys, usual: int, place: Place) -> dict[str, Any]:
    """The fields of a ModelSpec that their keys say, of `usual` experts where they do not say."""
    mixed = "a model with experts in some layers and one MLP in others"
    cases = (
        ("decoder_sparse_step", read.decoder_sparse_step > 1, mixed),
        ("mlp_only_layers", bool(read.mlp_only_layers), mixed),
    )
    fix = "use a model with experts in every layer, as Qwen3-30B-A3B and 235B-A22B are"
    refuse(place, cases, fix)
    count = read.num_local_experts or read.num_experts or usual
    return {
        **of_keys(read, place),
        "mlp_bias": False,
        "ffn": read.moe_intermediate_size,
        "experts": experts_of(count, read, place, normalised=read.norm_topk_prob),
        "balance_loss": balance_of(read),
    }


def qwen_moe_keys(model: ModelSpec) -> dict[str, Any]:
    """Those keys of a model."""
    experts = model.experts or Experts(1, 1)  # a model without any reads as another then
    return {
        **to_keys(model),
        **balance_keys(model),
        "use_sliding_window": model.window is not None,
        **({} if model.window is None else {"sliding_window": model.window}),
        "moe_intermediate_size": model.ffn,
        "num_experts": experts.count,
        "num_experts_per_tok": experts.chosen,
        "norm_topk_prob": experts.normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Qwen3Moe, config, place, strict=False)
    model = {**of_qwen_moe(read, 128, place), "qk_norm": "head"}
    window = read.sliding_window if read.use_sliding_window else None
    return {**model, **windowed(window, (), model)}


def _write(model: ModelSpec) -> dict[str, Any]:
    return {**qwen_moe_keys(model), "attention_bias": model.qkv_bias}


FAMILY = Family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder-30B-A3B",
    _read,
    _write,
    {
        **OUTSIDE,
        **ATTENTION,
        **QK_NORMS,
        **NORMS,
        **EXPERTS,
    },
    also=STACKED,
)
