"""Which parameters each unit of a model has, and the sizes that its functions need.

Names and shapes are those of the cost formulas, so bills count what is allocated. Matrices are
(outputs, inputs), as in Hugging Face's files.
"""

from __future__ import annotations

from dataclasses import dataclass

from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError
from ratrain.models.division import WHOLE, Division, check_divides
from ratrain.models.parameters import UnitParameters, lay_out

Shapes = list[tuple[str, tuple[int, ...]]]
EMBEDDING, HEAD = "e", "h"


@dataclass(frozen=True)
class LayerShape:
    """Sizes of one layer as one rank computes it: a tensor group divides heads and ffn."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    epsilon: float
    division: Division = WHOLE


def layer_shape(spec: ModelSpec, division: Division = WHOLE) -> LayerShape:
    """The sizes of every layer of `spec`, or of one rank's part of it."""
    parts = division.degree
    return LayerShape(
        spec.hidden,
        spec.heads // parts,
        spec.kv_heads // parts,
        spec.head_dim,
        spec.ffn // parts,
        spec.norm_epsilon,
        division,
    )


def unit_names(spec: ModelSpec) -> tuple[str, ...]:
    """ "e", "0" .. "L-1", "h": the units in the order of the forward pass."""
    return (EMBEDDING, *(str(index) for index in range(spec.layers)), HEAD)


def unit_layout(spec: ModelSpec, name: str, division: Division = WHOLE) -> UnitParameters:
    """The flat layout of the parameters of unit `name`, or of one rank's part of them."""
    check_trainable(spec)
    check_divides(spec, division.degree)
    if name == EMBEDDING:
        return lay_out([("embedding.tokens", (spec.vocab, spec.hidden))], division)
    if name == HEAD:
        return lay_out(
            [("head.norm.weight", (spec.hidden,)), ("head.logits", (spec.vocab, spec.hidden))],
            division,
        )
    if name.isdecimal() and name == str(int(name)) and int(name) < spec.layers:
        return lay_out(_layer_shapes(spec), division)
    raise SpecError(
        f'there is no unit "{name}"',
        place=f"model {spec.name}",
        fix=f'use "e", "h", or a layer from "0" to "{spec.layers - 1}"',
    )


def check_trainable(spec: ModelSpec) -> None:
    """Raises SpecError where the model is of a family that these units do not compute."""
    wrong = {
        "norm": (spec.norm, "rms"),
        "gated_mlp": (spec.gated_mlp, True),
        "activation": (spec.activation, "silu"),
        "parallel_residual": (spec.parallel_residual, False),
    }
    unsupported = [f"{key} = {has!r}" for key, (has, can) in wrong.items() if has != can]
    if spec.position not in ("rope", "alibi"):
        unsupported.append(f"position = {spec.position!r}")
    if spec.position == "rope" and spec.head_dim % 2:
        unsupported.append(f"head_dim = {spec.head_dim} (rotary positions need an even one)")
    if unsupported:
        raise SpecError(
            f"this model can be planned and simulated, but not trained: {', '.join(unsupported)}",
            place=f"model {spec.name}",
            fix="use a model of the LLaMA, Qwen2 or Baichuan2 family",
        )


def _layer_shapes(spec: ModelSpec) -> Shapes:
    h, q, kv, f = spec.hidden, spec.query_hidden, spec.kv_hidden, spec.ffn
    return [
        ("norm1.weight", (h,)),
        *_linear("attention.q", q, h, spec.qkv_bias),
        *_linear("attention.k", kv, h, spec.qkv_bias),
        *_linear("attention.v", kv, h, spec.qkv_bias),
        *_linear("attention.output", h, q, spec.output_bias),
        ("norm2.weight", (h,)),
        *_linear("mlp.gate", f, h, spec.mlp_bias),
        *_linear("mlp.up", f, h, spec.mlp_bias),
        *_linear("mlp.down", h, f, spec.mlp_bias),
    ]


def _linear(name: str, out: int, into: int, bias: bool) -> Shapes:
    weight = (f"{name}.weight", (out, into))
    return [weight, (f"{name}.bias", (out,))] if bias else [weight]
