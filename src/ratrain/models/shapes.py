"""Which parameters each unit of a model has, and the sizes that its functions need.

Names and shapes are those of the cost formulas (`describe/parameters.py`), so bills count what is
allocated.
"""

from __future__ import annotations

from dataclasses import dataclass

from ratrain.describe.model import ModelSpec
from ratrain.describe.parameters import embedding_parameters, head_parameters, layer_parameters
from ratrain.errors import SpecError
from ratrain.models.division import WHOLE, Division, check_divides
from ratrain.models.parameters import UnitParameters, lay_out
from ratrain.models.trainable import check_trainable

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
        return lay_out(embedding_parameters(spec), division)
    if name == HEAD:
        return lay_out(head_parameters(spec), division)
    if name.isdecimal() and name == str(int(name)) and int(name) < spec.layers:
        return lay_out(layer_parameters(spec), division)
    raise SpecError(
        f'there is no unit "{name}"',
        place=f"model {spec.name}",
        fix=f'use "e", "h", or a layer from "0" to "{spec.layers - 1}"',
    )
