"""Frames over a connected stream socket (TCP or AF_UNIX): what `sock` and `shm` share.

Payload goes from the socket straight to its place. Where the peer's memory can be read
(`pulls`), the frame carries addresses and the receiver copies once with process_vm_readv.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
from collections import deque
from typing import TYPE_CHECKING, Final

from ratrain.transport import frames
from ratrain.transport.frames import FrameError, Head
from ratrain.transport.provider import Iov, Landing, Receiver
from ratrain.transport.rows import Rows, read_process, read_span, remote_rows
from ratrain.transport.segments import MAX_SEGMENTS, Mapped, Segment, copy, map_peer

if TYPE_CHECKING:
    from ratrain.transport.progress import Driver

_BIG: Final = 1 << 20
_WAKE_BYTES: Final = 64 << 10
_READ_BYTES: Final = 16384  # read ahead while a header is awaited; more would be copied twice
_TURN_BYTES: Final = 4 << 20  # one connection's share of a turn
_GONE = {errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ECONNREFUSED}


class Bytes:
    """Bytes that wait to be sent."""

    __slots__ = ("view",)

    def __init__(self, view: memoryview) -> None:
        self.view = view


class StreamChannel:
    """One connection. All calls come under the engine's lock."""

    def __init__(
        self, driver: Driver, sock: socket.socket, provider: str, nic: str, peer_pid: int
    ) -> None:
        sock.setblocking(False)
        self.provider = provider
        self.nic = nic
        self.pulls = False
        self.least_page_bytes = 0
        self.reaches: frozenset[str] | None = None
        self.closed = False
        self._driver = driver
        self._sock = sock
        self._fd = sock.fileno()
        self._peer_pid = peer_pid
        self._mapped: list[Mapped] = []  # the peer's segments, as we see them
        self._receiver: Receiver | None = None
        self._out: deque[Bytes | Rows] = deque()
        self._holds = 0  # frames posted meanwhile leave together
        self._blocked = False  # the socket is full: epoll will tell
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
            self.post(Head(frames.FEATURE, imm=1), b"", None)

    def offer(self, segment: Segment) -> None:
        """Tell a peer of the same host of memory that it may map."""
        head = Head(frames.FEATURE, imm=2, tid=segment.fd, total=segment.size_bytes)
        self.post(head._replace(key=segment.base), b"", None)

    def _learn(self, head: Head) -> None:
        if head.imm == 1:
            self.pulls = True
        elif self._peer_pid and len(self._mapped) < MAX_SEGMENTS:
            found = map_peer(self._peer_pid, head.tid, head.key, head.total)
            if found is not None:
                self._mapped.append(found)

    # --- sending --------------------------------------------------------------------------

    def post(
        self,
        head: Head,
        extra: bytes,
        payload: memoryview | Iov | None,
        lead: tuple[Head, bytes] | None = None,
    ) -> None:
        """Part of Channel."""
        if self.closed:
            return
        data = frames.HEAD.pack(*head) + extra
        if lead is not None:
            data = frames.HEAD.pack(*lead[0]) + lead[1] + data
        out = self._out
        waiting = bool(out)
        if isinstance(payload, memoryview) and len(payload) <= 4096:
            data += payload
            payload = None
        if not waiting and not self._holds and (payload is None or isinstance(payload, memoryview)):
            data, payload = self._send_now(data, payload)
            if not data and payload is None:
                return
        if data:
            out.append(Bytes(memoryview(data)))
        if isinstance(payload, memoryview):
            out.append(Bytes(payload))
        elif payload is not None:
            out.append(Rows(payload))
        if not waiting and not self._holds and not self.closed:
            self._send_out()

    def hold(self) -> None:
        """Part of Channel."""
        self._holds += 1

    def release(self) -> None:
        """Part of Channel."""
        self._holds -= 1
        if self._out and not self._holds and not self._blocked and not self.closed:
            self._send_out()

    def _send_now(self, data: bytes, payload: memoryview | None) -> tuple[bytes, memoryview | None]:
        """Send a frame without queueing it; what is left of it."""
        try:
            if payload is None:
                sent = self._sock.send(data)
                return data[sent:], None
            sent = self._sock.sendmsg((data, payload))
        except BlockingIOError:
            return data, payload
        except OSError as error:
            self._fail(error)
            return b"", None
        over = sent - len(data)
        if over < 0:
            return data[sent:], payload
        return b"", payload[over:] if over < len(payload) else None

    def _send_out(self) -> None:
        self._flush()
        if self._out and not self._blocked:
            self._blocked = True
            self._driver.change(self._fd, select.EPOLLIN | select.EPOLLOUT)

    def _flush(self) -> None:
        """Send what waits, neighbours together in one call, until the socket is full."""
        out = self._out
        try:
            while out:
                first = out[0]
                if isinstance(first, Rows):
                    if first.send(self._sock) == 0:
                        out.popleft()
                else:
                    self._send_several()
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(error)

    def _send_several(self) -> None:
        out, views, size = self._out, list[memoryview](), 0
        for part in out:
            if isinstance(part, Rows) or size >= _BIG or len(views) >= 64:
                break
            views.append(part.view[: _BIG - size])
            size += len(views[-1])
        sent = self._sock.sendmsg(views)
        while sent:
            first = out[0]
            assert isinstance(first, Bytes)
            if len(first.view) > sent:
                first.view = first.view[sent:]
                return
            sent -= len(first.view)
            out.popleft()

    def close(self) -> None:
        """Part of Channel."""
        if self.closed:
            return
        self.closed = True
        self._driver.remove(self._fd)
        self._out.clear()
        self._landing = None
        self._pages = None
        self._left = 0
        self._mapped.clear()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _fail(self, error: OSError) -> None:
        """Close; the core learns of it after the present turn, never from inside a `post`."""
        if self.closed:
            return
        self.close()
        receiver = self._receiver
        if receiver is not None:
            reason, reset = error.strerror or str(error), error.errno in _GONE
            self._driver.later(lambda: receiver.down(reason, reset=reset))

    # --- receiving ------------------------------------------------------------------------

    def _on_events(self, events: int) -> None:
        if events & select.EPOLLOUT and not self.closed:
            self._flush()
            if not self._out and not self.closed:
                self._blocked = False
                self._driver.change(self._fd, select.EPOLLIN)
        if events & ~select.EPOLLOUT and not self.closed:
            try:
                self._read()
            except BlockingIOError:
                pass
            except FrameError as broken:
                self._fail(OSError(errno.EPROTO, f"broken frame: {broken.what}"))
            except OSError as error:
                self._fail(error)

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
        asked = min(self._left, _BIG)
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
            self.hold()  # what they make room for leaves in one call
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
        """Read a piece out of the peer's memory; true when all bytes have come."""
        size, pid = landing.head.size, self._peer_pid
        if landing.iov is not None:
            return read_process(pid, landing.iov, remote_rows(landing.head, extra))
        source = int.from_bytes(extra, "big")
        for segment in self._mapped:
            at = source - segment.base
            if 0 <= at <= segment.size_bytes - size:
                copy(landing.offset, segment.address + at, size)
                return True
        return read_span(pid, landing.offset, source, size)
