"""The seam between the engine and its providers: a channel carries frames over one NIC to a peer.

Everything else (cutting, counting, duplicates, deadlines, liveness, cancellation) is written once,
in this folder: `outbox.py` for sending, `ledger.py` for receiving.
"""

from __future__ import annotations

from typing import Protocol

from ratrain.transport.memory.rows import Iov
from ratrain.transport.memory.segments import Segment
from ratrain.transport.wire.frames import Head


class Landing:
    """The receiver's permission to place one piece; withdrawn by `live = False`."""

    __slots__ = ("answer", "far", "head", "iov", "key", "live", "offset", "view")

    def __init__(self, head: Head, *, live: bool, answer: int = 0) -> None:
        self.head = head
        self.live = live  # place the bytes (else read and drop them)
        self.answer = answer  # how `ledger.end` answers a dropped piece
        self.key = head.key
        self.far = False  # the target is on a device
        self.offset = 0
        self.view: memoryview | None = None  # where a plain piece goes
        self.iov: Iov | None = None  # where the pages go


class Channel:
    """One connection of one NIC to one peer. All calls come under the engine's lock.

    A base class rather than a protocol: the engine calls it for every frame, and compiled code
    calls a method of a class it knows several times faster.
    """

    def __init__(self, provider: str, nic: str) -> None:
        self.provider = provider
        self.nic = nic
        self.closed = False
        self.pulls = False  # the peer reads payloads out of our memory: send addresses, not bytes
        self.least_page_bytes = 0  # smaller pages are sent, never pulled
        self.reaches: frozenset[str] | None = None  # device memory that its NIC reads and fills

    def post(
        self,
        head: Head,
        extra: bytes,
        payload: memoryview | Iov | None,
        lead: tuple[Head, bytes] | None = None,
    ) -> None:
        """Queue one frame (after `lead`, a frame without payload), and send as much as can be
        sent without blocking."""
        raise NotImplementedError

    def offer(self, segment: Segment) -> None:
        """Tell the peer about memory that it may map, if it is on the same host."""

    def hold(self) -> None:
        """Several frames will be posted: they may be sent together."""

    def release(self) -> None:
        """Send what was held back."""

    def close(self) -> None:
        """End the connection; nothing more is placed from it."""
        raise NotImplementedError


class Receiver(Protocol):
    """What a channel calls when frames come in."""

    def take(self, head: Head, data: memoryview) -> bool:
        """All bytes of a plain piece are here: place and count it if it is a whole, valid write;
        false (nothing done) if `begin` and `end` must deal with it."""
        ...

    def begin(self, head: Head, extra: bytes) -> Landing:
        """Before the first payload byte: where it goes, or that it is dropped."""
        ...

    def end(self, landing: Landing, failed: int = 0) -> None:
        """All of the piece is placed (or dropped)."""
        ...

    def control(self, head: Head, extra: bytes) -> None:
        """A frame without payload."""
        ...

    def down(self, reason: str, *, reset: bool) -> None:
        """The connection is gone; `reset` if the peer closed it."""
        ...
