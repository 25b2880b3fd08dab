"""Parts of units in checkpoints: any degree reads what any other has written."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ratrain.describe.model import ModelSpec
from ratrain.models.division import Division
from ratrain.models.initialise import initial_range
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.runtime.step.tensor_parts import (
    StoredParts,
    divisions,
    stored_degrees,
    stored_name,
    stored_sizes,
)

SPEC = ModelSpec(
    name="tiny",
    family="llama",
    hidden=24,
    layers=2,
    heads=8,
    kv_heads=4,
    head_dim=6,
    ffn=20,
    vocab=36,
    max_positions=64,
    source="a test",
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
)
DEGREES = (1, 2, 4)
PARTS = [
    (unit, division)
    for unit in unit_names(SPEC)
    for degree in DEGREES
    for division in divisions(degree)
]
OF_NAME = {stored_name(unit, division): (unit, division) for unit, division in PARTS}


def values(unit: str, division: Division, kind: str, begin: int, end: int) -> Tensor:
    """What a checkpoint holds of a part: with another seed for each kind."""
    layout = unit_layout(SPEC, unit, division)
    return initial_range(SPEC, unit, layout, begin, end, seed=len(kind))


@given(st.sampled_from(DEGREES), st.sampled_from(PARTS), st.data())
@settings(deadline=None, max_examples=60)
def test_any_degree_reads_what_any_other_has_written(
    degree: int, part: tuple[str, Division], data: st.DataObject
) -> None:
    unit, division = part

    def read(name: str, kind: str, begin: int, end: int) -> Tensor:
        stored, written_by = OF_NAME[name]
        assert written_by.degree == degree
        return values(stored, written_by, kind, begin, end)

    size = unit_layout(SPEC, unit, division).size
    begin = data.draw(st.integers(0, size))
    end = data.draw(st.integers(begin, size))
    kind = data.draw(st.sampled_from(["weights", "moment1"]))
    degrees = dict.fromkeys(unit_names(SPEC), degree)
    read_back = StoredParts(SPEC, degrees, read).read_range(unit, division, kind, begin, end)
    assert torch.equal(read_back, values(unit, division, kind, begin, end))


def test_names_tell_the_degree_that_wrote_them() -> None:
    for degree in DEGREES:
        degrees = dict.fromkeys(unit_names(SPEC), degree)
        names = stored_sizes(SPEC, degrees)
        assert stored_degrees(SPEC, names) == degrees
        assert len(names) == degree * len(unit_names(SPEC))
    assert stored_name("7", Division(1, 2)) == "7.t1of2"
    assert stored_name("7", Division()) == "7"
