"""The sending half of a stream socket: frames leave in order, without blocking."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
from collections import deque
from typing import Final

from ratrain.transport.engine.channel import Channel, Receiver
from ratrain.transport.loop.driver import Driver
from ratrain.transport.memory.rows import Iov, Rows
from ratrain.transport.wire import frames
from ratrain.transport.wire.frames import Head

BIG: Final = 1 << 20
SMALL_BYTES: Final = 4096  # a payload that is copied behind its header
MAX_VIEWS: Final = 64  # of one call
_GONE = {errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ECONNREFUSED}


class Bytes:
    """Bytes that wait to be sent."""

    __slots__ = ("view",)

    def __init__(self, view: memoryview) -> None:
        self.view = view


class OutgoingChannel(Channel):
    """A connected socket and the frames that wait to leave by it."""

    def __init__(self, driver: Driver, sock: socket.socket, provider: str, nic: str) -> None:
        super().__init__(provider, nic)
        sock.setblocking(False)
        self._driver = driver
        self._sock = sock
        self._fd = sock.fileno()
        self._receiver: Receiver | None = None
        self._out: deque[Bytes | Rows] = deque()
        self._holds = 0  # frames posted meanwhile leave together
        self._blocked = False  # the socket is full: epoll will tell

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
        if isinstance(payload, memoryview) and len(payload) <= SMALL_BYTES:
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

    def close(self) -> None:
        """Part of Channel."""
        if self.closed:
            return
        self.closed = True
        self._driver.remove(self._fd)
        self._out.clear()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _send_now(self, data: bytes, payload: memoryview | None) -> tuple[bytes, memoryview | None]:
        """Send a frame without queueing it; what remains to be sent."""
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

    def _on_writable(self) -> None:
        """The socket has room again."""
        self._flush()
        if not self._out and not self.closed:
            self._blocked = False
            self._driver.change(self._fd, select.EPOLLIN)

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
            if isinstance(part, Rows) or size >= BIG or len(views) >= MAX_VIEWS:
                break
            views.append(part.view[: BIG - size])
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

    def _fail(self, error: OSError) -> None:
        """Close; the engine learns of it after the present turn, never from inside a `post`."""
        if self.closed:
            return
        self.close()
        receiver = self._receiver
        if receiver is not None:
            reason, reset = error.strerror or str(error), error.errno in _GONE
            self._driver.later(lambda: receiver.down(reason, reset=reset))
