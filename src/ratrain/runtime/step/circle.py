"""Words from every rank to every rank, through rank 0: it gathers them and sends all of them to
all."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ratrain.errors import TransportError
from ratrain.program.kind import Lane
from ratrain.runtime.seats import Seat, Seats
from ratrain.runtime.step.connection import Connection, Leaving, move
from ratrain.runtime.step.links import CIRCLES, Links

MAX_WORDS = 64 << 20
"""Of one rank. A rank's record of its part of a checkpoint is the longest: a few hundred bytes per
block."""
_LENGTH = struct.Struct("!I")


class Circle:
    """One rank's place. `connections`, by rank: rank 0's to all others, the others' to rank 0."""

    def __init__(self, rank: int, world_size: int, connections: Mapping[int, Connection]) -> None:
        self._rank, self._world_size = rank, world_size
        self._connections = connections

    def exchange(self, words: bytes, *, same_size: bool = False) -> list[bytes]:
        """Every rank's words, by rank. `same_size`: all of them are as long as these."""
        if len(words) > MAX_WORDS:
            raise TransportError(
                f"rank {self._rank} has {len(words):,} bytes to send to all others"
            )
        limit = len(words) if same_size else MAX_WORDS
        if self._rank:
            upwards = self._connections[0]
            upwards.send(words)
            table = upwards.receive_bytes(self._world_size * (limit + _LENGTH.size))
            return self._read(table, len(words) if same_size else None)
        others = [self._connections[rank] for rank in range(1, self._world_size)]
        heard = [words, *(other.receive_bytes(limit) for other in others)]
        table = _write(heard)
        move([Leaving(other, table) for other in others], [])
        return heard

    def wait_up_to(self, patience_s: float) -> None:
        """From now on a rank that is silent for this long is considered lost."""
        for connection in self._connections.values():
            connection.patience_s = patience_s

    def close(self) -> None:
        """This rank sends nothing more."""
        for connection in self._connections.values():
            connection.close()

    def _read(self, table: bytes, expected: int | None) -> list[bytes]:
        heard: list[bytes] = []
        at = 0
        while at + _LENGTH.size <= len(table):
            (size,) = _LENGTH.unpack_from(table, at)
            at += _LENGTH.size + size
            heard.append(table[at - size : at])
        unlike = expected is not None and any(len(words) != expected for words in heard)
        if unlike or len(heard) != self._world_size or at != len(table):
            raise TransportError(f"rank 0 sent rank {self._rank} a table that is damaged")
        return heard


def _write(heard: Sequence[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(words)) + words for words in heard)


def circles_of(seats: Seats, seat: Seat, links: Links) -> dict[Lane | None, Circle]:
    """The circle of each lane that sends something to all ranks."""
    peers = range(1, seats.world_size) if seat.world_rank == 0 else range(1)
    return {
        lane: Circle(seat.world_rank, seats.world_size, {peer: links[peer, name] for peer in peers})
        for lane, name in CIRCLES.items()
    }


def exchanged(circle: Circle, values: Tensor) -> list[Tensor]:
    """Every rank's values, by rank; they have one shape and type on all ranks."""
    rows = circle.exchange(values.numpy().tobytes(), same_size=True)
    return [torch.frombuffer(bytearray(row), dtype=values.dtype).view(values.shape) for row in rows]
