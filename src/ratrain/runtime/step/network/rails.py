"""A connection's further sockets, one over each network that both its ends are in: a long frame's
body goes over all of them at once, in parts.

The sender gives the next part to the network that will have brought it first, by what each has
brought lately and what waits in its socket: a slow one is given nothing that the fast ones would
have brought before. A part says of which frame it is and where in it; the receiver puts it there,
and leaves parts in a socket for which there is no room yet.
"""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

from ratrain.runtime.step.network.sealed_socket import woken_at

RAILED_BYTES = 64 << 10
"""Smaller frames are through one network before parts of them are through two."""
_PART = struct.Struct("!IIQ")
"""The frame's number, the part's bytes, and where in the frame they begin."""
_LEAST_PART, _MOST_PART = 8 << 10, 256 << 10
_PARTS_LEFT = 8
"""Parts grow smaller towards the end, so that all networks end together."""
_UNSENT_BYTES = 512 << 10
"""A socket takes more when less than this is not yet under way: what it holds is late if the
network is slower than was thought."""
_MEASURED_S = 0.02
_NEW_SHARE = 0.3
"""Of the latest measurement in what a network is thought to bring."""
_WAKE_BYTES = 1 << 17


class OutsideFrameError(Exception):
    """A part says that it lies outside of its frame."""


class Rail:
    """One of the sockets. One thread at a time sends on it, and one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.fd = sock, sock.fileno()
        self.leaving: list[memoryview] = []  # the rest of a part, its header first
        self.begins = 0  # where the rest of it begins in its frame
        self.frame, self.at, self.left = -1, 0, 0  # of the part that comes in
        self._head = memoryview(bytearray(_PART.size))
        self._head_got = 0
        self.has_ended = False  # the other end has closed it, after a whole part
        self._wakes_at = 1
        self._rate, self._since_s, self._brought, self._pushed = 0.0, 0.0, 0, 0
        sock.setblocking(False)
        with suppress(OSError, AttributeError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)

    def close(self) -> None:
        self.sock.close()

    def hang_up(self) -> None:
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    # ---- out --------------------------------------------------------------------------------

    def give(self, frame: int, at: int, parts: list[memoryview]) -> None:
        """The next part to send."""
        head = memoryview(_PART.pack(frame & 0xFFFFFFFF, sum(map(len, parts)), at))
        self.leaving, self.begins = [head, *parts], at - len(head)

    def push(self) -> bool:
        """Sends of its part what can be sent now; whether that was the rest."""
        while self.leaving:
            try:
                count = self.sock.sendmsg(self.leaving)
            except (BlockingIOError, InterruptedError):
                return False
            self._pushed += count
            self.begins += count
            while self.leaving and count >= len(self.leaving[0]):
                count -= len(self.leaving.pop(0))
            if self.leaving:
                self.leaving[0] = self.leaving[0][count:]
        return True

    def waiting(self) -> int:
        """Bytes that the other end has not acknowledged."""
        room = fcntl.ioctl(self.fd, termios.TIOCOUTQ, b"\0\0\0\0")
        return int.from_bytes(room, "little")

    def rate(self, waiting: int) -> float:
        """Bytes a second that it brings while something waits in it; 0 where that is not known."""
        now_s, brought = time.perf_counter(), self._pushed - waiting
        took_s = now_s - self._since_s
        if took_s >= _MEASURED_S:
            measured = (brought - self._brought) / took_s
            if waiting and self._since_s:
                share = _NEW_SHARE if self._rate else 1.0
                self._rate += share * (measured - self._rate)
            self._since_s, self._brought = (now_s, brought) if waiting else (0.0, brought)
        elif not waiting:
            self._since_s = 0.0
        return self._rate

    # ---- in ---------------------------------------------------------------------------------

    def open_part(self) -> bool:
        """Whether the header of a part is here."""
        while not self.left:
            count = 0 if self.has_ended else self.pull(self._head[self._head_got :])
            if not count:
                return False
            self._head_got += count
            if self._head_got == _PART.size:
                self.frame, self.left, self.at = _PART.unpack(self._head)
                self._head_got = 0
        return True

    def pull(self, room: memoryview) -> int:
        """Receives what is there; how many bytes that is."""
        try:
            count = self.sock.recv_into(room)
        except (BlockingIOError, InterruptedError):
            return 0
        self.has_ended = not count
        if self.has_ended and (self.left or self._head_got):
            raise ConnectionResetError(errno.ECONNRESET, "its other end has closed it")
        return count

    def wake_at(self, size: int) -> None:
        """From now on a sleeper is woken when that many bytes are there, or the most that pays
        off."""
        size = min(size or _PART.size - self._head_got, _WAKE_BYTES)
        size = woken_at(self.sock, size)
        if size != self._wakes_at:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            self._wakes_at = size


class Rails:
    """The further sockets of a connection, and the numbers of the frames over them."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self.all = tuple(map(Rail, sockets))
        self._sent = self._came = 0

    @property
    def sockets(self) -> list[socket.socket]:
        return [rail.sock for rail in self.all]

    def close(self) -> None:
        for rail in self.all:
            rail.close()

    def hang_up(self) -> None:
        for rail in self.all:
            rail.hang_up()

    def leaving(self, bodies: Sequence[memoryview], later: Iterator[memoryview]) -> LeavingParts:
        """The next frame's body on its way out."""
        self._sent += 1
        return LeavingParts(self.all, self._sent, bodies, later)

    def landing(self, size: int) -> LandingParts:
        """The next frame's body, as it comes in."""
        self._came += 1
        return LandingParts(self.all, self._came & 0xFFFFFFFF, size)


