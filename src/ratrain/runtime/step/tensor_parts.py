"""Units of a tensor group in checkpoints: each rank's part under a name of its own.

"7.t1of2" is the second half of layer 7. Each unit has a degree of its own. Any degree reads what
any other has written: a parameter is put together from the parts that were stored, and the part
that is wanted is cut out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from ratrain.describe.model import ModelSpec
from ratrain.models.division import WHOLE, Division
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.ranges import copies
from ratrain.runtime.step.blocks import blocks_of, blocks_within, view_of

_READER = -1  # is none of those who stored
_NAME = re.compile(r"(.+)\.t(\d+)of(\d+)\Z")

Read = Callable[[str, str, int, int], Tensor]
"""(stored name, kind, begin, end) -> those elements of a checkpoint."""


def stored_name(unit: str, division: Division) -> str:
    """The name of one rank's part of a unit; the unit's own where there is one rank."""
    return unit if division == WHOLE else f"{unit}.t{division.rank}of{division.degree}"


def unit_of_stored(name: str) -> str:
    """The unit of which a stored name is a part, or the whole."""
    match = _NAME.match(name)
    return match[1] if match else name


def stored_sizes(spec: ModelSpec, degrees: Mapping[str, int]) -> dict[str, int]:
    """Elements of everything that a model's checkpoint holds, by stored name; `degrees`, by unit:
    in how many parts. Of what nobody updates it holds nothing."""
    sizes = {
        stored_name(unit, division): unit_layout(spec, unit, division).size
        for unit in unit_names(spec)
        for division in divisions(degrees[unit])
    }
    return {name: size for name, size in sizes.items() if size}


def stored_degrees(spec: ModelSpec, names: Iterable[str]) -> dict[str, int]:
    """For each unit of a model, in how many parts those who wrote these names have stored it."""
    degrees = dict.fromkeys(unit_names(spec), 1)
    for match in filter(None, map(_NAME.match, names)):
        if match[1] in degrees:
            degrees[match[1]] = max(degrees[match[1]], int(match[3]))
    return degrees


def divisions(degree: int) -> list[Division]:
    """All parts of a unit."""
    return [Division(rank, degree) for rank in range(degree)]


class StoredParts:
    """A checkpoint, read as if another degree had written it. `degrees`, by unit: the one that
    has."""

    def __init__(self, spec: ModelSpec, degrees: Mapping[str, int], read: Read) -> None:
        self._spec, self._degrees, self._read = spec, degrees, read

    def first_name(self, unit: str) -> str:
        """The name of a unit's first part, or of the unit itself where it is whole."""
        return stored_name(unit, Division(0, self._degrees[unit]))

    def read_range(self, unit: str, division: Division, kind: str, begin: int, end: int) -> Tensor:
        """Elements begin .. end of the flat buffer of one part of a unit, fp32. Memory beside the
        result: a parameter as one rank stored it."""
        if division.degree == self._degrees[unit]:
            return self._read(stored_name(unit, division), kind, begin, end)
        wanted = list(blocks_within(unit_layout(self._spec, unit, division), begin, end))
        stored = divisions(self._degrees[unit])
        held = {d.rank: blocks_of(unit_layout(self._spec, unit, d)) for d in stored}
        out = torch.zeros(end - begin)
        for source, _, there, here in copies(held, {_READER: wanted}):
            values = self._read(stored_name(unit, stored[source]), kind, there.offset, there.end)
            view_of(out, here, begin=begin).copy_(view_of(values, there, begin=there.offset))
        return out
