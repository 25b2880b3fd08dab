"""A tensor group as the functions of a unit see it: the models know no network."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ratrain.models.division import WHOLE, Division


class TensorGroup(Protocol):
    """The ranks that share a unit, as one of them sees them. Every call waits for all of them,
    and gives all of them the same bits."""

    @property
    def division(self) -> Division: ...

    def sum_(self, part: Tensor) -> None:
        """Replaces every rank's `part` by the sum of all, added in the order of ranks."""
        ...

    def gather(self, values: Tensor) -> list[Tensor]:
        """Every rank's `values`, by rank: for small tensors."""
        ...


def division_of(group: TensorGroup | None) -> Division:
    """This rank's part; everything where there is no group."""
    return WHOLE if group is None else group.division


def leads(group: TensorGroup | None) -> bool:
    """Whether this rank's part of a sum carries what must be added once: residuals and biases."""
    return division_of(group).rank == 0
