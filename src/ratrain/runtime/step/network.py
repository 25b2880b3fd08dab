"""The network between ranks, behind the interface that the cost model mirrors.

Reductions are direct exchanges: each owner receives its part from every peer and adds the parts
in the order of replicas, so the sum has the same bits whatever the timing, and at every sharding
level. Each lane has connections of its own, so that lanes do not wait for each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from itertools import islice, product
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ratrain.cost.scratch import CHUNK_BYTES
from ratrain.models.tensor_group import TensorGroup
from ratrain.program.actions import Lane
from ratrain.runtime.seats import Seat, Seats
from ratrain.runtime.step.exchange import add_up, exchange, pieces, wait_all
from ratrain.runtime.step.tensor_peers import TensorPeers

T = TypeVar("T")

_PIECES_AHEAD = 3
"""Pieces of a reduction on their way at once: a link is not idle while ranks add one up."""
_PIECE_BYTES = 2 * CHUNK_BYTES // (_PIECES_AHEAD + 1)
"""One more has landed: together two chunks from each peer, which `cost.scratch` counts."""


class Network(Protocol):
    """What the executor needs of a network. Every call blocks its lane, and no other."""

    def send(self, lane: Lane, tensor: Tensor, pipeline: int) -> None:
        """Sends a tensor to the rank at a pipeline position of the own replica."""
        ...

    def receive(self, lane: Lane, tensor: Tensor, pipeline: int) -> None:
        """Fills a tensor with what that rank sends."""
        ...

    def announce(self, lane: Lane, pipeline: int) -> None:
        """Tells that rank that a tensor will follow; `await_sender` there returns."""
        ...

    def await_sender(self, lane: Lane, pipeline: int) -> None:
        """Waits for that rank's `announce`."""
        ...

    def reduce(self, flat: Tensor, out: Tensor) -> None:
        """Adds up all replicas' `flat` in their order; the own part of the sum goes to `out`."""
        ...

    def gather(self, lane: Lane, flat: Tensor) -> None:
        """Fills `flat` with every replica's part; the own part is already there."""
        ...

    def add_copies(self, gradient: Tensor) -> None:
        """Adds up a tied matrix' gradients of the pipeline's two ends; both get the same bits."""
        ...

    def tensor_group(self, lane: Lane) -> TensorGroup | None:
        """The own tensor group, as the compute or the tensor lane reaches it; None: no others."""
        ...

    def exchange(self, lane: Lane | None, values: Tensor) -> list[Tensor]:
        """Every world rank's values, by rank; `None`: the control channel."""
        ...

    def exchange_bytes(self, body: bytes) -> list[bytes]:
        """Every world rank's bytes, by rank, over the disk lane's channel."""
        ...


