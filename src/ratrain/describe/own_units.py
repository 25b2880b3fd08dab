"""Names and shapes of the parameters of a model of a user's own modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ratrain.describe.amounts import Name
from ratrain.describe.strict import Rule

FIRST, LAST = "e", "h"


@dataclass(frozen=True)
class OwnTensor:
    """A parameter of a unit, by its name in the unit's module."""

    name: Name
    shape: tuple[Annotated[int, Rule(low=1, high=1 << 31)], ...]


@dataclass(frozen=True)
class OwnUnits:
    """The parameters of each of a model's units; those of all blocks are the same."""

    first: tuple[OwnTensor, ...]
    block: tuple[OwnTensor, ...]
    last: tuple[OwnTensor, ...]

    def shapes(self, unit: str) -> list[tuple[str, tuple[int, ...]]]:
        """Names and shapes of unit "e", "0" .. "L-1" or "h"."""
        tensors = {FIRST: self.first, LAST: self.last}.get(unit, self.block)
        return [(tensor.name, tensor.shape) for tensor in tensors]
