"""The network between ranks over gloo, to compare the network of our own with.

Gloo's listeners take anybody's connection: training does not use it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Sequence
from datetime import timedelta
from itertools import islice, product
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch_exchange import exchange, exchange_pairs, wait_all

from ratrain.cost.algorithms import DIRECT
from ratrain.cost.exchanges import Exchange, exchange_of
from ratrain.models.tensor_group import TensorGroup
from ratrain.program.kind import Lane
from ratrain.runtime.rank.joining.connections import connect_all
from ratrain.runtime.rank.joining.rendezvous import Joined
from ratrain.runtime.seats import Holders, Seat, Seats
from ratrain.runtime.step.exchange.cells import cells_with, gathers_from, parts_of_group, peers_at
from ratrain.runtime.step.exchange.collective import Swap as PlacesSwap
from ratrain.runtime.step.exchange.collective import Tensors, gather_by, reduce_by
from ratrain.runtime.step.exchange.sums import PIECE_BYTES, PIECES_AHEAD, add_up, pieces
from ratrain.runtime.step.exchange.tensor_peers import Swap, TensorPeers
from ratrain.runtime.step.exchange.unlike_collective import gather_unlike_by
from ratrain.runtime.step.exchange.unlike_views import UnlikeView, rounded_elements
from ratrain.runtime.step.network.broadcast import By, broadcasts_of, combined
from ratrain.runtime.step.network.links import Links, Routes, message_channel, word_needs
from ratrain.runtime.step.network.network import Copy

T = TypeVar("T")


def gloo_network(
    folder: Path, seats: Seats, seat: Seat, routes: Routes, joined: Joined, timeout_s: float
) -> TorchNetwork:
    """A rank's network over gloo, whose ranks meet through a file in the folder."""
    links = connect_all(joined, word_needs(seats, seat, routes.hops), timeout_s)
    if joined.book[0][0].startswith("127."):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        store=FileStore(str(folder / "store"), joined.world_size),
        rank=joined.rank,
        world_size=joined.world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    hosts = (0,) * seats.world_size
    return TorchNetwork(seats, seat, routes, links, hosts, backend="gloo", timeout_s=timeout_s)


