"""A tensor group as the functions of a unit see it: the models know no network."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ratrain.models.division import WHOLE, Division


class TensorGroup(Protocol):
    """The ranks that share a unit, as one of them sees them. Every call waits for all of them,
    and whatever several of them get has the same bits on all."""

    @property
    def division(self) -> Division: ...

    @property
    def divides_rows(self) -> bool:
        """Whether outside of products each rank has some of the tokens alone (sequence parallelism,
        arXiv 2205.05198): equal runs of a micro-batch's tokens, sequence behind sequence."""
        ...

    def sum_(self, part: Tensor) -> None:
        """Replaces every rank's `part` by the sum of all, added in the order of ranks."""
        ...

    def sum_rows(self, parts: Tensor) -> Tensor:
        """This rank's own rows of the sum of all ranks' `parts` [t, rows, h], added in the order of
        ranks."""
        ...

    def gather_rows(self, rows: Tensor) -> Tensor:
        """All ranks' `rows` [rows, h], by rank: [t x rows, h]."""
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


def divides_rows(group: TensorGroup | None) -> bool:
    """Whether each rank has some of the tokens alone; not where there is no group."""
    return group is not None and group.divides_rows


def dividing(group: TensorGroup | None) -> TensorGroup | None:
    """The group, where each of its ranks has some of the tokens alone."""
    return group if divides_rows(group) else None
