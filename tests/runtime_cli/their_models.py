"""Tiny random models of Transformers, at least one of every family that it has a class for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ratrain.describe.huggingface import load_config
from ratrain.describe.model import ModelSpec
from ratrain.models.huggingface import read_range
from ratrain.models.shapes import unit_layout, unit_names

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
"""Words and heads that two ranks can share."""
GEMMA: dict[str, Any] = {**SIZES, "head_dim": 12}
EXPERTS: dict[str, Any] = {
    **SIZES,
    "head_dim": 12,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}
GPT: dict[str, Any] = {
    **{"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 64, "n_positions": 64}
}
FALCON: dict[str, Any] = {
    **{key: SIZES[key] for key in SIZES if key not in ("num_key_value_heads", "intermediate_size")},
    "num_ln_in_parallel_attn": 1,
}
GRANITE: dict[str, Any] = {
    **SIZES,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.25,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
}
GRANITE_MOE: dict[str, Any] = {**GRANITE, "num_local_experts": 6, "num_experts_per_tok": 3}
NO_TOKENS: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0], "long_factor": [2.0, 3.0, 9.0]}


@dataclass(frozen=True)
class Their:
    """A model_type and the keys of its config."""

    family: str
    keys: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def divides(self) -> bool:
        """Whether a tensor group can share it: not where queries are normalised over all heads, nor
        where they have one key head."""
        one_key = self.keys.get("num_kv_heads") == 1 or self.keys.get("multi_query", False)
        return self.family not in ("olmo2", "olmo3", "olmoe") and not one_key


THEIRS = {
    "llama": Their("llama", {**SIZES, "attention_bias": True, "mlp_bias": True}),
    "llama3": Their("llama", {**SIZES, "rope_scaling": LLAMA3, "rope_theta": 500.0}),
    "linear": Their("llama", {**SIZES, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "yarn": Their("llama", {**SIZES, "rope_scaling": YARN}),
    "mistral": Their("mistral", {**SIZES, "sliding_window": 7, "head_dim": 16}),
    "qwen2": Their("qwen2", {**SIZES, "tie_word_embeddings": True}),
    "qwen2 window": Their(
        "qwen2",
        {**SIZES, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": Their("qwen3", {**SIZES, "head_dim": 12, "rope_scaling": YARN}),
    "phi3": Their("phi3", {**SIZES, "sliding_window": 9}),
    "phi3 long": Their(
        "phi3",
        {
            **SIZES,
            "rope_scaling": LONG,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 32,
        },
    ),
    "gemma": Their("gemma", {**GEMMA, "hidden_activation": "gelu_pytorch_tanh"}),
    "gemma2": Their(
        "gemma2", {**GEMMA, "sliding_window": 6, "query_pre_attn_scalar": 5, "attention_bias": True}
    ),
    "gemma3": Their(
        "gemma3_text",
        {
            **GEMMA,
            "sliding_window": 6,
            "sliding_window_pattern": 2,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "final_logit_softcapping": 2.0,
        },
    ),
    "olmo": Their("olmo", SIZES),
    "olmo2": Their("olmo2", SIZES),
    "mixtral": Their("mixtral", {**SIZES, "num_local_experts": 4, "sliding_window": 9}),
    "qwen3_moe": Their("qwen3_moe", {**EXPERTS, "norm_topk_prob": True}),
    "qwen3_moe as it is": Their("qwen3_moe", {**EXPERTS, "attention_bias": True}),
    "qwen2_moe": Their("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 40}),
    "granitemoe": Their("granitemoe", GRANITE_MOE),
    "granitemoeshared": Their("granitemoeshared", {**GRANITE_MOE, "shared_intermediate_size": 56}),
    "olmo3": Their(
        "olmo3",
        {
            **SIZES,
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_scaling": YARN,
        },
    ),
    "olmo3 plain": Their("olmo3", {**SIZES, "sliding_window": 7, "rope_theta": 100.0}),
    "olmoe": Their("olmoe", {**SIZES, "num_experts": 6, "num_experts_per_tok": 3}),
    "seed_oss": Their("seed_oss", {**SIZES, "head_dim": 12, "attention_out_bias": True}),
    "smollm3": Their("smollm3", {**SIZES, "no_rope_layers": [1, 0, 1]}),
    "smollm3 window": Their(
        "smollm3",
        {**SIZES, "no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 6},
    ),
    "granite": Their("granite", GRANITE),
    "stablelm": Their("stablelm", {**SIZES, "use_qkv_bias": True}),
    "stablelm in parallel": Their("stablelm", {**SIZES, "use_parallel_residual": True}),
    "starcoder2": Their("starcoder2", {**SIZES, "sliding_window": 9}),
    "exaone4": Their(
        "exaone4", {**SIZES, "sliding_window": None, "layer_types": ["full_attention"] * 3}
    ),
    "exaone4 window": Their(
        "exaone4",
        {
            **SIZES,
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "glm": Their("glm", {**SIZES, "head_dim": 12, "partial_rotary_factor": 0.5}),
    "glm4": Their(
        "glm4", {**SIZES, "head_dim": 16, "partial_rotary_factor": 0.5, "tie_word_embeddings": True}
    ),
    "ernie4_5": Their("ernie4_5", {**SIZES, "head_dim": 12, "use_bias": True}),
    "opt": Their(
        "opt",
        {
            **{key: value for key, value in SIZES.items() if key != "intermediate_size"},
            **{"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0},
        },
    ),
    "cohere": Their("cohere", {**SIZES, "logit_scale": 0.25, "attention_bias": True}),
    "cohere2": Their(
        "cohere2", {**SIZES, "sliding_window": 7, "sliding_window_pattern": 2, "logit_scale": 0.5}
    ),
    "phi": Their("phi", SIZES),
    "arcee": Their("arcee", {**SIZES, "mlp_bias": True}),
    "nemotron": Their("nemotron", {**SIZES, "head_dim": 12}),
    "gptj": Their("gptj", {**GPT, "rotary_dim": 4}),
    "falcon": Their("falcon", {**FALCON, "num_kv_heads": 2, "new_decoder_architecture": True}),
    "falcon of one key": Their("falcon", {**FALCON, "num_kv_heads": 1, "bias": True}),
    "falcon in turn": Their("falcon", {**FALCON, "multi_query": False, "parallel_attn": False}),
    "gpt2": Their("gpt2", GPT),
    "gpt_bigcode": Their("gpt_bigcode", {**GPT, "multi_query": False}),
    "gpt_bigcode of one key": Their("gpt_bigcode", {**GPT, "multi_query": True}),
    "gpt_neo": Their(
        "gpt_neo",
        {
            **{"hidden_size": 32, "num_layers": 3, "num_heads": 4, "vocab_size": 64},
            **{"max_position_embeddings": 64, "window_size": 7},
            "attention_types": [[["global", "local", "local"], 1]],
            "attention_layers": ["global", "local", "local"],
        },
    ),
    "gpt_neox": Their("gpt_neox", {**SIZES, "rotary_pct": 0.5}),
    "gpt_neox in turn": Their("gpt_neox", {**SIZES, "use_parallel_residual": False}),
}


def their_model(name: str, **keys: Any) -> Any:
    """A random model in fp32, every parameter far from its initial value; `keys`: of its config,
    others than usual. Its attention is eager: others know no soft caps."""
    their = THEIRS[name]
    config = AutoConfig.for_model(their.family, **{**their.keys, **keys}, **NO_TOKENS)
    torch.manual_seed(5)
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.2, 0.3) if parameter.dim() == 1 else parameter.normal_(0, 0.2)
    return model.float().eval()


def written(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Any, ModelSpec]:
    """A model, saved to a folder, and what its config.json describes."""
    model = their_model(name).to(dtype)
    model.save_pretrained(folder)
    return model, load_config(folder / "config.json")


def read_all(folder: Path, spec: ModelSpec) -> dict[str, torch.Tensor]:
    """Every unit's flat buffer out of a folder."""
    layouts = {name: unit_layout(spec, name) for name in unit_names(spec)}
    return {
        name: read_range(folder, spec, name, layout, 0, layout.size)
        for name, layout in layouts.items()
    }


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest difference, in parts of the largest value."""
    return float((ours - theirs).abs().max() / theirs.abs().max())