class TorchNetwork:
    """torch.distributed: gloo on CPUs, NCCL between GPUs."""

    def __init__(
        self, seats: Seats, seat: Seat, *, backend: str, timeout_s: float, tied: bool = False
    ) -> None:
        self._seats, self._seat = seats, seat
        self._timeout = timedelta(seconds=timeout_s)
        self._message: dict[Lane, dist.ProcessGroup] = {}
        self._word: dict[Lane, dist.ProcessGroup] = {}
        for lane in (Lane.SEND_F, Lane.SEND_B):
            for data, tensor in product(range(seats.data), range(seats.tensor)):
                ranks = seats.replica(data, tensor)
                group = self._group(ranks, backend)
                word = group if backend == "gloo" else self._group(ranks, "gloo")
                if seat.world_rank in ranks:
                    self._message[lane], self._word[lane] = group, word
        self._data: dict[Lane, dist.ProcessGroup] = {}
        for lane in (Lane.REDUCE, Lane.GATHER):
            for pipeline, tensor in product(range(seats.pipeline), range(seats.tensor)):
                ranks = seats.data_group(pipeline, tensor)
                group = self._group(ranks, backend)
                if seat.world_rank in ranks:
                    self._data[lane] = group
        self._tensor = self._tensor_groups(backend) if seats.tensor > 1 else {}
        self._copies: dist.ProcessGroup | None = None
        ends = product(range(seats.data), range(seats.tensor))
        for data, tensor in ends if tied and seats.pipeline > 1 else ():
            ranks = seats.ends(data, tensor)
            group = self._group(ranks, backend)
            if seat.world_rank in ranks:
                self._copies = group
        everyone = list(range(seats.world_size))
        self._shared: dict[Lane | None, dist.ProcessGroup] = {
            lane: self._group(everyone, "gloo") for lane in (None, Lane.UPDATE, Lane.DISK)
        }

    def _group(self, ranks: list[int], backend: str) -> dist.ProcessGroup:
        group = dist.new_group(ranks, timeout=self._timeout, backend=backend)
        assert isinstance(group, dist.ProcessGroup) or group is dist.GroupMember.NON_GROUP_MEMBER
        return group  # type: ignore[return-value]

    def _tensor_groups(self, backend: str) -> dict[Lane, TensorPeers]:
        """One for sums inside a compute op, one for those that are ops of their own."""
        seats, seat = self._seats, self._seat
        found: dict[Lane, TensorPeers] = {}
        for lane in (Lane.COMPUTE, Lane.TENSOR):
            for pipeline, data in product(range(seats.pipeline), range(seats.data)):
                ranks = seats.tensor_group(pipeline, data)
                group = self._group(ranks, backend)
                if seat.world_rank in ranks:
                    found[lane] = TensorPeers(seat.division.rank, ranks, group)
        return found

    def tensor_group(self, lane: Lane) -> TensorGroup | None:
        return self._tensor.get(lane)

    def _stage(self, pipeline: int) -> int:
        """The world rank at a pipeline position that this one exchanges messages with."""
        return self._seats.world_rank(pipeline, self._seat.data, self._seat.division.rank)

    @property
    def _data_group(self) -> list[int]:
        return self._seats.data_group(self._seat.pipeline, self._seat.division.rank)

    def send(self, lane: Lane, tensor: Tensor, pipeline: int) -> None:
        peer = self._stage(pipeline)
        dist.send(tensor, peer, group=self._message[_channel(lane)])

    def receive(self, lane: Lane, tensor: Tensor, pipeline: int) -> None:
        peer = self._stage(pipeline)
        dist.recv(tensor, peer, group=self._message[_channel(lane)])

    def announce(self, lane: Lane, pipeline: int) -> None:
        peer = self._stage(pipeline)
        dist.send(torch.zeros(1, dtype=torch.uint8), peer, group=self._word[_channel(lane)])

    def await_sender(self, lane: Lane, pipeline: int) -> None:
        peer = self._stage(pipeline)
        dist.recv(torch.zeros(1, dtype=torch.uint8), peer, group=self._word[_channel(lane)])

    def reduce(self, flat: Tensor, out: Tensor) -> None:
        parts, own = list(flat.view(self._seats.data, -1)), self._seat.data
        columns = list(zip(*(pieces(part, _PIECE_BYTES) for part in parts), strict=True))
        flying = deque(self._leave(column) for column in columns[:_PIECES_AHEAD])
        following = iter(columns[_PIECES_AHEAD:])
        for place, column in zip(pieces(out, _PIECE_BYTES), columns, strict=True):
            landed, works = flying.popleft()
            wait_all(works)
            flying.extend(self._leave(column) for column in islice(following, 1))
            landed.insert(own, column[own])
            add_up(landed, place)

    def _leave(self, column: Sequence[Tensor]) -> tuple[list[Tensor], list[dist.Work]]:
        """Every replica's part of a piece on its way to its owner, and the own one from all."""
        leaving = self._others(column)
        landing = [torch.empty_like(piece) for piece in leaving]
        peers = self._others(self._data_group)
        return landing, exchange(self._data[Lane.REDUCE], peers, leaving, landing)

    def _others(self, of_replicas: Sequence[T]) -> list[T]:
        """Those of all replicas but the own."""
        own = self._seat.data
        return [*of_replicas[:own], *of_replicas[own + 1 :]]

    def gather(self, lane: Lane, flat: Tensor) -> None:
        peers, own = self._others(self._data_group), self._seat.data
        parts = list(flat.view(self._seats.data, -1))
        mine = [parts[own]] * len(peers)
        wait_all(exchange(self._data[lane], peers, mine, self._others(parts)))

    def add_copies(self, gradient: Tensor) -> None:
        first, last = self._seats.ends(self._seat.data, self._seat.division.rank)
        here_first = self._seat.world_rank == first
        peer = last if here_first else first
        chunks = list(pieces(gradient))
        arriving = self._swap(chunks[0], peer)
        for number, own in enumerate(chunks):
            other, works = arriving
            wait_all(works)
            if number + 1 < len(chunks):
                arriving = self._swap(chunks[number + 1], peer)
            add_up((own, other) if here_first else (other, own), own)

    def _swap(self, own: Tensor, peer: int) -> tuple[Tensor, list[dist.Work]]:
        """A piece on its way to the peer, and the peer's on its way here."""
        assert self._copies is not None
        other = torch.empty_like(own)
        return other, exchange(self._copies, [peer], [own], [other])

    def exchange(self, lane: Lane | None, values: Tensor) -> list[Tensor]:
        found = [torch.empty_like(values) for _ in range(self._seats.world_size)]
        dist.all_gather(found, values, group=self._shared[lane])
        return found

    def exchange_bytes(self, body: bytes) -> list[bytes]:
        sizes = [int(size) for size in self.exchange(Lane.DISK, torch.tensor([len(body)]))]
        padded = torch.zeros(max(1, *sizes), dtype=torch.uint8)
        if body:
            padded[: len(body)] = torch.frombuffer(bytearray(body), dtype=torch.uint8)
        rows = self.exchange(Lane.DISK, padded)
        return [bytes(row[:size].numpy()) for row, size in zip(rows, sizes, strict=True)]


def _channel(lane: Lane) -> Lane:
    """A message's two ends share one channel."""
    return Lane.SEND_F if lane in (Lane.SEND_F, Lane.RECV_F) else Lane.SEND_B
