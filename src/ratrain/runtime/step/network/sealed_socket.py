"""A connection's socket under TLS, for those who send and receive what can be moved now.

To them it is a TCP socket that does not block. What `sendmsg` says has gone, the operating system
has, sealed; what it has not taken whole stays here, and is said to have gone by a later call, which
must come with the same bytes. One thread may send while another receives: the TLS library's state
is theirs in turn.
"""

from __future__ import annotations

import errno
import socket
import ssl
import threading
from collections.abc import Iterable
from typing import Any

from ratrain.transport.wire.tls_socket import TlsSocket

_AT_ONCE_BYTES = 128 << 10
"""Sealed, then sent: it stays in the cache."""
_RECORD_BYTES = 17 << 10
"""More than one record: so much of one that is not whole yet, the TLS library may hold already."""
MOST_RECORDS = 1 << 32
"""Under one key, 64 TiB in full ones: AES-GCM's margin is 2^-45 there. RFC 8446 (5.5) advises new
keys after 388 GB, for 2^-57, by a message that Python's TLS cannot send."""


class SealedSocket(TlsSocket):
    """After `ready`."""

    def __init__(
        self, plain: socket.socket, context: ssl.SSLContext, *, server: bool, deadline_s: float
    ) -> None:
        super().__init__(plain, context, server=server, deadline_s=deadline_s)
        self._turn = threading.Lock()
        self._sealed = memoryview(b"")
        self._holds = 0  # how many bytes of the caller's are in it

    def ready(self) -> None:
        """The handshake is over: what is waited for has no deadline here."""
        self.deadline_s = None

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:
        """How many bytes have gone; BlockingIOError where none has."""
        views, gone = [memoryview(each) for each in buffers if len(each)], 0
        try:
            while views:
                if not self._sealed:
                    self._seal(views)
                while self._sealed:
                    self._sealed = self._sealed[self.send(self._sealed) :]
                gone += self._holds
                views = _behind(views, self._holds)
        except BlockingIOError:
            if not gone:
                raise
        return gone

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """As of the TCP socket."""
        with self._turn:
            return super().recv_into(buffer, nbytes, flags)

    def _seal(self, views: list[memoryview]) -> None:
        if self.sealed_records >= MOST_RECORDS:
            raise OSError(errno.EKEYEXPIRED, "the keys of its TLS connection are used up")
        some: list[memoryview] = []
        room = _AT_ONCE_BYTES
        for view in views:
            some.append(view[:room])
            room -= len(some[-1])
            if not room:
                break
        with self._turn:
            self._sealed = memoryview(self.seal(some))
        self._holds = _AT_ONCE_BYTES - room


def woken_at(sock: socket.socket, size: int) -> int:
    """How many bytes the operating system must have before the next `size` can be whole: of sealed
    ones part may have been read already."""
    return max(1, size - _RECORD_BYTES) if isinstance(sock, SealedSocket) else size


def _behind(views: list[memoryview], count: int) -> list[memoryview]:
    """What follows the first bytes."""
    at = 0
    while at < len(views) and count >= len(views[at]):
        count -= len(views[at])
        at += 1
    return [views[at][count:], *views[at + 1 :]] if at < len(views) else []
