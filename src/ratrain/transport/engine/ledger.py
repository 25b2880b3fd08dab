"""The receiving side of one peer: what may be placed, what is whole, what was seen before.

A piece is checked before its first byte is placed, and counted after its last. A write counts once
the sizes of its pieces add up to its total; its id is remembered until the sender says (by `floor`)
that it will never send a piece of it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from ratrain.transport.engine.arrivals import Arrivals
from ratrain.transport.engine.channel import Landing
from ratrain.transport.memory.rows import pages_iov
from ratrain.transport.wire import frames
from ratrain.transport.wire.address import Address
from ratrain.transport.wire.frames import FrameError, Head

MAX_OPEN: Final = 65536
UNANSWERED: Final = -1  # the piece was sent again: only the newer copy is acknowledged


class Incoming:
    """One write of which some pieces have come."""

    __slots__ = ("got", "landings", "placed_bytes")

    def __init__(self) -> None:
        self.got: set[int] = set()
        self.landings: dict[int, Landing] = {}
        self.placed_bytes = 0


class Ledger:
    """What one peer has sent us."""

    def __init__(
        self,
        arrivals: Arrivals,
        source: Address,
        deliver: Callable[[bytes], None],
        stats: dict[str, int],
    ) -> None:
        self._arrivals = arrivals
        self._regions = arrivals.regions
        self._source = source
        self._deliver = deliver  # a whole message
        self._stats = stats
        self._floor = 0
        self._open: dict[int, Incoming] = {}
        self._over: dict[int, int] = {}  # ended ids -> 0 if whole, else why refused

    def take(self, head: Head, data: memoryview) -> bool:
        """Place and count a valid write of a single piece whose bytes are all here: what `begin`
        and `end` do, in one step. False (nothing done) for anything else, and for errors."""
        tid, size = head.tid, head.size
        if size != head.total or head.kind != frames.WRITE:
            return False
        if head.floor > self._floor:
            self._raise_floor(head.floor)
        if tid < self._floor or tid in self._over or tid in self._open:
            return False
        if size or head.key:
            region = self._regions.by_key.get(head.key)
            offset = head.offset
            if region is None or offset + size > region.size_bytes or region.kind != "host":
                return False
            region.view[offset : offset + size] = data
        self._over[tid] = 0
        if head.flags & frames.HAS_IMM:
            self._arrivals.arrive(self._source, head.imm, 1)
        return True

    def begin(self, head: Head, extra: bytes) -> Landing:
        """The permission to place a piece, or the reason to drop it."""
        self._raise_floor(head.floor)
        tid = head.tid
        if tid < self._floor:
            return Landing(head, live=False, answer=frames.OVER)
        if tid in self._over:
            return Landing(head, live=False, answer=self._over[tid])
        entry = self._open.get(tid)
        if entry is None:
            if len(self._open) >= MAX_OPEN:
                raise FrameError(f"more than {MAX_OPEN} writes open at once")
            entry = self._open[tid] = Incoming()
        if head.start in entry.got:
            return Landing(head, live=False)
        landing = Landing(head, live=True)
        code = self._aim(landing, extra)
        if code:
            self._refuse(head, entry, code)
            landing.live = False
            landing.answer = code
            return landing
        earlier = entry.landings.get(head.start)
        if earlier is not None:  # the same piece is still coming in over a dying link
            earlier.live = False
            earlier.answer = UNANSWERED
        entry.landings[head.start] = landing
        return landing

    def end(self, landing: Landing, failed: int) -> int:
        """Count a placed piece; when its write is whole, move the counter. The code to acknowledge
        the piece with, or UNANSWERED. (A dropped piece is acknowledged with the reason, so that it
        frees the sender's window.)"""
        head = landing.head
        if not landing.live:
            if landing.answer == frames.UNKNOWN_KEY and head.tid in self._open:
                self._refuse(head, self._open[head.tid], frames.UNKNOWN_KEY)
            return landing.answer
        entry = self._open[head.tid]
        if failed:
            self._refuse(head, entry, failed)
            return failed
        entry.landings.pop(head.start, None)
        entry.got.add(head.start)
        entry.placed_bytes += head.size
        if entry.placed_bytes == head.total:
            del self._open[head.tid]
            self._over[head.tid] = 0
            self._whole(head, landing)
        return 0

    def cancel(self, tid: int) -> bool:
        """Drop what is left of a write; true if all of it had been placed before."""
        if tid in self._over:
            return self._over[tid] == 0
        entry = self._open.pop(tid, None)
        self._over[tid] = frames.OVER
        if entry is not None:
            self._drop(entry, frames.OVER)
        return False

    def close(self) -> None:
        """Place nothing more from this peer."""
        for entry in self._open.values():
            self._drop(entry, frames.OVER)
        self._open.clear()

    def revoke(self, key: int) -> None:
        """Place nothing more in the region of `key`: from now on its pieces are dropped."""
        for entry in self._open.values():
            for landing in entry.landings.values():
                if landing.key == key:
                    landing.live = False
                    landing.answer = frames.UNKNOWN_KEY

    def forget_link(self) -> None:
        """A link died: its half-placed pieces will not end, and will be sent again."""
        for entry in self._open.values():
            entry.landings = {i: k for i, k in entry.landings.items() if k.live}

    def _drop(self, entry: Incoming, code: int) -> None:
        for landing in entry.landings.values():
            landing.live = False
            landing.answer = code

    def _aim(self, landing: Landing, extra: bytes) -> int:
        """Find where a piece goes; the code of what is wrong with it, or 0."""
        head = landing.head
        if head.kind == frames.MSG:
            if head.size > self._arrivals.pool.size_bytes:
                return frames.NO_ROOM
            landing.view = memoryview(bytearray(head.size))
            return 0
        if not head.size and not head.key:
            return 0  # an immediate alone
        region = self._regions.by_key.get(head.key)
        if region is None:
            return frames.UNKNOWN_KEY
        landing.far = region.kind != "host"
        if landing.far and head.size and not head.flags & frames.PULL:
            return frames.ON_DEVICE
        if head.pages:
            offsets = np.frombuffer(extra, ">u8", head.pages).astype(np.uint64)
            limit = region.size_bytes - head.page_len - head.offset
            if limit < 0 or int(offsets.max()) > limit:
                return frames.OUT_OF_BOUNDS
            landing.iov = pages_iov(region.base + head.offset, offsets, head.page_len)
            return 0
        start = head.offset - head.start
        if start < 0 or start + head.total > region.size_bytes:
            return frames.OUT_OF_BOUNDS
        landing.offset = region.base + head.offset
        if not landing.far:
            landing.view = region.view[head.offset : head.offset + head.size]
        return 0

    def _refuse(self, head: Head, entry: Incoming, code: int) -> None:
        self._drop(entry, code)
        self._open.pop(head.tid, None)
        self._over[head.tid] = code
        self._stats["refused"] += 1

    def _whole(self, head: Head, landing: Landing) -> None:
        if head.kind == frames.MSG:
            assert landing.view is not None
            self._deliver(bytes(landing.view))
        elif head.flags & frames.HAS_IMM:
            times = 1
            if head.flags & frames.PER_PAGE and head.page_len:
                times = head.total // head.page_len
            self._arrivals.arrive(self._source, head.imm, times)

    def _raise_floor(self, floor: int) -> None:
        if floor <= self._floor:
            return
        self._floor = floor
        if len(self._over) > 2048:
            self._over = {t: code for t, code in self._over.items() if t >= floor}
            for tid in [t for t in self._open if t < floor]:
                del self._open[tid]
