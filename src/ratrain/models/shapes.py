"""Which parameters each unit of a model has, and the sizes that its functions need.

Names and shapes are those of the cost formulas (`describe/trained.py`), so bills count what is
allocated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ratrain.describe.held import stored
from ratrain.describe.model import ModelSpec
from ratrain.describe.trained import EMBEDDING, HEAD, adapters, unit_parameters
from ratrain.errors import SpecError
from ratrain.models.division import WHOLE, Division, check_divides
from ratrain.models.parameters import UnitParameters, lay_out
from ratrain.models.trainable import check_trainable

__all__ = ["EMBEDDING", "HEAD"]


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
    _check_name(spec, name)
    given = unit_parameters(spec, name)
    layout = lay_out([each[:2] for each in given if each.trained], division)
    frozen = [each[:2] for each in given if not each.trained]
    if not frozen:
        return layout
    packed = [
        part for each in given if each.held for part in stored(each.name, each.shape, each.held)
    ]
    lora = spec.tuning and spec.tuning.lora
    return replace(
        layout,
        frozen=replace(
            lay_out(frozen, division, trained=False),
            packed=lay_out(packed, division, trained=False) if packed else None,
        ),
        adapters=adapters(spec, name),
        adapter_scale=lora.scale if lora else 1.0,
    )


def _check_name(spec: ModelSpec, name: str) -> None:
    is_layer = name.isdecimal() and name == str(int(name)) and int(name) < spec.layers
    if name not in (EMBEDDING, HEAD) and not is_layer:
        raise SpecError(
            f'there is no unit "{name}"',
            place=f"model {spec.name}",
            fix=f'use "e", "h", or a layer from "0" to "{spec.layers - 1}"',
        )
