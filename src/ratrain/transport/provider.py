"""What a provider is to the core: something that carries frames over one NIC to one peer.

Everything else (cutting, counting, duplicates, deadlines, liveness, cancellation) is written
once, above: `peer.py` for the sending side, `ledger.py` for the receiving side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ratrain.transport.frames import Head
from ratrain.transport.segments import Segment

Iov = npt.NDArray[np.uint64]  # rows of (address, length)


class Landing:
    """The receiver's leave to place one piece; withdrawn by `live = False`."""

    __slots__ = ("answer", "far", "head", "iov", "key", "live", "offset", "view")

    def __init__(self, head: Head, *, live: bool, answer: int = 0) -> None:
        self.head = head
        self.live = live  # place the bytes (else read and drop them)
        self.answer = answer  # what `ledger.end` shall do with a dropped piece
        self.key = head.key
        self.far = False  # the place is on a device
        self.offset = 0
        self.view: memoryview | None = None  # where a plain piece goes
        self.iov: Iov | None = None  # where the pages go


class Channel(Protocol):
    """One connection of one NIC to one peer. All calls come under the engine's lock."""

    provider: str
    nic: str
    least_page_bytes: int  # smaller pages are sent, never pulled
    reaches: frozenset[str] | None  # kinds of device memory that its NIC reads and fills
    pulls: bool  # the peer reads the payload out of our memory: send addresses, not bytes

    def post(
        self,
        head: Head,
        extra: bytes,
        payload: memoryview | Iov | None,
        lead: tuple[Head, bytes] | None = None,
    ) -> None:
        """Queue one frame (after `lead`, a frame without payload), and send as much as goes
        without blocking."""
        ...

    def offer(self, segment: Segment) -> None:
        """Tell the peer of memory that it may map, if it is on the same host."""
        ...

    def hold(self) -> None:
        """Several frames will be posted: they may be sent together."""
        ...

    def release(self) -> None:
        """Send what was held back."""
        ...

    def close(self) -> None:
        """End the connection; nothing more is placed from it."""
        ...


class Receiver(Protocol):
    """What a channel calls when frames come in."""

    def take(self, head: Head, data: memoryview) -> bool:
        """All bytes of a plain piece are here: place and count it if it is a whole, sound write;
        false (nothing done) when `begin` and `end` shall deal with it."""
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
        """The connection is gone; `reset` when the peer's end closed it."""
        ...


def pages_iov(base: int, offsets: Sequence[int] | npt.NDArray[np.uint64], page_len: int) -> Iov:
    """Rows (address, length) of pages at `offsets` from `base`."""
    iov = np.empty((len(offsets), 2), np.uint64)
    iov[:, 0] = np.asarray(offsets, np.uint64) + np.uint64(base)
    iov[:, 1] = page_len
    return iov
