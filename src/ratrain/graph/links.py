"""Connections between the processes of a graph's training, a socket for each pair of them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Lock

import numpy as np

from ratrain.errors import PeerDown, ProgramError, RatrainError

_HEADER = struct.Struct("<48sQ")
"""Of a message: what it holds, and how many bytes."""


class Links:
    """One process's connections, by the number of the process at the other end. `why` finds out why
    one has gone."""

    def __init__(
        self,
        process: int,
        sockets: Mapping[int, socket.socket],
        why: Callable[[PeerDown], RatrainError] = lambda error: error,
    ) -> None:
        self.process, self._sockets, self._why = process, sockets, why
        self.sent_bytes = 0
        self._lock = Lock()
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="sum") if sockets else None

    @property
    def processes(self) -> int:
        return len(self._sockets) + 1

    def send(
        self, process: int, what: str, size_bytes: int, pieces: Iterable[memoryview | bytes]
    ) -> None:
        """Sends a message in pieces, when the other end has room."""
        try:
            self._sockets[process].sendall(_HEADER.pack(what.encode(), size_bytes))
            for piece in pieces:
                self._sockets[process].sendall(piece)
        except OSError as error:
            raise _gone(process) from error
        with self._lock:
            self.sent_bytes += size_bytes

    def receive(self, process: int, what: str, into: memoryview) -> None:
        """Fills a buffer with the next message, which is to be that one."""
        self.meet(process, what, len(into))
        self.fill(process, into)

    def meet(self, process: int, what: str, expected_bytes: int) -> None:
        """Waits until a process sends that message; `fill` takes it."""
        header = bytearray(_HEADER.size)
        self.fill(process, memoryview(header))
        name, size_bytes = _HEADER.unpack(header)
        sent = name.rstrip(b"\0").decode(errors="replace")
        if (sent, size_bytes) != (what, expected_bytes):
            raise ProgramError(
                f"process {process} sends {size_bytes:,} bytes of {sent!r}, and process "
                f"{self.process} waits for {expected_bytes:,} of {what!r}",
                fix="end all processes, and go on with --resume",
            )

    def fill(self, process: int, into: memoryview) -> None:
        """The next bytes that a process sends."""
        at = 0
        while at < len(into):
            try:
                count = self._sockets[process].recv_into(into[at:])
            except OSError as error:
                raise _gone(process) from error
            if not count:
                raise _gone(process)
            at += count

    def gather(self, what: str, own: np.ndarray) -> list[np.ndarray]:
        """What every process has of the same size, by the process."""
        if self._sender is None:
            return [own]
        sent = self._sender.submit(self._to_all, what, own)
        gathered = [own if other == self.process else np.empty_like(own) for other in self._all]
        for process in self._sockets:
            self.receive(process, what, gathered[process].data.cast("B"))
        sent.result()
        return gathered

    def begin(self, what: str) -> None:
        """Begins something when process 0 does."""
        if self.process == 0:
            for process in self._sockets:
                self.send(process, what, 0, ())
        else:
            self.receive(0, what, memoryview(bytearray()))

    @contextmanager
    def explained(self) -> Generator[None]:
        """The error that another process has gone becomes the one for which it went."""
        try:
            yield
        except PeerDown as error:
            self.close()
            raise self._why(error) from error

    def close(self) -> None:
        """Ends all connections; whoever waits for one, at either end, is told."""
        for each in self._sockets.values():
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        if self._sender is not None:
            self._sender.shutdown(wait=False)

    @property
    def _all(self) -> range:
        return range(self.processes)

    def _to_all(self, what: str, own: np.ndarray) -> None:
        for process in self._sockets:
            self.send(process, what, own.nbytes, (own.data.cast("B"),))


ALONE = Links(0, {})
"""Of a process that has no others."""


def _gone(process: int) -> PeerDown:
    return PeerDown(
        f"process {process} has gone", fix="look for its error above, then go on with --resume"
    )


def connected(processes: int) -> list[dict[int, socket.socket]]:
    """A socket for each pair, by the process that has it and the one at its other end."""
    ends: list[dict[int, socket.socket]] = [{} for _ in range(processes)]
    for one in range(processes):
        for other in range(one):
            ends[one][other], ends[other][one] = socket.socketpair()
    return ends
