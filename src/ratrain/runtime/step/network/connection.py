"""Frames over a connection between two ranks, and many of them moved at once by one thread.

A frame is a header (marker, rows, length) and its body; to a peer on this machine, in place of the
body, rows that say where it lies in the sender's memory (near.py); to one that is reached over
several networks, a mark that the body comes over further sockets (rails.py). A length is held
against what the receiver expects before a byte of the body is read, and nothing received is ever
run or unpickled.

There are no threads here and no copies: the thread that needs the bytes sends them out of the
tensor's memory, or receives them into it. It sleeps in `poll` without the interpreter's lock, and
is woken when much has come or all that it waits for (SO_RCVLOWAT), not for every packet.
"""

from __future__ import annotations

import select
import socket
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

from ratrain.errors import DeadlineExceeded, PeerDown, TransportError
from ratrain.runtime.step.network.congestion import choose_congestion
from ratrain.runtime.step.network.near import MOST_ROWS, NEAR_BYTES, Near, Row, rows_of
from ratrain.runtime.step.network.rails import (
    RAILED_BYTES,
    LandingParts,
    LeavingParts,
    OutsideFrameError,
    Rails,
)
from ratrain.runtime.step.network.sealed_socket import woken_at

_HEADER = struct.Struct("!3sBQ")
_MARKER = b"RAT"
_ROW = struct.Struct("!QQ")
_RAILED = 255
"""In place of a number of rows: the body comes over rails."""
_WAKE_BYTES = 1 << 17
"""A sleeping receiver is woken when this many bytes are there: at 100 Mbit/s a hundred times a
second, where every packet would be nine thousand times."""
_BLOCK_BYTES = 1 << 20
"""A body whose length the sender chooses is given memory as it arrives, this much at a time."""
_PARTS_AT_ONCE = 1000
"""The operating system takes 1,024."""
_IDLE_S, _PROBE_S, _PROBES = 10, 5, 3
"""Firewalls forget connections that are idle for long: a lane may have nothing to say for hours.
And a machine that is gone is noticed in 25 s by those that wait for its tensors: the kernel answers
probes, however long its ranks compute or stand still. No limit on what is sent and not taken, which
would end connections to ranks that do."""


class Connection:
    """A connection to another rank. One thread at a time sends on it, and one receives. `near`:
    what was agreed with a peer on this machine; `rails`: further sockets to one that is reached
    over several networks."""

    def __init__(
        self,
        sock: socket.socket,
        rank: int,
        peer: int,
        patience_s: float,
        near: Near | None = None,
        rails: Sequence[socket.socket] = (),
    ) -> None:
        self.rank, self.peer, self.patience_s, self.near = rank, peer, patience_s, near
        self.rails = Rails(rails) if rails else None
        self.parts: LandingParts | None = None  # of the frame that is being received, over rails
        self.fd = sock.fileno()
        self.sent_bytes = 0  # headers, and what peers read, too
        self.why_lost = ""  # where that is known here
        self._sock = sock
        self._head = memoryview(bytearray(_HEADER.size + MOST_ROWS * _ROW.size))
        self._head_got, self._head_size = 0, _HEADER.size
        self._rows: list[Row] = []  # where the rest of the frame's body lies in the peer's memory
        self._announced: int | None = None  # the length of a frame of which the header is read
        self._is_railed = False  # its body comes over rails
        self._left = 0  # bytes of the frame that is being received
        self._wakes_at = 1
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            for each in (sock, *rails):
                _prepare(each)

    def close(self) -> None:
        """The peer sees the end of the stream."""
        self._sock.close()
        for more in (self.near, self.rails):
            if more is not None:
                more.close()

    def hang_up(self) -> None:
        """Whoever waits on it, here or at its other end, finds it lost; from any thread."""
        with suppress(OSError):  # it is lost already
            self._sock.shutdown(socket.SHUT_RDWR)
        if self.rails is not None:
            self.rails.hang_up()

    @property
    def sockets(self) -> list[socket.socket]:
        """Its own, and those over further networks."""
        return [self._sock, *(self.rails.sockets if self.rails is not None else ())]

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
            raise self.lost(error) from error
        self.sent_bytes += count
        return count

    def pull(self, room: memoryview) -> int:
        """Receives what is there of a frame's body into `room`; how many bytes that is."""
        count = self._fetch(room) if self._rows else self._receive(room)
        self._left -= count
        return count

    def pull_parts(self, rooms: Sequence[memoryview]) -> bool:
        """The same of a frame that comes over rails; whether the rooms are full."""
        assert self.parts is not None
        try:
            is_full = self.parts.fill(rooms)
        except OutsideFrameError as error:
            raise self._unexpected("a part of a frame that lies outside of it") from error
        except OSError as error:
            raise self.lost(error) from error
        if is_full and self.parts.is_over:
            self.parts, self._left = None, 0
        return is_full

    def _receive(self, room: memoryview, flags: int = 0) -> int:
        try:
            count = self._sock.recv_into(room, 0, flags)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self.lost(error) from error
        if not count:
            raise self.lost(None)
        return count

    def _fetch(self, room: memoryview) -> int:
        """Reads the room's bytes out of the peer's memory."""
        assert self.near is not None
        if not self.near.fetch(room, self._rows):
            raise self.lost(None)
        self._receive(self._head[:1], socket.MSG_PEEK)  # it has not hung up meanwhile
        self.near.tell_read(len(room))
        return len(room)

    def open_frame(self, expected: int | None) -> bool:
        """Whether the next frame's header is there. `expected`: what its length must be; None:
        whatever it is, it stays announced."""
        if self._left:
            return True
        while self._announced is None:
            count = self._receive(self._head[self._head_got : self._head_size])
            if not count:
                return False
            self._head_got += count
            if self._head_got == self._head_size:
                self._announced = self._read_header()
        if expected is None:
            return True
        if self._announced != expected:
            sent = f"{self._announced:,} bytes where {expected:,} were expected"
            raise self._unexpected(sent)
        self._left, self._announced = expected, None
        if self._is_railed:
            assert self.rails is not None
            self.parts, self._is_railed = self.rails.landing(expected), False
        return True

    def wake_at(self, size: int) -> None:
        """From now on sleepers are woken when that many bytes are there, or the most that pays
        off."""
        if not self._left:
            size = self._head_size - self._head_got
        size = woken_at(self._sock, min(size, _WAKE_BYTES))
        if size != self._wakes_at:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            self._wakes_at = size

    def _read_header(self) -> int | None:
        """The length of the frame that begins; None where its rows are still to come."""
        marker, count, length = _HEADER.unpack(self._head[: _HEADER.size])
        if count == _RAILED and self.rails is not None:
            self._is_railed, count = True, 0
        if marker != _MARKER or count > MOST_ROWS or (count and not self._reads):
            raise self._unexpected("something that is not a frame")
        whole = _HEADER.size + count * _ROW.size
        if self._head_got < whole:
            self._head_size = whole
            return None
        self._rows = list(_ROW.iter_unpack(self._head[_HEADER.size : whole]))
        if count and sum(size for _, size in self._rows) != length:
            raise self._unexpected("a frame that is damaged")
        self._head_got, self._head_size = 0, _HEADER.size
        return int(length)

    @property
    def _reads(self) -> bool:
        return self.near is not None and self.near.reads

    def lost(self, error: OSError | None) -> PeerDown:
        """That the peer is gone."""
        because = self.why_lost or (error and (error.strerror or error))
        return PeerDown(
            f"rank {self.rank} lost its connection to rank {self.peer}"
            + (f": {because}" if because else ""),
            fix="check why that rank ended",
        )

    def _unexpected(self, what: str) -> TransportError:
        return TransportError(
            f"rank {self.peer} sent rank {self.rank} {what}",
            fix="run the same version of ratrain, and the same run folder, on every machine",
        )


