"""Frames under TLS: what `sock` sends is sealed as it leaves, and opened as it is read.

The TLS library works on memory buffers; the socket carries ciphertext like any other bytes. The
queue, the parser and the events are those of `outgoing.py` and `stream.py`, and plain TCP pays
nothing for it.
"""

from __future__ import annotations

import errno
import select
import socket

from ratrain.transport.engine.channel import Receiver
from ratrain.transport.loop.driver import Driver
from ratrain.transport.memory.rows import Rows, gather
from ratrain.transport.providers.outgoing import Bytes
from ratrain.transport.providers.stream import StreamChannel
from ratrain.transport.wire.frames import Head
from ratrain.transport.wire.tls_socket import READ_BYTES, TlsSocket

_SEAL_BYTES = 128 << 10  # sealed, then sent: stays in the cache (twice the rate of 1 MiB)

RENEW_RECORDS = 1 << 24
"""Records under one key, after which the connection is replaced: RFC 8446, section 5.5, allows
AES-GCM 2^24.5 full ones (388 GB), and Python offers no key update."""


class _SealedRows(Rows):
    """Pages that are filled from a TLS socket."""

    __slots__ = ("_room",)

    def __init__(self, rows: Rows, room: memoryview) -> None:
        super().__init__(rows.iov)
        self.row = rows.row
        self._room = room

    def fill(self, sock: socket.socket) -> int:
        left = int(self.iov[self.row :, 1].sum())
        got = sock.recv_into(self._room[: min(left, len(self._room))])
        if got:
            self.put(self._room[:got])
        return got


class SealedChannel(StreamChannel):
    """A connection under TLS."""

    def __init__(self, driver: Driver, sock: TlsSocket, provider: str, nic: str) -> None:
        super().__init__(driver, sock, provider, nic)
        sock.deadline_s = None
        self._tls = sock
        self._room = memoryview(bytearray(READ_BYTES))
        self._sealed = memoryview(b"")
        self._is_tcp = False  # no SO_RCVLOWAT: the kernel holds ciphertext, we count plain bytes

    def attach(self, receiver: Receiver, *, reads_peer: bool) -> None:
        """Part of Channel."""
        super().attach(receiver, reads_peer=reads_peer)
        # The end of the handshake may have come together with the peer's first frames.
        self._driver.later(lambda: self._on_events(select.EPOLLIN))

    def _send_now(self, data: bytes, payload: memoryview | None) -> tuple[bytes, memoryview | None]:
        return data, payload  # through the queue: records are sealed in the order of sending

    def _flush(self) -> None:
        """Seal what waits, a part at a time, until the socket is full. The last part stays in the
        queue until everything sealed has gone: a queue that is not empty waits for the socket."""
        out = self._out
        try:
            while True:
                while len(self._sealed):
                    sent = self._sock.send(self._sealed)
                    self._sealed = self._sealed[sent:]
                while out and isinstance(out[0], Bytes) and not len(out[0].view):
                    out.popleft()
                if not out:
                    return
                if self._tls.sealed_records >= RENEW_RECORDS:
                    raise _used_up()
                self._sealed = memoryview(self._tls.seal(self._next()))
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(error)

    def _next(self) -> list[memoryview]:
        """The next bytes to seal, taken from the parts that wait."""
        views: list[memoryview] = []
        room = _SEAL_BYTES
        for index, part in enumerate(self._out):
            if isinstance(part, Rows):
                part = self._out[index] = Bytes(gather(part.iov))
            views.append(part.view[:room])
            part.view = part.view[room:]
            room -= len(views[-1])
            if not room:
                break
        return views

    def _fail(self, error: OSError) -> None:
        # The peer may have closed it because its keys are used up. If it is dead, silence tells.
        super()._fail(_used_up() if self._tls.reads > RENEW_RECORDS // 2 else error)

    def _read(self) -> None:
        super()._read()
        if not self.closed and self._tls.pending():
            # The turn is over, but epoll does not report bytes that were read already.
            self._tls.may_read = False
            try:
                super()._read()
            finally:
                self._tls.may_read = True

    def _take(self, head: Head, extra: bytes) -> None:
        super()._take(head, extra)
        if self._pages is not None:
            self._pages = _SealedRows(self._pages, self._room)


def _used_up() -> OSError:
    return OSError(errno.EKEYEXPIRED, "the TLS connection's keys are used up")
