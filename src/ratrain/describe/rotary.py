"""Rotary positions and windows as config.json files say them, in the ways of several versions of
Transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Annotated, Any, Literal

from ratrain.describe.amounts import Fraction, Name, Positions
from ratrain.describe.model import ModelSpec, Positive, RopeScaling
from ratrain.describe.strict import Rule
from ratrain.errors import SpecError
from ratrain.readers.place import Place

Theta = Annotated[float, Rule(low=1, high=1e15)]
LayerType = Literal["full_attention", "sliding_attention"]
PLAIN = "default"


@dataclass(frozen=True)
class Rope:
    """A table `rope_parameters` (Transformers 5) or `rope_scaling` (before)."""

    rope_theta: Theta | None = None
    partial_rotary_factor: Fraction | None = None
    rope_type: Name | None = None
    type: Name | None = None
    factor: Positive | None = None
    original_max_position_embeddings: Positions | None = None
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    truncate: bool = True
    attention_factor: Positive | None = None
    mscale: Positive | None = None
    mscale_all_dim: Positive | None = None
    short_factor: tuple[Positive, ...] = ()
    long_factor: tuple[Positive, ...] = ()


@dataclass(frozen=True)
class LayerRopes:
    """`rope_parameters` where it has a table for each type of layer."""

    full_attention: Rope | None = None
    sliding_attention: Rope | None = None


def scaling_of(
    rope: Rope | None, positions: int, place: Place, original: int | None = None
) -> RopeScaling | None:
    """How a table stretches the angles of a model for `positions`; `original`: those it was first
    trained on, where that stands beside the table."""
    kind = (rope and (rope.rope_type or rope.type)) or PLAIN
    if rope is None or kind == PLAIN:
        return None
    before = rope.original_max_position_embeddings or original or positions
    factor = rope.factor
    if factor is None and kind in ("longrope", "su"):
        factor = max(1.0, positions / before)
    if factor is None:
        raise SpecError(
            f'rotary positions of type "{kind}" without their factor',
            place=str(place.at("rope_scaling")),
            fix="give factor, or set rope_scaling to null",
        )
    if kind in ("longrope", "su"):
        plain = 1.0 if factor <= 1 else sqrt(1 + log(factor) / log(before))
        return RopeScaling(
            "longrope",
            factor=factor,
            original_positions=before,
            attention_factor=rope.attention_factor or plain,
            short_factors=rope.short_factor,
            long_factors=rope.long_factor,
        )
    if kind == "linear":
        return RopeScaling(kind, factor=factor)
    if kind == "llama3":
        low, high = rope.low_freq_factor, rope.high_freq_factor
        return RopeScaling(kind, factor, before, low_frequency=low, high_frequency=high)
    if kind != "yarn":
        return RopeScaling(kind, factor, before)
    return RopeScaling(
        kind,
        factor,
        before,
        beta_fast=rope.beta_fast or 32.0,
        beta_slow=rope.beta_slow or 1.0,
        rounded=rope.truncate,
        attention_factor=rope.attention_factor or _yarn_attention(factor, rope),
    )


def _yarn_attention(factor: float, rope: Rope) -> float:
    def scale(times: float) -> float:
        return 0.1 * times * log(factor) + 1.0 if factor > 1 else 1.0

    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)


def scaling_table(model: ModelSpec) -> dict[str, Any] | None:
    """The table `rope_scaling` of a model, for its config.json."""
    s = model.rope_scaling
    if s is None:
        return None
    table: dict[str, Any] = {"rope_type": s.kind, "factor": s.factor}
    if s.kind != "linear":
        table["original_max_position_embeddings"] = s.original_positions
    if s.kind == "llama3":
        table |= {"low_freq_factor": s.low_frequency, "high_freq_factor": s.high_frequency}
    if s.kind == "yarn":
        table |= {"beta_fast": s.beta_fast, "beta_slow": s.beta_slow, "truncate": s.rounded}
    if s.kind == "longrope":
        table |= {"short_factor": [*s.short_factors], "long_factor": [*s.long_factors]}
    if s.kind in ("yarn", "longrope"):
        table["attention_factor"] = s.attention_factor
    return table


def windowed(
    window: int | None, layer_types: Sequence[str], model: Mapping[str, Any]
) -> dict[str, Any]:
    """The window of a model whose layers are of these types, as fields of a ModelSpec. One that
    holds every sequence is none."""
    everywhere = tuple(i for i, kind in enumerate(layer_types) if kind == "full_attention")
    wide = window is None or window >= model["max_positions"]
    if len(everywhere) == model["layers"] or (wide and model.get("local_rope_theta") is None):
        return {"window": None, "global_layers": ()}
    return {"window": window, "global_layers": everywhere}


def check_types(types: Sequence[str] | None, layers: int, place: Place) -> None:
    """Raises SpecError where there are types of layers, and not one for each."""
    if types is not None and len(types) != layers:
        raise SpecError(
            f"{len(types)} types of layers for {layers} layers",
            place=str(place.at("layer_types")),
            fix="give one for each layer",
        )


def types_of(model: ModelSpec) -> list[str]:
    """The types of a model's layers, for its config.json."""
    return [
        "full_attention" if model.window_of(layer) is None else "sliding_attention"
        for layer in range(model.layers)
    ]