class TorchNetwork:
    """Tensors go over torch.distributed, whose default group must exist; words, and what tells a
    receiver that its sender is there, over connections of our own: `links` has one for each of
    `links.word_needs`. `hosts`, by world rank: the number of its host."""

    def __init__(
        self,
        seats: Seats,
        seat: Seat,
        routes: Routes,
        links: Links,
        hosts: Sequence[int],
        *,
        backend: str,
        timeout_s: float,
    ) -> None:
        self._seats, self._seat, self._links, self._hosts = seats, seat, links, hosts
        self._broadcasts = broadcasts_of(seats, seat, links)
        self._divides_rows = routes.divides_rows
        self._timeout = timedelta(seconds=timeout_s)
        self._message: dict[Lane, dist.ProcessGroup] = {}
        for lane in (Lane.SEND_F, Lane.SEND_B):
            for data in range(seats.data):
                ranks = seats.replica(data)
                group = self._group(ranks, backend)
                if seat.world_rank in ranks:
                    self._message[lane] = group
        # Every rank makes every group, its own or not, in one order.
        self._data = {
            (lane, holders): self._group(holders, backend)
            for lane, holders in product((Lane.REDUCE, Lane.GATHER), routes.groups)
        }
        self._tensor = self._tensor_groups(backend)
        self._copies: dist.ProcessGroup | None = None
        tied = [data for data in range(seats.data) if routes.tied and seats.depth(data) > 1]
        for data in tied:
            ranks = seats.both_ends(data)
            group = self._group(ranks, backend)
            if seat.world_rank in ranks:
                self._copies = group

    def _group(self, ranks: Sequence[int], backend: str) -> dist.ProcessGroup:
        group = dist.new_group(list(ranks), timeout=self._timeout, backend=backend)
        assert isinstance(group, dist.ProcessGroup) or group is dist.GroupMember.NON_GROUP_MEMBER
        return group  # type: ignore[return-value]

    def _tensor_groups(self, backend: str) -> dict[Lane, TensorPeers]:
        """One for sums inside a compute op, one for those that are ops of their own."""
        seats, seat = self._seats, self._seat
        groups: dict[Lane, TensorPeers] = {}
        for lane in (Lane.COMPUTE, Lane.TENSOR):
            for ranks in seats.tensor_groups():
                if len(ranks) == 1:
                    continue
                group = self._group(ranks, backend)
                if seat.world_rank in ranks:
                    others = [rank for rank in ranks if rank != seat.world_rank]
                    swap = _swap(group, others)
                    divides_rows = self._divides_rows
                    groups[lane] = TensorPeers(seat.division, swap, divides_rows=divides_rows)
        return groups

    def tensor_group(self, lane: Lane) -> TensorGroup | None:
        return self._tensor.get(lane)

    def send(self, lane: Lane, tensor: Tensor, pipeline: int) -> None:
        for peer in peers_at(self._seats, self._seat, pipeline):
            self._links[peer, message_channel(lane, self._seat.world_rank)].send(b"")
        wait_all(exchange_pairs(self._message[_channel(lane)], self._cells(tensor, pipeline), []))

    def receive(self, lane: Lane, tensor: Tensor, pipeline: int) -> None:
        messages, seat = self._message[_channel(lane)], self._seat
        for sender in peers_at(self._seats, seat, pipeline):
            self._links[sender, message_channel(lane, sender)].receive(memoryview(b""))
        wait_all(exchange_pairs(messages, [], self._cells(tensor, pipeline)))
        if gathers_from(self._seats, seat, pipeline, divides_rows=self._divides_rows):
            parts = parts_of_group(tensor, seat.division.degree)
            group = self._seats.tensor_group(seat.pipeline, seat.data)
            others, place = _all_but(seat.division.rank, group), seat.division.rank
            leaving = [parts[place]] * len(others)
            wait_all(exchange(messages, others, leaving, _all_but(place, parts)))

    def _cells(self, tensor: Tensor, pipeline: int) -> list[tuple[int, Tensor]]:
        """What goes between this rank and those at a pipeline position, by world rank."""
        divides_rows = self._divides_rows
        cells = cells_with(
            self._seats, self._seat, pipeline, len(tensor), divides_rows=divides_rows
        )
        return [(cell.peer, tensor[cell.begin : cell.end]) for cell in cells]

    def await_sender(self, lane: Lane, pipeline: int) -> None:
        """`receive` does it."""

    def reduce(
        self,
        flat: Tensor,
        out: Tensor,
        holders: Holders,
        by: str = DIRECT,
        lane: Lane = Lane.REDUCE,
    ) -> None:
        collective, place = self._collective(holders, by), self._place_among(holders)
        if collective.rounds > 1:
            reduce_by(collective, place, flat, out, self._swap_of(Lane.REDUCE, holders))
        else:
            self._reduce_directly(flat, out, holders)

    def _reduce_directly(self, flat: Tensor, out: Tensor, holders: Holders) -> None:
        parts, place = list(flat.view(len(holders), -1)), self._place_among(holders)
        columns = list(zip(*(pieces(part, PIECE_BYTES) for part in parts), strict=True))
        flying = deque(self._leave(column, holders) for column in columns[:PIECES_AHEAD])
        following = iter(columns[PIECES_AHEAD:])
        for total, column in zip(pieces(out, PIECE_BYTES), columns, strict=True):
            landed, works = flying.popleft()
            wait_all(works)
            flying.extend(self._leave(column, holders) for column in islice(following, 1))
            landed.insert(place, column[place])
            add_up(landed, total)

    def _leave(
        self, column: Sequence[Tensor], holders: Holders
    ) -> tuple[list[Tensor], list[dist.Work]]:
        """Every holder's part of a piece on its way to its owner, and the own one from all."""
        place = self._place_among(holders)
        leaving, peers = _all_but(place, column), _all_but(place, holders)
        landing = [torch.empty_like(piece) for piece in leaving]
        return landing, exchange(self._data[Lane.REDUCE, holders], peers, leaving, landing)

    def gather(self, lane: Lane, flat: Tensor, holders: Holders, by: str = DIRECT) -> None:
        collective, place = self._collective(holders, by), self._place_among(holders)
        if collective.rounds > 1:
            gather_by(collective, place, flat, self._swap_of(lane, holders))
            return
        parts = list(flat.view(len(holders), -1))
        peers, others = _all_but(place, holders), _all_but(place, parts)
        wait_all(exchange(self._data[lane, holders], peers, [parts[place]] * len(peers), others))

    def _collective(self, holders: Holders, by: str) -> Exchange:
        return exchange_of(by, tuple(self._hosts[rank] for rank in holders))

    def _swap_of(self, lane: Lane, holders: Holders) -> PlacesSwap:
        """Sends and receives of a collective's turn, by place among the holders. Several tensors
        for one peer arrive in the order in which they were sent."""
        group = self._data[lane, holders]

        def swap(leaving: Tensors, landing: Tensors) -> None:
            both = [
                [(holders[peer], tensor) for peer, tensors in each.items() for tensor in tensors]
                for each in (leaving, landing)
            ]
            wait_all(exchange_pairs(group, *both))

        return swap

    def gather_unlike(self, lane: Lane, view: UnlikeView, by: str = DIRECT) -> None:
        collective = self._collective(view.holders, by)
        if collective.rounds > 1:
            gather_unlike_by(collective, view, self._swap_of(lane, view.holders))
        else:
            self._gather_unlike_directly(lane, view)

    def _gather_unlike_directly(self, lane: Lane, view: UnlikeView) -> None:
        """Piece by piece, the same at all holders, and several under way at once."""
        elements = rounded_elements(PIECES_AHEAD * (len(set(view.dtypes)) - 1))
        flying: deque[tuple[list[Tensor], list[dist.Work]]] = deque()
        for begin in range(0, view.parts.shape[1], elements):
            if len(flying) == PIECES_AHEAD:
                wait_all(flying.popleft()[1])
            flying.append(self._leave_unlike(lane, view, slice(begin, begin + elements)))
        for _, works in flying:
            wait_all(works)

    def _leave_unlike(
        self, lane: Lane, view: UnlikeView, piece: slice
    ) -> tuple[list[Tensor], list[dist.Work]]:
        """A piece of the own part on its way to all others, and what has to live until it is there;
        and the same piece of theirs on its way here."""
        of_dtype = {
            dtype: view.master[piece].to(dtype) if lying is None else lying[piece]
            for dtype, lying in ((d, view.lying(d)) for d in {view.dtypes[p] for p in view.others})
        }
        leaving = [of_dtype[view.dtypes[peer]] for peer in view.others]
        landing = [view.parts[peer][piece] for peer in view.others]
        peers = [view.holders[peer] for peer in view.others]
        works = exchange(self._data[lane, view.holders], peers, leaving, landing)
        return leaving, works

    def swap(self, lane: Lane, holders: Holders, leaving: Tensors, landing: Tensors) -> None:
        self._swap_of(lane, holders)(leaving, landing)

    def _place_among(self, holders: Holders) -> int:
        return holders.index(self._seat.world_rank)

    def add_copies(self, copies: Sequence[Copy]) -> None:
        for part, gradient in copies:
            self._add_copy(self._seats.other_end(self._seat, part), gradient)

    def _add_copy(self, peer: int, gradient: Tensor) -> None:
        here_first = not self._seat.pipeline
        chunks = list(pieces(gradient))
        arriving = self._swap(chunks[0], peer)
        for number, chunk in enumerate(chunks):
            other, works = arriving
            wait_all(works)
            if number + 1 < len(chunks):
                arriving = self._swap(chunks[number + 1], peer)
            add_up((chunk, other) if here_first else (other, chunk), chunk)

    def _swap(self, sent: Tensor, peer: int) -> tuple[Tensor, list[dist.Work]]:
        """A piece on its way to the peer, and the peer's on its way here."""
        assert self._copies is not None
        received = torch.empty_like(sent)
        return received, exchange(self._copies, [peer], [sent], [received])

    def combine(self, lane: Lane | None, values: Tensor, by: By) -> Tensor:
        return combined(self._broadcasts[lane], values, by)

    def barrier(self) -> None:
        broadcast = self._broadcasts[None]
        broadcast.ask(b"", lambda heard: [b""] * len(heard))

    def exchange_bytes(self, body: bytes, hearers: Collection[int] | None = None) -> list[bytes]:
        return self._broadcasts[Lane.DISK].exchange(body, hearers=hearers)

    @property
    def sent_bytes(self) -> None:
        """What torch.distributed sends is not counted."""


def _all_but(place: int, parts: Sequence[T]) -> list[T]:
    return [*parts[:place], *parts[place + 1 :]]


def _channel(lane: Lane) -> Lane:
    """A message's two ends share one channel."""
    return Lane.SEND_F if lane in (Lane.SEND_F, Lane.RECV_F) else Lane.SEND_B


def _swap(group: dist.ProcessGroup, peers: Sequence[int]) -> Swap:
    def swap(out: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        wait_all(exchange(group, peers, out, into))

    return swap
