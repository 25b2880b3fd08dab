"""Which models these units compute, and what of a model they do not."""

from __future__ import annotations

from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError

SILU, GELU, GELU_TANH, RELU, RELU2 = "silu", "gelu", "gelu_tanh", "relu", "relu2"
ACTIVATIONS = {
    **dict.fromkeys(("silu", "swish"), SILU),
    **dict.fromkeys(("gelu", "gelu_python"), GELU),
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_accurate"), GELU_TANH),
    "relu": RELU,
    "relu2": RELU2,
}
"""The activations that are computed, by the names that Transformers has for each."""
SCALINGS = ("linear", "llama3", "yarn", "longrope")


def trains(model: ModelSpec) -> str | None:
    """None where the model can be trained; else what of it cannot."""
    reasons = list[str]()
    if model.own:
        return None
    if model.activation not in ACTIVATIONS:
        reasons.append(f"activation = {model.activation!r}")
    if model.position == "none":
        reasons.append("position = 'none'")
    if model.position == "alibi" and (model.window is not None or model.attention_softcap):
        reasons.append("ALiBi with a window or soft caps")
    if model.position == "rope":
        reasons += _rotary(model)
    if model.norm == "rms" and not model.norm_weight:
        reasons.append("rms norms without weights")
    if model.norm == "layer" and model.qk_norm != "none":
        reasons.append("layer norm of queries and keys")
    if model.head_bias and model.tied_embeddings:
        reasons.append("a bias of the logits with tied_embeddings")
    if model.shared_norm and not model.parallel_residual:
        reasons.append("shared_norm without parallel_residual")
    if model.parallel_residual and model.norm_places != "before":
        reasons.append("parallel_residual with norms behind attention")
    if model.residual_multiplier != 1 and (model.output_bias or model.mlp_bias):
        reasons.append("residual_multiplier with biases of what it multiplies")
    if model.experts is None and (model.shared_expert or model.shared_expert_gate):
        reasons.append("shared_expert without experts")
    if model.experts is not None:
        reasons += _experts(model)
    return ", ".join(reasons) or None


def _experts(model: ModelSpec) -> list[str]:
    """What of a model's experts cannot be trained."""
    odd = {
        "gated_mlp = false": not model.gated_mlp,
        "mlp_bias": model.mlp_bias,
        "parallel_residual": model.parallel_residual,
        "a shared one and norms behind": bool(model.shared_expert)
        and model.norm_places != "before",
    }
    return [f"experts with {name}" for name, found in odd.items() if found]


def check_trainable(model: ModelSpec) -> None:
    """Raises SpecError where the model cannot be trained."""
    reason = trains(model)
    if reason is not None:
        raise SpecError(
            f"this model can be planned and simulated, but not trained: {reason}",
            place=f"model {model.name}",
            fix="`ratrain models` lists the families that can be trained",
        )


def _rotary(model: ModelSpec) -> list[str]:
    """What of a model's rotary positions cannot be trained."""
    reasons = list[str]()
    turned = int(model.head_dim * model.rotary_share)
    if turned % 2 or turned == 0:
        reasons.append(f"rotary positions of {turned} dimensions of a head (an even number can)")
    scaling = model.rope_scaling
    if scaling is None:
        return reasons
    if scaling.kind not in SCALINGS:
        reasons.append(f'rotary positions of type "{scaling.kind}"')
    if scaling.kind == "longrope":
        for factors in (scaling.short_factors, scaling.long_factors):
            if len(factors) != turned // 2:
                reasons.append(f"{len(factors)} factors for {turned // 2} rotary angles")
    if scaling.kind == "llama3" and scaling.low_frequency >= scaling.high_frequency:
        reasons.append("llama3 scaling whose low frequency is not below its high one")
    return reasons
