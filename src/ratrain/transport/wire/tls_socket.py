"""A TCP socket under TLS. The TLS library works on memory buffers, not on the socket."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any, cast

from ratrain.errors import HandshakeFailed

READ_BYTES = 256 << 10
_RECORD_BYTES = 16384  # the most that one TLS 1.3 record carries

_REASONS = {
    "UNKNOWN_CA": "it is not signed by the peer's authority",
    "CERTIFICATE_REQUIRED": "the peer demands a certificate signed by its authority",
    "CERTIFICATE_EXPIRED": "it has expired",
    "UNSUPPORTED_CERTIFICATE": "it must allow both server and client use",
    "BAD_CERTIFICATE": "the peer rejected it as malformed",
}


class TlsRefused(HandshakeFailed):
    """One of two sides has no TLS, or no certificate that the other accepts."""


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
        self._room = memoryview(bytearray(READ_BYTES))
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


def explain(error: ssl.SSLError) -> TlsRefused:
    """What went wrong in a handshake, and how to fix it."""
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsRefused(
            f"the peer's certificate is refused: {error.verify_message}",
            fix="give it one that is valid now and signed by the authority of Config.tls",
        )
    for word, what in _REASONS.items():
        if word in reason:
            return TlsRefused(f"the peer refuses our certificate: {what}")
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"):
        return TlsRefused(
            "TLS here, none at the peer", fix="give every engine of the job the same Config.tls"
        )
    return TlsRefused(f"TLS: {reason.lower().replace('_', ' ')}")
