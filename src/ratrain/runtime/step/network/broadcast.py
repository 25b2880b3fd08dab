"""Words between all ranks, through rank 0: it gathers every rank's and answers each of them.

What is said at every step is a question (`ask`): rank 0 works the answer out and sends each rank no
more than it needs, so that a round is as long as there are ranks. Only in an `exchange` does every
rank hear every other; then the table, whose rows are much alike, is compressed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from ratrain.errors import TransportError
from ratrain.program.kind import Lane
from ratrain.runtime.seats import Seat, Seats
from ratrain.runtime.step.network.connection import Connection, Leaving, move
from ratrain.runtime.step.network.links import BROADCASTS, Links

MAX_WORDS = 64 << 20
"""Of one rank. A rank's record of its part of a checkpoint is the longest: a few hundred bytes per
block."""
_LENGTH = struct.Struct("!I")

Answer = Callable[[list[bytes]], Sequence[bytes]]
"""What rank 0 makes of every rank's words: words for each rank. It is called there alone."""
By = Callable[[list[Tensor]], Sequence[Tensor]]
"""The same of values: flat, as long on each rank as they are there."""


class Broadcast:
    """One rank's end. `connections`, by rank: rank 0's to all others, the others' to rank 0."""

    def __init__(self, rank: int, world_size: int, connections: Mapping[int, Connection]) -> None:
        self._rank, self._world_size = rank, world_size
        self._connections = connections

    def ask(self, words: bytes, answer: Answer) -> bytes:
        """Rank 0's answer to this rank."""
        if len(words) > MAX_WORDS:
            raise TransportError(
                f"rank {self._rank} has {len(words):,} bytes to send to all others"
            )
        if self._rank:
            upwards = self._connections[0]
            upwards.send(words)
            return upwards.receive_bytes(self._world_size * (MAX_WORDS + _LENGTH.size))
        ranks = range(1, self._world_size)
        heard = [words, *(self._connections[rank].receive_bytes(MAX_WORDS) for rank in ranks)]
        answers = answer(heard)
        move([Leaving(self._connections[rank], answers[rank]) for rank in ranks], [])
        return answers[0]

    def exchange(self, words: bytes, *, hearers: Collection[int] | None = None) -> list[bytes]:
        """Every rank's words, by rank; to ranks that are not among the `hearers` none."""

        def table_to_hearers(heard: list[bytes]) -> list[bytes]:
            table = _write(heard)
            hears = range(self._world_size) if hearers is None else hearers
            return [table if rank in hears else b"" for rank in range(self._world_size)]

        table = self.ask(words, table_to_hearers)
        if hearers is not None and self._rank not in hearers:
            return []
        return self._read(table)

    def wait_up_to(self, patience_s: float) -> None:
        """From now on a rank that is silent for this long is considered lost."""
        for connection in self._connections.values():
            connection.patience_s = patience_s

    def hang_up(self) -> None:
        """Whoever waits for words, here or elsewhere, finds them lost; from any thread."""
        for connection in self._connections.values():
            connection.hang_up()

    def close(self) -> None:
        """This rank sends nothing more."""
        for connection in self._connections.values():
            connection.close()

    def _read(self, compressed: bytes) -> list[bytes]:
        heard: list[bytes] = []
        at = 0
        stream, longest = zlib.decompressobj(), self._world_size * (MAX_WORDS + _LENGTH.size)
        try:
            table = stream.decompress(compressed, longest + 1)
        except zlib.error:
            table = b""
        if not stream.eof:
            table = b""
        while at + _LENGTH.size <= len(table):
            (size,) = _LENGTH.unpack_from(table, at)
            at += _LENGTH.size + size
            heard.append(table[at - size : at])
        if len(heard) != self._world_size or at != len(table):
            raise TransportError(f"rank 0 sent rank {self._rank} a table that is damaged")
        return heard


def _write(heard: Sequence[bytes]) -> bytes:
    return zlib.compress(b"".join(_LENGTH.pack(len(words)) + words for words in heard), 1)


def broadcasts_of(seats: Seats, seat: Seat, links: Links) -> dict[Lane | None, Broadcast]:
    """The broadcast of each lane that sends something to all ranks."""
    peers = range(1, seats.world_size) if seat.world_rank == 0 else range(1)
    return {
        lane: Broadcast(
            seat.world_rank, seats.world_size, {peer: links[peer, name] for peer in peers}
        )
        for lane, name in BROADCASTS.items()
    }


def combined(broadcast: Broadcast, values: Tensor, by: By) -> Tensor:
    """What rank 0 makes of every rank's flat values, for this rank."""

    def answer(heard: list[bytes]) -> list[bytes]:
        rows = [torch.frombuffer(bytearray(words), dtype=values.dtype) for words in heard]
        return [row.numpy().tobytes() for row in by(rows)]

    words = broadcast.ask(values.numpy().tobytes(), answer)
    return torch.frombuffer(bytearray(words), dtype=values.dtype)


def summed(rows: list[Tensor]) -> list[Tensor]:
    """The sum of all ranks' values, for each rank: added one by one, in the order of ranks."""
    total = sum(value for row in rows for value in row.tolist())
    return [torch.tensor([total], dtype=rows[0].dtype)] * len(rows)


def summed_columns(rows: list[Tensor]) -> list[Tensor]:
    """The same of each column."""
    columns = zip(*(row.tolist() for row in rows), strict=True)
    return [torch.tensor([sum(each) for each in columns], dtype=rows[0].dtype)] * len(rows)
