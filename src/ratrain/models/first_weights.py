"""The weights that training begins with: a Hugging Face folder's, or random ones."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from ratrain.describe.model import ModelSpec
from ratrain.models.huggingface.reader import read_range
from ratrain.models.initialise import initial_range
from ratrain.models.parameters import UnitParameters


def first_weights(
    spec: ModelSpec,
    unit_name: str,
    layout: UnitParameters,
    begin: int,
    end: int,
    seed: int,
    folder: Path | None,
) -> Tensor:
    """Elements begin .. end of one of a unit's flat buffers, in fp32. What no folder holds, which
    are adapters, follows from the seed."""
    if folder is None:
        return initial_range(spec, unit_name, layout, begin, end, seed)
    flat = read_range(folder, spec, unit_name, layout, begin, end)
    if any(each.adapts for each, _, _ in layout.overlaps(begin, end)):
        flat += initial_range(spec, unit_name, layout, begin, end, seed, adapters_alone=True)
    return flat
