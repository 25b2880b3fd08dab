"""Frames over a connection between two ranks, and many of them moved at once by one thread.

A frame is a header (marker, length) and its body. A length is held against what the receiver
expects before a byte of the body is read, and nothing received is ever run or unpickled.

There are no threads here and no copies: the thread that needs the bytes sends them out of the
tensor's memory, or receives them into it. It sleeps in `poll` without the interpreter's lock, and
is woken when much has come or all that it waits for (SO_RCVLOWAT), not for every packet.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

from ratrain.errors import DeadlineExceeded, PeerDown, TransportError
from ratrain.runtime.step.network.congestion import choose_congestion

_HEADER = struct.Struct("!4sQ")
_MARKER = b"RATF"
_WAKE_BYTES = 1 << 17
"""A sleeping receiver is woken when this many bytes are there: at 100 Mbit/s a hundred times a
second, where every packet would be nine thousand times."""
_BLOCK_BYTES = 1 << 20
"""A body whose length the sender chooses is given memory as it arrives, this much at a time."""
_PARTS_AT_ONCE = 1000
"""The operating system takes 1,024."""
_IDLE_S, _PROBE_S, _PROBES = 60, 20, 6
"""Firewalls forget connections that are idle for long: a lane may have nothing to say for hours."""


class Connection:
    """A connection to another rank. One thread at a time sends on it, and one receives."""

    def __init__(self, sock: socket.socket, rank: int, peer: int, patience_s: float) -> None:
        self.rank, self.peer, self.patience_s = rank, peer, patience_s
        self.fd = sock.fileno()
        self.sent_bytes = 0  # headers too
        self._sock = sock
        self._head = memoryview(bytearray(_HEADER.size))
        self._head_got = 0
        self._announced: int | None = None  # the length of a frame of which the header is read
        self._left = 0  # bytes of the frame that is being received
        self._wakes_at = 1
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            _prepare(sock, patience_s)

    def close(self) -> None:
        """The peer sees the end of the stream."""
        self._sock.close()

    def hang_up(self) -> None:
        """Whoever waits on it, here or at its other end, finds it lost; from any thread."""
        with suppress(OSError):  # it is lost already
            self._sock.shutdown(socket.SHUT_RDWR)

    # ---- one frame at a time ----------------------------------------------------------------

    def send(self, body: memoryview | bytes) -> None:
        """Sends a frame; returns when the operating system has all of it."""
        move([Leaving(self, body)], [])

    def receive(self, room: memoryview) -> None:
        """Fills `room` with the next frame, which must be as long."""
        move([], [Landing(self, room)])

    def receive_bytes(self, limit: int) -> bytes:
        """The next frame, of at most `limit` bytes."""
        size = self.await_frame()
        if size > limit:
            raise self._unexpected(f"{size:,} bytes where at most {limit:,} were expected")
        body = bytearray()
        while True:
            block = bytearray(min(size - len(body), _BLOCK_BYTES))
            move([], [Landing(self, memoryview(block), frame_bytes=size)])
            body += block
            if len(body) == size:
                return bytes(body)

    def await_frame(self) -> int:
        """Waits until the peer's next frame begins; its length."""
        if self._announced is None:
            move([], [_Header(self)])
        assert self._announced is not None
        return self._announced

    # ---- what `move` calls ------------------------------------------------------------------

    def push(self, parts: Sequence[memoryview]) -> int:
        """Sends what the operating system takes now, how many bytes that is."""
        try:
            count = self._sock.sendmsg(parts)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._lost(error) from error
        self.sent_bytes += count
        return count

    def pull(self, room: memoryview) -> int:
        """Receives what is there into `room`; how many bytes that is."""
        try:
            count = self._sock.recv_into(room)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._lost(error) from error
        if not count:
            raise self._lost(None)
        return count

    def open_frame(self, expected: int | None) -> bool:
        """Whether the next frame's header is there. `expected`: what its length must be; None:
        whatever it is, it stays announced."""
        if self._left:
            return True
        while self._announced is None:
            count = self.pull(self._head[self._head_got :])
            if not count:
                return False
            self._head_got += count
            if self._head_got == _HEADER.size:
                self._head_got = 0
                self._announced = self._read_header()
        if expected is None:
            return True
        if self._announced != expected:
            sent = f"{self._announced:,} bytes where {expected:,} were expected"
            raise self._unexpected(sent)
        self._left, self._announced = expected, None
        return True

    def took(self, count: int) -> None:
        """That many bytes of the frame's body were received."""
        self._left -= count

    def wake_at(self, size: int) -> None:
        """From now on sleepers are woken when that many bytes are there, or the most that pays
        off."""
        if not self._left:
            size = _HEADER.size - self._head_got
        size = min(size, _WAKE_BYTES)
        if size != self._wakes_at:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            self._wakes_at = size

    def _read_header(self) -> int:
        marker, length = _HEADER.unpack(self._head)
        if marker != _MARKER:
            raise self._unexpected("something that is not a frame")
        return int(length)

    def _lost(self, error: OSError | None) -> PeerDown:
        because = f": {error.strerror or error}" if error else ""
        return PeerDown(
            f"rank {self.rank} lost its connection to rank {self.peer}{because}",
            fix="check why that rank ended",
        )

    def _unexpected(self, what: str) -> TransportError:
        return TransportError(
            f"rank {self.peer} sent rank {self.rank} {what}",
            fix="run the same version of ratrain, and the same run folder, on every machine",
        )


