"""Frames over a connected stream socket: all of `sock`, and the control frames of `shm` and `ofi`.

Payload goes from the socket straight to its place. Where the receiver can read the sender's memory
(`pulls`), the frame carries addresses instead, and the receiver fetches the payload (`shm.py`,
`ofi.py`).
"""

from __future__ import annotations

import errno
import select
import socket
from typing import Final

from ratrain.transport.engine.channel import Landing, Receiver
from ratrain.transport.loop.driver import Driver
from ratrain.transport.memory.rows import Rows
from ratrain.transport.providers.outgoing import BIG, OutgoingChannel
from ratrain.transport.wire import frames
from ratrain.transport.wire.frames import FrameError, Head

_WAKE_BYTES: Final = 64 << 10
_READ_BYTES: Final = 16384  # read ahead while a header is awaited; more would be copied twice
_TURN_BYTES: Final = 4 << 20  # one connection's share of a turn

# What a FEATURE frame tells, by its `imm`.
READS_PEER: Final = 1  # its sender reads our memory: payloads need not be sent
SEGMENT: Final = 2  # memory that a process of the same host may map
REGION: Final = 3  # memory registered with libfabric


class StreamChannel(OutgoingChannel):
    """One connection. All calls come under the engine's lock."""

    def __init__(self, driver: Driver, sock: socket.socket, provider: str, nic: str) -> None:
        super().__init__(driver, sock, provider, nic)
        self._buf = bytearray(frames.MAX_PAGES * 16 + 2 * _READ_BYTES)
        self._view = memoryview(self._buf)
        self._start = 0
        self._end = 0
        self._need = frames.HEAD_BYTES
        self._landing: Landing | None = None
        self._pages: Rows | None = None
        self._pos = 0
        self._left = 0
        self._low = 1
        self._drained = False
        self._is_tcp = sock.family != socket.AF_UNIX

    def attach(self, receiver: Receiver, *, reads_peer: bool) -> None:
        """Start to serve the connection for `receiver`."""
        self._receiver = receiver
        self._driver.add(self._fd, self._on_events)
        if reads_peer:
            self.post(Head(frames.FEATURE, imm=READS_PEER), b"", None)

    def close(self) -> None:
        """Part of Channel."""
        super().close()
        self._landing = None
        self._pages = None
        self._left = 0

    def _on_events(self, events: int) -> None:
        if events & select.EPOLLOUT and not self.closed:
            self._on_writable()
        if events & ~select.EPOLLOUT and not self.closed:
            try:
                self._read()
            except BlockingIOError:
                pass
            except FrameError as broken:
                self._fail(OSError(errno.EPROTO, f"broken frame: {broken.what}"))
            except OSError as error:
                self._fail(error)

    # --- reading --------------------------------------------------------------------------

    def _read(self) -> None:
        budget = _TURN_BYTES
        while budget > 0 and not self.closed:
            got = self._read_payload() if self._left else self._read_headers()
            if got == 0:
                raise OSError(errno.ECONNRESET, "connection closed by the peer")
            budget -= got
            if self._drained:
                self._drained = False
                return

    def _read_payload(self) -> int:
        landing = self._landing
        assert landing is not None
        asked = min(self._left, BIG)
        if not landing.live:
            asked = min(asked, len(self._buf))
            got = self._sock.recv_into(self._view[:asked])
        elif self._pages is not None:
            got = asked = self._pages.fill(self._sock)
        else:
            assert landing.view is not None
            got = self._sock.recv_into(landing.view[self._pos : self._pos + asked])
        self._pos += got
        self._left -= got
        self._drained = got < asked
        if self._drained or not self._left:
            self._wake_at(min(self._left, _WAKE_BYTES) or 1)
        if not self._left:
            self._finish()
        return got

    def _wake_at(self, size: int) -> None:
        """Sleep until `size` bytes are there: a slow NIC's segments are not worth a turn each."""
        if size != self._low and self._is_tcp:
            self._low = size
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def _read_headers(self) -> int:
        room = max(_READ_BYTES, self._need)
        if self._start:
            kept = self._end - self._start
            self._view[:kept] = self._view[self._start : self._end]
            self._start, self._end = 0, kept
        asked = max(room, self._end + 1) - self._end
        got = self._sock.recv_into(self._view[self._end : self._end + asked])
        self._end += got
        self._drained = got < asked
        acks = self._acks_first()
        if acks:
            self.hold()  # the frames that they make room for leave in one call
        while not self._left and not self.closed and self._end - self._start >= self._need:
            if acks and not self._acks_first():
                acks = False
                self.release()
            self._parse()
        if acks:
            self.release()
        if self._left:
            self._start = self._end = 0
        return got

    def _acks_first(self) -> bool:
        """True when acknowledgements come next."""
        return self._end > self._start and self._buf[self._start] == frames.ACK

    # --- frames ---------------------------------------------------------------------------

    def _parse(self) -> None:
        start = self._start
        kind = self._buf[start]
        if kind == frames.ACK:
            self._parse_acks(start)
            return
        head = frames.unpack(self._buf, start)
        need = frames.HEAD_BYTES
        if kind == frames.WRITE and (head.pages or head.flags & frames.PULL):
            need += head.list_bytes
            if self._end - start < need:
                self._need = need
                return
        self._need = frames.HEAD_BYTES
        receiver = self._receiver
        assert receiver is not None
        at = self._start = start + need
        size = head.size
        whole = kind == frames.WRITE and need == frames.HEAD_BYTES and size <= self._end - at
        if whole and receiver.take(head, self._view[at : at + size]):
            self._start = at + size
            return
        extra = bytes(self._view[start + frames.HEAD_BYTES : at])
        if kind == frames.FEATURE:
            self._learn(head)
            receiver.control(head, extra)
        elif kind > frames.MSG:
            receiver.control(head, extra)
        elif head.flags & frames.PULL:
            self._pull(head, extra)
        else:
            self._take(head, extra)

    def _parse_acks(self, start: int) -> None:
        pages = frames.unpack_acks(self._buf, start)
        need = frames.HEAD_BYTES + 16 * pages
        if self._end - start < need:
            self._need = need
            return
        self._need = frames.HEAD_BYTES
        self._start = start + need
        assert self._receiver is not None
        extra = bytes(self._view[start + frames.HEAD_BYTES : self._start])
        self._receiver.control(frames.ACKS, extra)

    def _learn(self, head: Head) -> None:
        """The peer tells what it can do."""
        if head.imm == READS_PEER:
            self.pulls = True

    def _take(self, head: Head, extra: bytes) -> None:
        assert self._receiver is not None
        landing = self._landing = self._receiver.begin(head, extra)
        self._pages = Rows(landing.iov) if landing.iov is not None and landing.live else None
        size = min(head.size, self._end - self._start)
        if size:
            data = self._view[self._start : self._start + size]
            if self._pages is not None:
                self._pages.put(data)
            elif landing.live and landing.view is not None:
                landing.view[:size] = data
            self._start += size
        self._pos = size
        self._left = head.size - size
        if not self._left:
            self._finish()

    def _finish(self) -> None:
        landing, self._landing, self._pages = self._landing, None, None
        assert landing is not None and self._receiver is not None
        self._receiver.end(landing)

    def _pull(self, head: Head, extra: bytes) -> None:
        assert self._receiver is not None
        landing = self._receiver.begin(head, extra)
        failed = 0
        if landing.live and landing.far and not self.reaches:
            failed = frames.ON_DEVICE
        elif landing.live and head.size and not self._fetch(landing, extra):
            failed = frames.UNREADABLE
        if not self.closed:
            self._receiver.end(landing, failed)

    def _fetch(self, landing: Landing, extra: bytes) -> bool:
        """Read a piece out of the peer's memory; true if all bytes have come."""
        return False
