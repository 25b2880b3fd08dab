"""Sums over a tensor group: parts are exchanged directly and added in the order of ranks.

A large sum goes in pieces. Of each piece every rank adds up its share, received from all others,
and hands the sum round: 2 (t - 1) / t of the bytes leave each rank, as in a ring. Two ranks, and
small tensors, exchange everything at once, which takes one turn in place of two. Which way was
taken changes no bit: each element is the sum of the parts, rank 0's first. Where the group divides
rows, a sum ends with each rank's share, and shares are handed round when a product needs them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ratrain.cost.scratch import CHUNK_BYTES
from ratrain.models.division import Division
from ratrain.runtime.step.exchange.sums import add_up, pieces

Swap = Callable[[Sequence[Tensor], Sequence[Tensor]], None]
"""Sends one tensor to each other rank of the group, and fills another with what each sends."""

SMALL_BYTES = 1 << 14
"""Up to here a turn takes longer than the bytes."""


class TensorPeers:
    """One rank's place in its tensor group, over connections of one lane."""

    def __init__(self, division: Division, swap: Swap, *, divides_rows: bool = False) -> None:
        self.division, self.divides_rows, self._swap = division, divides_rows, swap

    def sum_(self, part: Tensor) -> None:
        """Replaces every rank's `part` by the sum of all. It must be contiguous."""
        flat = part.view(-1)
        if self.division.degree == 2 or flat.nbytes <= SMALL_BYTES:
            for piece in pieces(flat):
                add_up(self.gather(piece), piece)
            return
        for piece in pieces(flat, CHUNK_BYTES * self.division.degree):
            shares = list(piece.tensor_split(self.division.degree))
            share = shares[self.division.rank]
            heard = [
                share if self._is_own(rank) else torch.empty_like(share) for rank in self._ranks
            ]
            self._exchange(shares, heard)
            add_up(heard, share)
            self._exchange([share] * self.division.degree, shares)

    def sum_rows(self, parts: Tensor) -> Tensor:
        """This rank's own rows of the sum of all ranks' `parts` [t, rows, h], which must be
        contiguous; (t - 1) / t of the bytes leave each rank."""
        total = torch.empty_like(parts[self.division.rank])
        shares = [share.view(-1) for share in parts]
        for here, *columns in zip(pieces(total.view(-1)), *map(pieces, shares), strict=True):
            heard = [
                columns[rank] if self._is_own(rank) else torch.empty_like(here)
                for rank in self._ranks
            ]
            self._exchange(columns, heard)
            add_up(heard, here)
        return total

    def gather_rows(self, rows: Tensor) -> Tensor:
        """All ranks' `rows`, which must be contiguous, one behind the other."""
        shares = rows.new_empty(self.division.degree, *rows.shape)
        shares[self.division.rank] = rows
        self._exchange([rows] * self.division.degree, list(shares))
        return shares.flatten(0, 1)

    def gather(self, values: Tensor) -> list[Tensor]:
        """Every rank's `values`, by rank."""
        heard = [values if self._is_own(rank) else torch.empty_like(values) for rank in self._ranks]
        self._exchange([values] * self.division.degree, heard)
        return heard

    @property
    def _ranks(self) -> range:
        return range(self.division.degree)

    def _is_own(self, rank: int) -> bool:
        return rank == self.division.rank

    def _exchange(self, out: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        """Sends `out[r]` to rank r, and fills `into[r]` with what r sends, for all others."""
        others = [rank for rank in self._ranks if not self._is_own(rank)]
        self._swap([out[rank] for rank in others], [into[rank] for rank in others])


def sent_of_sum(degree: int, *, divides_rows: bool) -> float:
    """What one rank sends in a sum that is an op of its own, over the size of the sum."""
    return (1 if divides_rows else 2) * (degree - 1) / degree
