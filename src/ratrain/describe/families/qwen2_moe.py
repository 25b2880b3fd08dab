"""Qwen2-MoE: Qwen2 with experts, and beside them an MLP that every token has, by as much as the
token says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Count, Natural, WideWidth
from ratrain.describe.families.llama import ATTENTION, NORMS, OUTSIDE
from ratrain.describe.families.mixtral import STACKED
from ratrain.describe.families.qwen3_moe import EXPERTS, QwenMoeKeys, of_qwen_moe, qwen_moe_keys
from ratrain.describe.family import Family, refuse
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class _Qwen2Moe(QwenMoeKeys):
    sliding_window: Natural | None = None  # Transformers writes 0 where there is none
    num_experts_per_tok: Count = 4
    moe_intermediate_size: WideWidth = 1408
    shared_expert_intermediate_size: WideWidth = 5632
    qkv_bias: bool = True


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Qwen2Moe, config, place, strict=False)
    windows = ("use_sliding_window", read.use_sliding_window, "a Qwen2-MoE with windows")
    refuse(place, [windows], "use one without, as all that are published are")
    return {
        **of_qwen_moe(read, 60, place),
        "qkv_bias": read.qkv_bias,
        "output_bias": False,
        "shared_expert": read.shared_expert_intermediate_size,
        "shared_expert_gate": True,
    }


def _write(model: ModelSpec) -> dict[str, Any]:
    shared = {"shared_expert_intermediate_size": model.shared_expert or 1}
    return {**qwen_moe_keys(model), **shared, "qkv_bias": model.qkv_bias}


_SHARED = "model.layers.{}.mlp.shared_expert"
FAMILY = Family(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    "Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B",
    _read,
    _write,
    {
        **OUTSIDE,
        **ATTENTION,
        **NORMS,
        **EXPERTS,
        "mlp.gate": f"{_SHARED}.gate_proj",
        "mlp.up": f"{_SHARED}.up_proj",
        "mlp.down": f"{_SHARED}.down_proj",
        "mlp.share": f"{_SHARED}_gate",
    },
    also=STACKED,
)
