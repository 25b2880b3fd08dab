"""Mixtral: Mistral with experts in place of each MLP; a token's two have weights that add up to
one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from ratrain.describe.amounts import Count, Positions
from ratrain.describe.families.llama import (
    ATTENTION,
    NORMS,
    OUTSIDE,
    Epsilon,
    LlamaKeys,
    of_keys,
    to_keys,
)
from ratrain.describe.family import Family, Numbered, Packed, refuse
from ratrain.describe.model import Experts, ModelSpec
from ratrain.describe.rotary import Theta, windowed
from ratrain.describe.strict import Rule, load
from ratrain.errors import SpecError
from ratrain.readers.place import Place

Weight = Annotated[float, Rule(low=0, high=100)]

_OLD = "model.layers.{}.block_sparse_moe"
GATE_UP = Packed("model.layers.{}.mlp.experts.gate_up_proj", ("experts.gate", "experts.up"))
STACKED = {
    "mlp.router": "model.layers.{}.mlp.gate",
    "experts.gate": GATE_UP,
    "experts.up": GATE_UP,
    "experts.down": "model.layers.{}.mlp.experts.down_proj",
}
"""As Transformers 5 holds a layer's experts, and may write them: all of them in two tensors."""


@dataclass(frozen=True)
class ExpertKeys(LlamaKeys):
    """What Mixtral and Qwen3-MoE say alike. A config names the weight of the experts' balance even
    where nothing is trained for it: `output_router_logits` says whether."""

    sliding_window: Positions | None = None
    num_experts_per_tok: Count = 2
    output_router_logits: bool = False
    router_aux_loss_coef: Weight = 0.001


@dataclass(frozen=True)
class _Mixtral(ExpertKeys):
    max_position_embeddings: Positions = 131072
    rms_norm_eps: Epsilon = 1e-5
    rope_theta: Theta = 1e6
    num_local_experts: Count = 8
    router_jitter_noise: float = 0.0


def experts_of(count: int, read: ExpertKeys, place: Place, *, normalised: bool) -> Experts:
    """As many experts as a config says."""
    try:
        return Experts(count, read.num_experts_per_tok, normalised)
    except SpecError as error:
        where = str(place.at("num_experts_per_tok"))
        raise SpecError(error.what, place=where, fix=error.fix) from None


def balance_of(read: ExpertKeys) -> float:
    """The weight of the loss for the experts' balance."""
    return read.router_aux_loss_coef if read.output_router_logits else 0.0


def balance_keys(model: ModelSpec) -> dict[str, Any]:
    """The keys that say it."""
    if not model.balance_loss:
        return {"output_router_logits": False}
    return {"output_router_logits": True, "router_aux_loss_coef": model.balance_loss}


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_Mixtral, config, place, strict=False)
    noise = ("router_jitter_noise", bool(read.router_jitter_noise), "noise on what a router reads")
    refuse(place, [noise], "set router_jitter_noise to 0")
    model = {**of_keys(read, place), "qkv_bias": False, "output_bias": False, "mlp_bias": False}
    return {
        **model,
        **windowed(read.sliding_window, (), model),
        "experts": experts_of(read.num_local_experts, read, place, normalised=True),
        "balance_loss": balance_of(read),
    }


def _write(model: ModelSpec) -> dict[str, Any]:
    experts = model.experts or Experts(1, 1)  # a model without any reads as another then
    return {
        **to_keys(model),
        **balance_keys(model),
        "sliding_window": model.window,
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.chosen,
    }


FAMILY = Family(
    "mixtral",
    "MixtralForCausalLM",
    "Mixtral 8x7B, 8x22B",
    _read,
    _write,
    {
        **OUTSIDE,
        **ATTENTION,
        **NORMS,
        "mlp.router": f"{_OLD}.gate",
        "experts.gate": Numbered(f"{_OLD}.experts.{{}}.w1"),
        "experts.up": Numbered(f"{_OLD}.experts.{{}}.w3"),
        "experts.down": Numbered(f"{_OLD}.experts.{{}}.w2"),
    },
    also=STACKED,
)
