"""The network between ranks on CPUs: authenticated connections, used by the lanes' own threads.

A message's header tells the receiver that its sender is there; the receiver answers when it has
room, and the sender ends with that answer. So a send and its receive happen together, as the
program's proof of memory has it, though the bytes may be on their way before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ratrain.cost.algorithms import DIRECT
from ratrain.cost.exchanges import Exchange, exchange_of
from ratrain.models.tensor_group import TensorGroup
from ratrain.program.kind import Lane
from ratrain.runtime.seats import Holders, Seat, Seats
from ratrain.runtime.step.exchange.cells import (
    Cell,
    cells_with,
    gathers_from,
    parts_of_group,
    peers_at,
)
from ratrain.runtime.step.exchange.collective import Swap as PlacesSwap
from ratrain.runtime.step.exchange.collective import Tensors, gather_by, reduce_by
from ratrain.runtime.step.exchange.sums import PIECE_BYTES, add_up, pieces
from ratrain.runtime.step.exchange.tensor_peers import TensorPeers
from ratrain.runtime.step.exchange.unlike_collective import gather_unlike_by
from ratrain.runtime.step.exchange.unlike_views import UnlikeView, rounded_elements
from ratrain.runtime.step.network.broadcast import By, broadcasts_of, combined
from ratrain.runtime.step.network.connection import Connection, Landing, Leaving, move
from ratrain.runtime.step.network.links import (
    COPIES,
    TENSOR,
    Links,
    lane_channel,
    message_channel,
    parts_channel,
)
from ratrain.runtime.step.network.network import Copy
from ratrain.runtime.step.network.rail_watch import RailWatch

T = TypeVar("T")

_NOTHING = memoryview(b"")


class SocketNetwork:
    """`links` has a connection for each of the rank's needs (`links.all_needs`); `hosts`, by world
    rank: the number of its host; `divides_rows`: each rank of a tensor group has its own tokens."""

    def __init__(
        self,
        seats: Seats,
        seat: Seat,
        links: Links,
        hosts: Sequence[int],
        *,
        divides_rows: bool,
    ) -> None:
        self._seats, self._seat, self._links, self._hosts = seats, seat, links, hosts
        self._divides_rows = divides_rows
        self._broadcasts = broadcasts_of(seats, seat, links)
        self._tensor = self._tensor_groups() if seat.division.degree > 1 else {}
        self._watch = RailWatch(links.values())

    def tensor_group(self, lane: Lane) -> TensorGroup | None:
        return self._tensor.get(lane)

    def send(self, lane: Lane, tensor: Tensor, pipeline: int) -> None:
        name = message_channel(lane, self._seat.world_rank)
        cells = self._cells(tensor, pipeline)
        links = [self._links[cell.peer, name] for cell in cells]
        bodies = [bytes_of(tensor[cell.begin : cell.end]) for cell in cells]
        move(
            [Leaving(link, body) for link, body in zip(links, bodies, strict=True)],
            [Landing(link, _NOTHING) for link in links],
        )

    def receive(self, lane: Lane, tensor: Tensor, pipeline: int) -> None:
        cells = self._cells(tensor, pipeline)
        links = [self._links[cell.peer, message_channel(lane, cell.peer)] for cell in cells]
        rooms = [bytes_of(tensor[cell.begin : cell.end]) for cell in cells]
        move(
            [Leaving(link, _NOTHING) for link in links],
            [Landing(link, room) for link, room in zip(links, rooms, strict=True)],
        )
        self._complete(lane, tensor, pipeline)

    def _complete(self, lane: Lane, tensor: Tensor, pipeline: int) -> None:
        """Of what has come from a pipeline position, the rest from the own tensor group."""
        divides_rows = self._divides_rows
        if gathers_from(self._seats, self._seat, pipeline, divides_rows=divides_rows):
            self._put_together(tensor, parts_channel(lane))

    def _cells(self, tensor: Tensor, pipeline: int) -> list[Cell]:
        """What goes between this rank and those at a pipeline position."""
        divides_rows = self._divides_rows
        return cells_with(self._seats, self._seat, pipeline, len(tensor), divides_rows=divides_rows)

    def _put_together(self, tensor: Tensor, name: str) -> None:
        """Fills a tensor of which each rank of the tensor group has its part."""
        division = self._seat.division
        parts = [bytes_of(part) for part in parts_of_group(tensor, division.degree)]
        group = self._seats.tensor_group(self._seat.pipeline, self._seat.data)
        links = self._links_to(tuple(group), name)
        others = zip(links, _all_but(division.rank, parts), strict=True)
        move(
            [Leaving(link, parts[division.rank]) for link in links],
            [Landing(link, part) for link, part in others],
        )

    def await_sender(self, lane: Lane, pipeline: int) -> None:
        for sender in peers_at(self._seats, self._seat, pipeline):
            self._links[sender, message_channel(lane, sender)].await_frame()

    def reduce(
        self,
        flat: Tensor,
        out: Tensor,
        holders: Holders,
        by: str = DIRECT,
        lane: Lane = Lane.REDUCE,
    ) -> None:
        exchange, place = self._exchange(holders, by), self._place_among(holders)
        if exchange.rounds > 1:
            reduce_by(exchange, place, flat, out, self._swap(holders, lane_channel(lane)))
        else:
            self._reduce_directly(flat, out, holders, lane_channel(lane))

    def _reduce_directly(self, flat: Tensor, out: Tensor, holders: Holders, name: str) -> None:
        """The other holders' parts leave as fast as their owners take them, while the own one
        comes in and is added up, piece by piece."""
        links, place = self._links_to(holders, name), self._place_among(holders)
        parts = list(flat.view(len(holders), -1))
        leaving = [
            Leaving(link, bytes_of(part))
            for link, part in zip(links, _all_but(place, parts), strict=True)
        ]
        sums = list(pieces(out, PIECE_BYTES))
        rooms = [torch.empty_like(sums[0]) for _ in links] if sums else []
        for mine, total in zip(pieces(parts[place], PIECE_BYTES), sums, strict=True):
            landed = [room[: len(total)] for room in rooms]
            landing = [
                Landing(link, bytes_of(room), frame_bytes=bytes_of(out).nbytes)
                for link, room in zip(links, landed, strict=True)
            ]
            move(leaving, landing, enough_sent=0)
            landed.insert(place, mine)
            add_up(landed, total)
        move(leaving, [])

    def gather(self, lane: Lane, flat: Tensor, holders: Holders, by: str = DIRECT) -> None:
        exchange, place = self._exchange(holders, by), self._place_among(holders)
        if exchange.rounds > 1:
            gather_by(exchange, place, flat, self._swap(holders, lane_channel(lane)))
            return
        links = self._links_to(holders, lane_channel(lane))
        parts = [bytes_of(part) for part in flat.view(len(holders), -1)]
        landing = [
            Landing(link, part) for link, part in zip(links, _all_but(place, parts), strict=True)
        ]
        move([Leaving(link, parts[place]) for link in links], landing)

    def gather_unlike(self, lane: Lane, view: UnlikeView, by: str = DIRECT) -> None:
        exchange = self._exchange(view.holders, by)
        if exchange.rounds > 1:
            gather_unlike_by(exchange, view, self._swap(view.holders, lane_channel(lane)))
        else:
            self._gather_unlike_directly(lane, view)

    def _gather_unlike_directly(self, lane: Lane, view: UnlikeView) -> None:
        """Whole parts go at once, as in a gather; what a peer is sent rounded is made while it
        leaves, so that no link waits for the other end to have a piece."""
        links = {peer: self._links[view.holders[peer], lane_channel(lane)] for peer in view.others}
        rooms = sum(view.lying(view.dtypes[peer]) is None for peer in view.others)
        leaving = [
            _leaving(links[peer], view, view.dtypes[peer], rounded_elements(rooms))
            for peer in view.others
        ]
        move(leaving, [Landing(links[peer], bytes_of(view.parts[peer])) for peer in view.others])

    def swap(self, lane: Lane, holders: Holders, leaving: Tensors, landing: Tensors) -> None:
        self._swap(holders, lane_channel(lane))(leaving, landing)

    def add_copies(self, copies: Sequence[Copy]) -> None:
        for part, gradient in copies:
            link = self._links[self._seats.other_end(self._seat, part), COPIES]
            self._add_copy(link, gradient)

    def _add_copy(self, link: Connection, gradient: Tensor) -> None:
        here_first = not self._seat.pipeline
        leaving = Leaving(link, bytes_of(gradient))
        sent_bytes = 0
        for mine in pieces(gradient):
            other = torch.empty_like(mine)
            sent_bytes += mine.nbytes
            landing = Landing(link, bytes_of(other), frame_bytes=gradient.nbytes)
            move([leaving], [landing], enough_sent=sent_bytes)  # it is overwritten by the sum
            add_up((mine, other) if here_first else (other, mine), mine)

    def combine(self, lane: Lane | None, values: Tensor, by: By) -> Tensor:
        return combined(self._broadcasts[lane], values, by)

    def barrier(self) -> None:
        broadcast = self._broadcasts[None]
        broadcast.ask(b"", lambda heard: [b""] * len(heard))

    def exchange_bytes(self, body: bytes, hearers: Collection[int] | None = None) -> list[bytes]:
        return self._broadcasts[Lane.DISK].exchange(body, hearers=hearers)

    @property
    def sent_bytes(self) -> int:
        return sum(self.sent_to().values())

    def sent_to(self) -> dict[int, int]:
        """The same by the rank that it went to."""
        sent: dict[int, int] = defaultdict(int)
        for (peer, _), link in self._links.items():
            sent[peer] += link.sent_bytes
        return sent

    def hang_up(self) -> None:
        for link in self._links.values():
            link.hang_up()

    def close(self) -> None:
        """Peers see the end of every stream."""
        self._watch.close()
        for link in self._links.values():
            link.close()

    def _place_among(self, holders: Holders) -> int:
        return holders.index(self._seat.world_rank)

    def _exchange(self, holders: Holders, by: str) -> Exchange:
        return exchange_of(by, tuple(self._hosts[rank] for rank in holders))

    def _swap(self, holders: Holders, name: str) -> PlacesSwap:
        """Sends and receives of a collective's turn over a channel, by place among the holders."""

        def swap(leaving: Tensors, landing: Tensors) -> None:
            move(
                [
                    Leaving(self._links[holders[peer], name], *map(bytes_of, tensors))
                    for peer, tensors in leaving.items()
                ],
                [
                    Landing(self._links[holders[peer], name], *map(bytes_of, tensors))
                    for peer, tensors in landing.items()
                ],
            )

        return swap

    def _links_to(self, holders: Holders, name: str) -> list[Connection]:
        """A channel's connections to the other holders."""
        return [self._links[peer, name] for peer in holders if peer != self._seat.world_rank]

    def _tensor_groups(self) -> dict[Lane, TensorPeers]:
        """One for sums inside a compute op, one for those that are ops of their own."""
        ranks = self._seats.tensor_group(self._seat.pipeline, self._seat.data)
        peers = [rank for rank in ranks if rank != self._seat.world_rank]
        return {
            lane: TensorPeers(
                self._seat.division,
                Swap([self._links[peer, name] for peer in peers]),
                divides_rows=self._divides_rows,
            )
            for lane, name in TENSOR.items()
        }


class Swap:
    """Sends one tensor to each peer, and fills another with what each sends, at once."""

    def __init__(self, links: Sequence[Connection]) -> None:
        self._links = links

    def __call__(self, out: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        leaving = [Leaving(link, bytes_of(t)) for link, t in zip(self._links, out, strict=True)]
        landing = [Landing(link, bytes_of(t)) for link, t in zip(self._links, into, strict=True)]
        move(leaving, landing)


def _leaving(link: Connection, view: UnlikeView, dtype: torch.dtype, elements: int) -> Leaving:
    """A rank's part of a view on its way to one that computes in a dtype."""
    lying = view.lying(dtype)
    if lying is not None:
        return Leaving(link, bytes_of(lying))
    pieces_made = map(bytes_of, view.rounded(dtype, elements))
    return Leaving.made(link, len(view.master) * dtype.itemsize, pieces_made)


def _all_but(place: int, parts: Sequence[T]) -> list[T]:
    return [*parts[:place], *parts[place + 1 :]]


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor where they lie; it must be contiguous."""
    if not tensor.numel():
        return _NOTHING
    return tensor.detach().view(-1).view(torch.uint8).numpy().data
