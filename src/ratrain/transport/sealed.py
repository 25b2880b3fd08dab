"""Frames under TLS: what `sock` sends is sealed as it leaves, and opened as it is read.

The TLS library works on memory alone; the socket carries ciphertext as any other bytes. The
queue, the parser and the events are those of `stream.py`, and plain TCP pays nothing for it.
"""

from __future__ import annotations

import ctypes
import errno
import select
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, cast

from ratrain.errors import HandshakeFailed
from ratrain.transport.frames import Head
from ratrain.transport.provider import Iov, Receiver
from ratrain.transport.rows import Rows
from ratrain.transport.stream import Bytes, StreamChannel

if TYPE_CHECKING:
    from ratrain.transport.progress import Driver

_RECORD_BYTES = 16384  # TLS 1.3 seals at most so many at once
_READ_BYTES = 256 << 10
_SEAL_BYTES = 128 << 10  # sealed and sent in turn: stays in the cache (2x the rate of 1 MiB)

RENEW_RECORDS = 1 << 24
"""Records under one key, after which the connection is made anew: RFC 8446, section 5.5, allows
AES-GCM 2^24.5 full ones (388 GB), and Python offers no key update."""

_REASONS = {
    "UNKNOWN_CA": "it is not signed by the peer's authority",
    "CERTIFICATE_REQUIRED": "the peer demands a certificate signed by its authority",
    "CERTIFICATE_EXPIRED": "it has expired",
    "UNSUPPORTED_CERTIFICATE": "it must allow both server and client use",
    "BAD_CERTIFICATE": "the peer found it bad",
}


class TlsSocket(socket.socket):
    """A TCP socket under TLS. `recv`, `recv_into` and `sendall` take and give plain bytes; `send`
    and `sendmsg` are those of the TCP socket, for what `seal` has sealed."""

    def __init__(
        self, plain: socket.socket, context: ssl.SSLContext, *, server: bool, deadline_s: float
    ) -> None:
        super().__init__(fileno=plain.detach())
        self.deadline_s: float | None = deadline_s  # of the handshakes
        self.may_read = True
        self._dry = False
        self.sealed_records = 0
        self.reads = 0  # at least as many as records have come
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._room = memoryview(bytearray(_READ_BYTES))
        self.tls = context.wrap_bio(self._in, self._out, server_side=server)

    def shake(self) -> None:
        """The TLS handshake."""
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                if not self._more():
                    raise ConnectionResetError("closed during the TLS handshake") from None
            except ssl.SSLError as error:
                self._flush()  # the alert, so that the peer learns why
                raise explain(error) from error
        self._flush()

    def seal(self, views: list[memoryview]) -> bytes:
        """The records that carry `views`: each as full as it can be."""
        write, kept = self._write, b""
        for view in views:
            if kept or len(view) < _RECORD_BYTES:
                room = _RECORD_BYTES - len(kept)
                kept, view = kept + view[:room], view[room:]
                if len(kept) < _RECORD_BYTES:
                    continue
                write(kept)
            while len(view) >= _RECORD_BYTES:
                write(view[:_RECORD_BYTES])
                view = view[_RECORD_BYTES:]
            kept = bytes(view)
        if kept:
            write(kept)
        return self._out.read()

    def _write(self, data: bytes | memoryview) -> None:
        self.sealed_records += 1
        self.tls.write(data)

    def pending(self) -> bool:
        """True when bytes were read from the network and not yet handed out."""
        return bool(self._in.pending or self.tls.pending())

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Seal and send."""
        super().sendall(self.seal([memoryview(data)]), flags)

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """Up to `bufsize` plain bytes; waits for them, until `deadline_s`."""
        while True:
            try:
                return self.tls.read(bufsize)
            except ssl.SSLWantReadError:
                if not self._more():
                    return b""
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLError as error:
                raise explain(error) from error

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Fill `buffer` as far as bytes are there; 0 at the end, BlockingIOError when none is."""
        view = memoryview(buffer)
        size = len(view)
        got = 0
        while got < size:
            try:
                self.reads += 1
                # With a buffer it returns how many bytes; typeshed knows only the other form.
                got += cast("int", self.tls.read(size - got, view[got:]))
            except ssl.SSLWantReadError:
                if got and self._dry:
                    return got
                try:
                    if not self._more():
                        return got
                except BlockingIOError:
                    if got:
                        return got
                    raise
            except ssl.SSLZeroReturnError:
                return got
        return got

    def _more(self) -> bool:
        """Read ciphertext; false at its end."""
        if self.deadline_s is not None:
            left_s = self.deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the handshake took too long")
            self.settimeout(left_s)
        elif not self.may_read:
            raise BlockingIOError
        got = super().recv_into(self._room)
        self._dry = got < len(self._room)  # nothing more was there
        self._in.write(self._room[:got])
        return got > 0

    def _flush(self) -> None:
        if self._out.pending:
            super().sendall(self._out.read())


def explain(error: ssl.SSLError) -> HandshakeFailed:
    """What went wrong in a handshake, in words that name the remedy."""
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return HandshakeFailed(
            f"the peer's certificate is refused: {error.verify_message}",
            fix="give it one that is valid now and signed by the authority of Config.tls",
        )
    for word, what in _REASONS.items():
        if word in reason:
            return HandshakeFailed(f"the peer refuses our certificate: {what}")
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"):
        return HandshakeFailed(
            "TLS here, none at the peer", fix="give every engine of the job the same Config.tls"
        )
    return HandshakeFailed(f"TLS: {reason.lower().replace('_', ' ')}")


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
        super().__init__(driver, sock, provider, nic, 0)
        sock.deadline_s = None
        self._tls = sock
        self._room = memoryview(bytearray(_READ_BYTES))
        self._sealed = memoryview(b"")
        self._is_tcp = False  # what the kernel holds is not what we count: no SO_RCVLOWAT

    def attach(self, receiver: Receiver, *, reads_peer: bool) -> None:
        """Part of Channel."""
        super().attach(receiver, reads_peer=reads_peer)
        # The last words of the handshake may have come with the peer's first frames.
        self._driver.later(lambda: self._on_events(select.EPOLLIN))

    def _send_now(self, data: bytes, payload: memoryview | None) -> tuple[bytes, memoryview | None]:
        return data, payload  # through the queue like the rest: sealed in the order of sending

    def _flush(self) -> None:
        """Seal what waits, a part at a time, until the socket is full. The last part stays in
        the queue until all that is sealed has gone: what is in the queue wants the socket."""
        out = self._out
        try:
            while True:
                while len(self._sealed):
                    self._sealed = self._sealed[self._sock.send(self._sealed) :]
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
        # The peer may have closed it for its keys' sake. If it is dead, silence will tell.
        super()._fail(_used_up() if self._tls.reads > RENEW_RECORDS // 2 else error)

    def _read(self) -> None:
        super()._read()
        if not self.closed and self._tls.pending():
            # The turn is over, but epoll will not tell of bytes that are already here.
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


def gather(rows: Iov) -> memoryview:
    """The bytes of `rows` (address, length), one after the other."""
    lengths = rows[:, 1]
    room = bytearray(int(lengths.sum()))
    if room:
        at = ctypes.addressof(ctypes.c_char.from_buffer(room))
        for address, length in rows.tolist():
            ctypes.memmove(at, address, length)
            at += length
    return memoryview(room)