class Leaving:
    """A frame on its way out; its body may lie in several places."""

    def __init__(self, connection: Connection, *bodies: memoryview | bytes) -> None:
        self.connection = connection
        body = [memoryview(each) for each in bodies]
        size = sum(map(len, body))
        self._parts = [memoryview(_HEADER.pack(_MARKER, size)), *body]
        self._later: Iterator[memoryview] = iter(())
        self._left = _HEADER.size + size
        self._size = self._left

    @classmethod
    def made(cls, connection: Connection, size: int, pieces: Iterator[memoryview]) -> Leaving:
        """A frame whose body is made while it leaves: each piece when the operating system has the
        one before, whose memory it may take."""
        frame = cls(connection)
        frame._parts = [memoryview(_HEADER.pack(_MARKER, size)), *islice(pieces, 1)]
        frame._later = pieces
        frame._left = frame._size = _HEADER.size + size
        return frame

    @property
    def body_sent(self) -> int:
        """How many bytes of the body the operating system has."""
        return self._size - self._left - _HEADER.size

    def push(self) -> bool:
        """Sends what can be sent now; whether that was the rest."""
        while self._left:
            count = self.connection.push(self._parts[:_PARTS_AT_ONCE])
            self._left -= count
            while self._parts and count >= len(self._parts[0]):
                count -= len(self._parts.pop(0))
            if self._parts:
                self._parts[0] = self._parts[0][count:]
                return False
            self._parts.extend(islice(self._later, 1))
        return True


class Landing:
    """Room for a frame, or for the next part of one: `frame_bytes` is the length of all of it. The
    rooms are filled in their order."""

    def __init__(
        self, connection: Connection, *rooms: memoryview, frame_bytes: int | None = None
    ) -> None:
        self.connection, self._rooms = connection, list(rooms)
        self._frame_bytes = sum(map(len, rooms)) if frame_bytes is None else frame_bytes
        self._opened = False

    def arm(self) -> None:
        """Before a sleep: what to be woken for."""
        self.connection.wake_at(sum(map(len, self._rooms)))

    def pull(self) -> bool:
        """Receives what is there; whether that was the rest."""
        if not self._opened:
            self._opened = self.connection.open_frame(self._frame_bytes)
        while self._opened and self._rooms:
            room = self._rooms[0]
            count = self.connection.pull(room) if len(room) else 0
            self.connection.took(count)
            self._rooms[0] = room[count:]
            if len(self._rooms[0]):
                return False
            del self._rooms[0]
        return self._opened


class _Header(Landing):
    """The next frame's header alone."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)

    def pull(self) -> bool:
        return self.connection.open_frame(None)


def move(
    leaving: Sequence[Leaving], landing: Sequence[Landing], *, enough_sent: int | None = None
) -> None:
    """Sends and receives all of these at once, at most one each way on a connection. Returns when
    every landing is full, and every leaving frame has gone, or at least `enough_sent` bytes of its
    body; what has not gone yet is for a later call."""
    sending = {frame.connection.fd: frame for frame in leaving if not frame.push()}
    receiving = {frame.connection.fd: frame for frame in landing if not frame.pull()}
    while receiving or (sending and not _is_enough(sending, enough_sent)):
        for fd, event in _sleep(sending, receiving):
            if fd in receiving and event & ~select.POLLOUT and receiving[fd].pull():
                del receiving[fd]
            if fd in sending and event & ~select.POLLIN and sending[fd].push():
                del sending[fd]


def _is_enough(sending: dict[int, Leaving], enough_sent: int | None) -> bool:
    return enough_sent is not None and all(
        frame.body_sent >= enough_sent for frame in sending.values()
    )


def _sleep(sending: dict[int, Leaving], receiving: dict[int, Landing]) -> list[tuple[int, int]]:
    """What can go on. An error where nothing can for as long as the connections' patience."""
    poll = select.poll()
    for fd in {*sending, *receiving}:
        poll.register(fd, (fd in sending and select.POLLOUT) | (fd in receiving and select.POLLIN))
    for room in receiving.values():
        room.arm()
    waiting = [*receiving.values(), *sending.values()]
    patience_s = min(each.connection.patience_s for each in waiting)
    ready = poll.poll(patience_s * 1000)
    if not ready:
        raise _silent(sending, receiving, patience_s)
    return ready


def _silent(
    sending: dict[int, Leaving], receiving: dict[int, Landing], patience_s: float
) -> DeadlineExceeded:
    rank = next(iter((receiving or sending).values())).connection.rank
    peers = sorted(each.connection.peer for each in (receiving or sending).values())
    names = f"rank{'s' if len(peers) > 1 else ''} {', '.join(map(str, peers))}"
    what = f"rank {rank} received nothing from {names} for {patience_s:g} s"
    if not receiving:
        what = f"{names} accepted no data from rank {rank} for {patience_s:g} s"
    return DeadlineExceeded(
        what,
        fix="check whether a rank or a link has stalled; [train] timeout sets how long to wait",
    )


def _prepare(sock: socket.socket, patience_s: float) -> None:
    """Small frames leave at once; a peer's machine that is gone is noticed."""
    choose_congestion(sock)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE_S),
        ("TCP_KEEPINTVL", _PROBE_S),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", max(1, round(patience_s * 1000))),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
