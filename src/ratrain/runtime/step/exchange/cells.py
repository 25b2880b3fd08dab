"""Which part of a tensor between two stages each rank sends to whom, whatever their tensor degrees.

Groups of one degree send it from rank to rank, whole. Where degrees differ every element crosses
once: the sending group cuts it into as many parts as it has ranks, the receiving group likewise,
and where two parts overlap is a cell, one message. Parts are equal but for an element, so no degree
needs to divide anything. A receiving group then puts its parts together, each rank needs them all.

Where groups divide rows (sequence parallelism) each rank has its part alone, and needs no other: of
equal degrees it goes from rank to rank, else cells lie in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ratrain.ranges import common, part_of
from ratrain.runtime.seats import Seat, Seats

if TYPE_CHECKING:
    from torch import Tensor


class Cell(NamedTuple):
    """Elements begin .. end of the tensor, exchanged with rank `peer` of the other group."""

    peer: int
    begin: int
    end: int


def cells(count: int, rank: int, degree: int, other_degree: int) -> list[Cell]:
    """What rank `rank` of a group of `degree` exchanges with a group of `other_degree`, of a tensor
    of `count` elements: forward as backward, as sender and as receiver, by rank of the other. A
    tensor of fewer elements than cells leaves some empty."""
    if degree == other_degree:
        return [Cell(rank, 0, count)]
    own = part_of(count, rank, degree)
    return [
        Cell(peer, *common(own, part_of(count, peer, other_degree)))
        for peer in peers(rank, degree, other_degree)
    ]


def peers(rank: int, degree: int, other_degree: int) -> range:
    """The ranks of the other group with which this one exchanges cells."""
    if degree == other_degree:
        return range(rank, rank + 1)
    return range(rank * other_degree // degree, -(-(rank + 1) * other_degree // degree))


def cells_with(
    seats: Seats, seat: Seat, pipeline: int, count: int, *, divides_rows: bool
) -> list[Cell]:
    """The cells that a rank exchanges with a pipeline position of its replica, by world rank, of
    its own tensor of `count` elements: the whole, or where groups divide rows its part."""
    division, degree = seat.division, seats.degree(pipeline, seat.data)
    begin = 0
    if divides_rows and degree != division.degree:
        begin, count = division.rank * count, division.degree * count
    return [
        Cell(seats.world_rank(pipeline, seat.data, peer), first - begin, end - begin)
        for peer, first, end in cells(count, division.rank, division.degree, degree)
    ]


def peers_at(seats: Seats, seat: Seat, pipeline: int) -> list[int]:
    """The world ranks at a pipeline position of its replica with which a rank exchanges cells."""
    degree = seats.degree(pipeline, seat.data)
    return [
        seats.world_rank(pipeline, seat.data, peer)
        for peer in peers(seat.division.rank, seat.division.degree, degree)
    ]


def peers_at_other_end(seats: Seats, seat: Seat) -> list[int]:
    """The world ranks at the other end of its pipeline that share a tied matrix' parts with a rank;
    none for a rank between the ends, or at both."""
    last = seats.depth(seat.data) - 1
    if not last or seat.pipeline not in (0, last):
        return []
    return peers_at(seats, seat, last - seat.pipeline)


def gathers_from(seats: Seats, seat: Seat, pipeline: int, *, divides_rows: bool) -> bool:
    """Whether a rank receives only its part from a pipeline position, and its group puts the parts
    together."""
    return not divides_rows and 1 < seat.division.degree != seats.degree(pipeline, seat.data)


def parts_of_group(tensor: Tensor, degree: int) -> list[Tensor]:
    """Every rank's part of a flat tensor."""
    return [tensor[slice(*part_of(len(tensor), rank, degree))] for rank in range(degree)]