class _Lent:
    """The body of a frame that the peer reads where it lies, at `rows` of this process's memory."""

    def __init__(self, near: Near, bodies: Sequence[memoryview], rows: Sequence[Row]) -> None:
        self.near, self.read_bytes = near, 0
        self.words = b"".join(_ROW.pack(*row) for row in rows)
        self._bodies = bodies  # while it is read
        self._size = sum(map(len, bodies))

    def is_read(self) -> bool:
        self.read_bytes += self.near.taken()
        return self.read_bytes >= self._size


def _lent(connection: Connection, bodies: Sequence[memoryview]) -> _Lent | None:
    """A body that a peer may read; None where it goes through the socket."""
    near = connection.near
    if near is None or not near.is_read or sum(map(len, bodies)) < NEAR_BYTES:
        return None
    rows = rows_of(bodies)
    return _Lent(near, bodies, rows) if rows else None


class Leaving:
    """A frame on its way out; its body may lie in several places."""

    def __init__(self, connection: Connection, *bodies: memoryview | bytes) -> None:
        self.connection = connection
        body = [memoryview(each) for each in bodies]
        self._lent = _lent(connection, body)
        connection.sent_bytes += sum(map(len, body)) if self._lent is not None else 0
        self._begin(sum(map(len, body)), body, iter(()))

    @classmethod
    def made(cls, connection: Connection, size: int, pieces: Iterator[memoryview]) -> Leaving:
        """A frame whose body is made while it leaves: each piece when the operating system has the
        one before, whose memory it may take."""
        frame = cls.__new__(cls)
        frame.connection, frame._lent = connection, None
        frame._begin(size, list(islice(pieces, 1)), pieces)
        return frame

    def _begin(self, size: int, body: Sequence[memoryview], later: Iterator[memoryview]) -> None:
        rails, rows, through = self.connection.rails, 0, size
        self._later, self._railed = later, None
        if self._lent is not None:
            body, rows = [memoryview(self._lent.words)], len(self._lent.words) // _ROW.size
            through = len(self._lent.words)
        elif rails is not None and size >= RAILED_BYTES:
            self._railed = rails.leaving(body, later)
            self.connection.sent_bytes += size
            body, rows, through = [], _RAILED, 0
        self._parts = [memoryview(_HEADER.pack(_MARKER, rows, size)), *body]
        self._left = self._size = _HEADER.size + through

    @property
    def body_sent(self) -> int:
        """How many bytes of the body the operating system has, or the peer has read."""
        if self._lent is not None:
            return self._lent.read_bytes
        if self._railed is not None:
            return self._railed.sent
        return self._size - self._left - _HEADER.size

    @property
    def reader(self) -> Near | None:
        """The peer that reads our memory, once it was told where."""
        return self._lent.near if self._lent is not None and not self._left else None

    def push(self) -> bool:
        """Sends what can be sent now; whether that was the rest, and was read where a peer does."""
        while self._left:
            count = self.connection.push(self._parts[:_PARTS_AT_ONCE])
            self._left -= count
            while self._parts and count >= len(self._parts[0]):
                count -= len(self._parts.pop(0))
            if self._parts:
                self._parts[0] = self._parts[0][count:]
                return False
            if self._railed is None:
                self._parts.extend(islice(self._later, 1))
        if self._railed is not None:
            return self._push_parts(self._railed)
        return self._lent is None or self._lent.is_read()

    def _push_parts(self, railed: LeavingParts) -> bool:
        try:
            return railed.push()
        except OSError as error:
            raise self.connection.lost(error) from error

    def waits_at(self) -> list[int]:
        """The descriptors at which more can be sent."""
        if self._left or self._railed is None:
            return [self.connection.fd]
        return self._railed.waits_at()


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
        parts = self._parts
        if parts is not None:
            parts.arm()
        else:
            self.connection.wake_at(sum(map(len, self._rooms)))

    def waits_at(self) -> list[int]:
        """The descriptors at which more can come."""
        parts = self._parts
        return [self.connection.fd] if parts is None else parts.waits_at()

    @property
    def _parts(self) -> LandingParts | None:
        return self.connection.parts if self._opened else None

    def pull(self) -> bool:
        """Receives what is there; whether that was the rest."""
        if not self._opened:
            self._opened = self.connection.open_frame(self._frame_bytes)
            if self._parts is not None:
                self._parts.begin(self._rooms)
        if self._parts is not None:
            return self.connection.pull_parts(self._rooms)
        while self._opened and self._rooms:
            room = self._rooms[0]
            count = self.connection.pull(room) if len(room) else 0
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
    sending, receiving = dict[int, Leaving](), dict[int, Landing]()
    try:
        for frame in leaving:
            if not frame.push():
                sending[frame.connection.fd] = frame
        for room in landing:
            if not room.pull():
                receiving[room.connection.fd] = room
        while receiving or (sending and not _is_enough(sending, enough_sent)):
            for fd, event in _sleep(sending, receiving):
                if fd in receiving and event & ~select.POLLOUT and receiving[fd].pull():
                    del receiving[fd]
                if fd in sending and event & ~select.POLLIN and _went(sending[fd], event):
                    del sending[fd]
    except BaseException:
        for frame in sending.values():
            if frame.reader is not None:  # before its memory may be used for something else
                frame.connection.hang_up()
        raise


