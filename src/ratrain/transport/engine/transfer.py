"""Futures: what a write returns, and the pieces it is cut into."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Final

import numpy as np

from ratrain.errors import DeadlineExceeded, TransportError
from ratrain.transport.engine.station import Station
from ratrain.transport.memory.pages import Offsets
from ratrain.transport.memory.rows import Iov, pages_iov
from ratrain.transport.wire import frames
from ratrain.transport.wire.address import Address

BOTH_HOST: Final = ("host", "host")


class Carrier:
    """Who sends the pieces of a transfer."""

    def cancel(self, transfer: Transfer, error: TransportError | None = None) -> None:
        """Send no more of it, and ask the peer to drop the rest. With `error` it ends at once."""
        raise NotImplementedError


class Piece:
    """A consecutive part of a transfer, on its way over one link."""

    __slots__ = ("delivered", "delivered_s", "index", "sent_s", "size", "transfer")

    def __init__(self, transfer: Transfer, index: int, size: int) -> None:
        self.transfer = transfer
        self.index = index
        self.size = size
        self.sent_s = 0.0
        self.delivered = 0
        self.delivered_s = 0.0


class Transfer:
    """One write in progress. Done means *placed at the receiver*."""

    __slots__ = (
        "_callbacks",
        "_carrier",
        "_station",
        "acked_bytes",
        "address",
        "base",
        "cancelling",
        "cursor",
        "deadline_s",
        "dst_offset",
        "dst_pages",
        "error",
        "finished",
        "flags",
        "imm",
        "in_flight",
        "key",
        "kind",
        "landed",
        "nics",
        "on_device",
        "page_len",
        "queued",
        "returned",
        "source_kind",
        "src_pages",
        "tid",
        "total",
        "view",
    )

    def __init__(
        self,
        station: Station,
        carrier: Carrier,
        address: Address,
        *,
        kind: int = frames.WRITE,
        tid: int,
        view: memoryview,
        base: int,
        total: int,
        key: int = 0,
        dst_offset: int = 0,
        imm: int | None = None,
        deadline_s: float,
        nics: frozenset[str] | None = None,
        kinds: tuple[str, str] = BOTH_HOST,
    ) -> None:
        self._station = station
        self._carrier = carrier
        self._callbacks: list[Callable[[Transfer], None]] = []
        self.address = address
        self.kind = kind
        self.tid = tid
        self.view = view
        self.base = base
        self.total = total
        self.key = key
        self.dst_offset = dst_offset
        self.imm = imm or 0
        self.flags = 0 if imm is None else frames.HAS_IMM
        self.deadline_s = deadline_s
        self.nics = nics
        self.source_kind = kinds[0]
        self.on_device = kinds != BOTH_HOST  # not both source and target are host memory
        self.src_pages: Offsets | None = None
        self.dst_pages: Offsets | None = None
        self.page_len = 0
        self.cursor = 0
        self.returned: list[Piece] = []
        self.in_flight = 0
        self.acked_bytes = 0
        self.queued = False
        self.cancelling = False
        self.finished = False
        self.landed: bool | None = None
        self.error: TransportError | None = None

    # --- for the user ---------------------------------------------------------------------

    def done(self) -> bool:
        """True when the transfer has ended, in success or failure."""
        return self.finished

    @property
    def bytes_acked(self) -> int:
        """Bytes that the receiver has confirmed as placed."""
        return self.acked_bytes

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when the data are placed; raise the error if they never will be."""
        if not self._station.wait_until(lambda: self.finished, timeout_s):
            raise DeadlineExceeded(
                f"{self.total - self.acked_bytes} of {self.total} bytes remain after {timeout_s} s "
                "(the transfer continues)",
                place=str(self.address),
            )
        if self.error is not None:
            raise self.error

    def result(self, timeout_s: float | None = None) -> int:
        """The number of bytes placed, after `wait`."""
        self.wait(timeout_s)
        return self.total

    def wait_quiet(self, timeout_s: float | None = None) -> bool:
        """After a failure: wait until the peer confirms that nothing more can land; false if it
        did not in time. Then `landed` says whether all of it had landed."""
        return self._station.wait_until(lambda: self.landed is not None, timeout_s)

    def cancel(self) -> None:
        """Ask the peer to drop what has not landed. The transfer ends when the peer confirms."""
        with self._station.use():
            self._carrier.cancel(self)

    def add_done_callback(self, callback: Callable[[Transfer], None]) -> None:
        """Call `callback(self)` on the dispatcher thread once the transfer has ended."""
        with self._station.lock:
            if not self.finished:
                self._callbacks.append(callback)
                return
        self._station.dispatch(callback, self)

    def __await__(self) -> Generator[Any, None, int]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake(_: Transfer) -> None:
            loop.call_soon_threadsafe(_set, future)

        self.add_done_callback(wake)
        yield from future.__await__()
        if self.error is not None:
            raise self.error
        return self.total

    # --- for the engine's parts -----------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """True while pieces remain to be sent."""
        if self.returned:
            return True
        return self.cursor < self.total or (self.total == 0 and self.cursor == 0)

    @property
    def started(self) -> bool:
        """True once a piece was given to a link."""
        return self.cursor != 0

    def left_bytes(self) -> int:
        """Bytes not yet given to a link."""
        return max(0, self.total - self.cursor) + sum(p.size for p in self.returned)

    def take(self, piece_bytes: int) -> Piece:
        """The next piece to send; pages are never split."""
        if self.returned:
            return self.returned.pop()
        if self.total == 0:
            self.cursor = 1
            return Piece(self, 0, 0)
        if self.page_len:
            pages = max(1, min(piece_bytes // self.page_len, frames.MAX_PAGES))
            piece_bytes = pages * self.page_len
        size = min(piece_bytes, self.total - self.cursor)
        piece = Piece(self, self.cursor, size)
        self.cursor += size
        return piece

    def head(self, piece: Piece, floor: int, *, pull: bool) -> frames.Head:
        """The frame header of `piece`."""
        pages = piece.size // self.page_len if self.page_len else 0
        return frames.Head(
            self.kind,
            self.flags | frames.PULL if pull else self.flags,
            frames.VERSION,
            self.imm,
            pages,
            self.page_len if pages else 0,
            self.tid,
            floor,
            self.total,
            self.key,
            self.dst_offset if self.page_len else self.dst_offset + piece.index,
            piece.index,
            piece.size,
        )

    def payload(self, piece: Piece, *, pull: bool) -> tuple[bytes, memoryview | Iov | None]:
        """The list after the header of `piece`, and its bytes (with `pull`, their addresses in the
        list instead)."""
        if self.page_len and piece.size:
            assert self.src_pages is not None and self.dst_pages is not None
            first = piece.index // self.page_len
            part = slice(first, first + piece.size // self.page_len)
            targets = self.dst_pages[part].astype(">u8").tobytes()
            sources = self.src_pages[part]
            if pull:
                return targets + (sources + np.uint64(self.base)).astype(">u8").tobytes(), None
            return targets, pages_iov(self.base, sources, self.page_len)
        if pull:
            return (self.base + piece.index).to_bytes(8, "big"), None
        if not piece.size:
            return b"", None
        return b"", self.view[piece.index : piece.index + piece.size]

    def whole_head(self, floor: int) -> frames.Head:
        """The frame header of a transfer that is a single plain piece."""
        total = self.total
        return frames.Head(
            self.kind,
            self.flags,
            frames.VERSION,
            self.imm,
            0,
            0,
            self.tid,
            floor,
            total,
            self.key,
            self.dst_offset,
            0,
            total,
        )

    def finish(self, error: TransportError | None) -> None:
        """End the transfer, unless it has ended (called under the engine's lock)."""
        if self.finished:
            return
        self.finished = True
        self.error = error
        for callback in self._callbacks:
            self._station.dispatch(callback, self)
        self._callbacks.clear()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