class LeavingParts:
    """A body on its way out over rails. `later`: further pieces, each of which may take the memory
    of the one before."""

    def __init__(
        self,
        rails: Sequence[Rail],
        frame: int,
        bodies: Sequence[memoryview],
        later: Iterator[memoryview],
    ) -> None:
        self._rails, self._frame, self._later = rails, frame, later
        self._bodies = [body for body in bodies if body]
        self._at = 0  # where in the frame the next part begins

    @property
    def sent(self) -> int:
        """The operating system has the body up to there."""
        return min((max(0, r.begins) for r in self._rails if r.leaving), default=self._at)

    def waits_at(self) -> list[int]:
        """The descriptors at which something can go on."""
        return [rail.fd for rail in self._rails if rail.leaving]

    def push(self) -> bool:
        """Sends what can be sent now; whether that was the rest."""
        while True:
            blocked = [rail for rail in self._rails if not rail.push()]
            if not self._bodies and not blocked:
                self._bodies.extend(islice(self._later, 1))
            if not self._bodies:
                return not blocked
            rail = self._first_to_bring(blocked)
            if rail is None:
                return False
            self._give(rail)

    def _first_to_bring(self, blocked: Sequence[Rail]) -> Rail | None:
        """Who sends the next part; None where that is better left to one whose socket is full."""
        size = self._next_size()
        left = sum(map(len, self._bodies))
        waiting = [rail.waiting() for rail in self._rails]
        rates = [rail.rate(count) for rail, count in zip(self._rails, waiting, strict=True)]
        for rail, rate in zip(self._rails, rates, strict=True):
            if not rate and rail not in blocked:
                return rail
        fastest = max(rates) or 1.0
        rates = [rate or fastest for rate in rates]
        done_s = [(count + size) / rate for count, rate in zip(waiting, rates, strict=True)]
        all_s = max(min(done_s), (sum(waiting) + left) / sum(rates))
        soon = [(at_s, place) for place, at_s in enumerate(done_s) if at_s <= all_s]
        free = [place for _, place in sorted(soon) if self._rails[place] not in blocked]
        return self._rails[free[0]] if free else None

    def _next_size(self) -> int:
        left = sum(map(len, self._bodies))
        size = left // (_PARTS_LEFT * len(self._rails))
        return min(left, max(_LEAST_PART, min(size, _MOST_PART)))

    def _give(self, rail: Rail) -> None:
        size, parts = self._next_size(), list[memoryview]()
        at, self._at = self._at, self._at + size
        while size:
            parts.append(self._bodies[0][:size])
            size -= len(parts[-1])
            self._bodies[0] = self._bodies[0][len(parts[-1]) :]
            if not self._bodies[0]:
                self._bodies.pop(0)
        rail.give(self._frame, at, parts)


class LandingParts:
    """A frame's body as it comes in over rails, into rooms in their order: `fill` with the same
    rooms until they are full, then with the next."""

    def __init__(self, rails: Sequence[Rail], frame: int, size: int) -> None:
        self._rails, self._frame, self._size = rails, frame, size
        self._begin = self._end = self._missing = 0

    def begin(self, rooms: Sequence[memoryview]) -> None:
        """The rooms that are filled next."""
        self._missing = sum(map(len, rooms))
        self._begin, self._end = self._end, self._end + self._missing

    @property
    def is_over(self) -> bool:
        return not self._missing and self._end == self._size

    def fill(self, rooms: Sequence[memoryview]) -> bool:
        """Receives what is there; whether that was the rest."""
        for rail in self._rails:
            while self._missing and rail.open_part():
                if not self._has_room(rail):
                    break
                room = _within(rooms, rail.at - self._begin)
                count = rail.pull(room[: min(rail.left, len(room))])
                rail.at, rail.left = rail.at + count, rail.left - count
                self._missing -= count
                if not count:
                    break
        if self._missing and all(rail.has_ended for rail in self._rails):
            raise ConnectionResetError(errno.ECONNRESET, "its other end has closed it")
        return not self._missing

    def arm(self) -> None:
        """Before a sleep: what to be woken for."""
        for rail in self._rails:
            if self._waits(rail):
                rail.wake_at(min(rail.left, self._end - rail.at) if rail.left else 0)

    def waits_at(self) -> list[int]:
        """The descriptors at which something can come that there is room for."""
        return [rail.fd for rail in self._rails if self._waits(rail)]

    def _waits(self, rail: Rail) -> bool:
        return self._has_room(rail) if rail.left else not rail.has_ended

    def _has_room(self, rail: Rail) -> bool:
        if rail.frame != self._frame:
            return False
        if rail.at < self._begin or rail.at + rail.left > self._size:
            raise OutsideFrameError
        return rail.at < self._end


def _within(rooms: Sequence[memoryview], at: int) -> memoryview:
    """The rest of the room in which something lies."""
    for room in rooms:
        if at < len(room):
            return room[at:]
        at -= len(room)
    raise OutsideFrameError
