"""GPT-J: attention without biases and MLP read one layer norm, and a part of each head is rotated,
in pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratrain.describe.amounts import Positions, Width
from ratrain.describe.families.gpt2 import GptKeys, gpt_keys, of_gpt
from ratrain.describe.families.phi import PARALLEL
from ratrain.describe.family import Family, refuse
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import load
from ratrain.readers.place import Place


@dataclass(frozen=True)
class _GptJ(GptKeys):
    n_positions: Positions = 2048
    rotary_dim: Width | None = 64
    tie_word_embeddings: bool = False


def _read(config: Mapping[str, Any], place: Place) -> dict[str, Any]:
    read = load(_GptJ, config, place, strict=False)
    width = max(1, read.n_embd // read.n_head)
    wide = ("rotary_dim", (read.rotary_dim or 0) > width, "rotation of more than a head")
    refuse(place, [wide], f"give at most {width}")
    return {
        **of_gpt(read),
        **PARALLEL,
        "qkv_bias": False,
        "output_bias": False,
        "rotary_share": (read.rotary_dim or width) / width,
        "rotary_pairs": True,
    }


def _write(model: ModelSpec) -> dict[str, Any]:
    return {**gpt_keys(model), "rotary_dim": round(model.head_dim * model.rotary_share)}


_LAYER = "transformer.h.{}"
FAMILY = Family(
    "gptj",
    "GPTJForCausalLM",
    "GPT-J 6B",
    _read,
    _write,
    {
        "embedding.tokens": "transformer.wte",
        "norm1": f"{_LAYER}.ln_1",
        "attention.q": f"{_LAYER}.attn.q_proj",
        "attention.k": f"{_LAYER}.attn.k_proj",
        "attention.v": f"{_LAYER}.attn.v_proj",
        "attention.output": f"{_LAYER}.attn.out_proj",
        "mlp.up": f"{_LAYER}.mlp.fc_in",
        "mlp.down": f"{_LAYER}.mlp.fc_out",
        "head.norm": "transformer.ln_f",
        "head.logits": "lm_head",
    },
)