def _went(frame: Leaving, event: int) -> bool:
    """Whether a frame has gone. A peer that has ended reads no more."""
    if frame.push():
        return True
    if frame.reader is not None and event & (select.POLLHUP | select.POLLERR):
        raise frame.connection.lost(None)
    return False


def _is_enough(sending: dict[int, Leaving], enough_sent: int | None) -> bool:
    return enough_sent is not None and all(
        frame.body_sent >= enough_sent for frame in sending.values()
    )


def _sleep(sending: dict[int, Leaving], receiving: dict[int, Landing]) -> list[tuple[int, int]]:
    """What can go on. An error where nothing can for as long as the connections' patience."""
    poll, awaited = select.poll(), defaultdict[int, int](int)
    readers, of = dict[int, int](), dict[int, int]()
    for fd, frame in sending.items():
        reader = frame.reader
        if reader is not None:
            readers[reader.read] = fd
            poll.register(reader.read, select.POLLIN)
        for at in frame.waits_at():
            awaited[at] |= 0 if reader is not None else select.POLLOUT
            of[at] = fd
    for fd, room in receiving.items():
        room.arm()
        for at in room.waits_at():
            awaited[at] |= select.POLLIN
            of[at] = fd
    for at, events in awaited.items():
        poll.register(at, events)
    waiting = [*receiving.values(), *sending.values()]
    patience_s = min(each.connection.patience_s for each in waiting)
    ready = poll.poll(patience_s * 1000)
    if not ready:
        raise _silent(sending, receiving, patience_s)
    # What a peer has read comes first: it may have hung up after it.
    read = [(readers[fd], select.POLLOUT) for fd, _ in ready if fd in readers]
    return read + [(of[at], event) for at, event in ready if at not in readers]


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


def _prepare(sock: socket.socket) -> None:
    """Small frames leave at once; a peer's machine that is gone is noticed."""
    choose_congestion(sock)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE_S),
        ("TCP_KEEPINTVL", _PROBE_S),
        ("TCP_KEEPCNT", _PROBES),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
