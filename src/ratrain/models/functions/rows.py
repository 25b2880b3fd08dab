"""Matrices with a row a token, of which each rank of a tensor group may have its own rows alone."""

from __future__ import annotations

from torch import Tensor

from ratrain.models.tensor_group import TensorGroup, divides_rows, leads


class Rows:
    """A matrix of which `own` is here: all of it, or in a group that divides rows this rank's part.
    The others' are gathered when a product asks for all, and kept until they are let go."""

    def __init__(
        self, own: Tensor, group: TensorGroup | None = None, known: Tensor | None = None
    ) -> None:
        self.own = own
        self._group = group if divides_rows(group) else None
        self._all = known if self._group is not None else own

    def all(self) -> Tensor:
        """All ranks' rows. Every rank of the group must ask for them."""
        if self._all is None:
            assert self._group is not None
            self._all = self._group.gather_rows(self.own)
        return self._all

    def let_go(self) -> None:
        """Keeps no others' rows: who asks for all again gathers them again."""
        if self._group is not None:
            self._all = None


def spread(rows: Tensor, group: TensorGroup | None) -> Tensor:
    """A tensor between two units as a unit takes it, as input or as gradient of its output. Where
    the group divides rows: this rank's own [rows, h], without memory repeated for each rank, so
    that they have the shape [t, rows, h] of what the unit gives back, parts of sums of all rows."""
    if group is None or not group.divides_rows:
        return rows
    return rows.expand(group.division.degree, *rows.shape)


def own_rows(x: Tensor, group: TensorGroup | None) -> Tensor:
    """The rows [tokens, h] that are here of what `spread` has made."""
    return x[0] if divides_rows(group) else x.flatten(0, 1)


def by_rank(part: Tensor, group: TensorGroup | None) -> Tensor:
    """A rank's part of a sum of all rows; where the group divides them, [t, rows, h]."""
    if group is None or not group.divides_rows:
        return part
    return part.view(group.division.degree, -1, part.shape[-1])


def add_own(part: Tensor, complete: Tensor, group: TensorGroup | None) -> Tensor:
    """Adds what is complete to a rank's part of a sum, in place, so that the sum has it once: in
    rank 0's part, or where the group divides rows, of its own in each rank's."""
    if group is not None and group.divides_rows:
        part[group.division.rank].add_(complete)
    elif leads(group):
        part.add_(complete)
    return part


def part_of(complete: Tensor, group: TensorGroup | None) -> Tensor:
    """What is complete, of the rows that are here, as a rank's part of a sum that gives it."""
    if group is None:
        return complete
    shape = (group.division.degree, *complete.shape) if group.divides_rows else complete.shape
    return add_own(complete.new_zeros(shape), complete, group)


def summed(part: Tensor, group: TensorGroup | None) -> Tensor:
    """The sum of the group's parts, of the rows that are to be here: in the memory of `part`, or
    where the group divides rows in its own."""
    if group is None:
        return part
    if group.divides_rows:
        return group.sum_rows(part)
    group.sum_(part)
    return part
