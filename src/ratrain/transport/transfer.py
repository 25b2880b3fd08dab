"""Futures: what a write gives back, and the pieces it is cut into."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from ratrain.errors import DeadlineExceeded, TransportError
from ratrain.transport import frames

if TYPE_CHECKING:
    from ratrain.transport.engine import Engine
    from ratrain.transport.link import Link
    from ratrain.transport.peer import Peer

Offsets = npt.NDArray[np.uint64]


BOTH_HOST: Final = ("host", "host")


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
    """One write under way. Done means *placed at the receiver*."""

    __slots__ = (
        "_callbacks",
        "_engine",
        "acked_bytes",
        "base",
        "cancelling",
        "cursor",
        "deadline_s",
        "dst_offset",
        "dst_pages",
        "error",
        "finished",
        "flags",
        "floor",
        "imm",
        "in_flight",
        "key",
        "kind",
        "landed",
        "nics",
        "on_device",
        "page_len",
        "peer",
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
        engine: Engine,
        peer: Peer,
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
        self._engine = engine
        self._callbacks: list[Callable[[Transfer], None]] = []
        self.peer = peer
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
        """True when the transfer has ended, well or badly."""
        return self.finished

    @property
    def bytes_acked(self) -> int:
        """Bytes that the receiver has confirmed as placed."""
        return self.acked_bytes

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when the data are placed; raise the typed error when they never will be."""
        if not self._engine.wait_until(lambda: self.finished, timeout_s):
            raise DeadlineExceeded(
                f"still {self.total - self.acked_bytes} of {self.total} bytes to go "
                f"after {timeout_s} s (the transfer goes on)",
                place=str(self.peer.address),
            )
        if self.error is not None:
            raise self.error

    def result(self, timeout_s: float | None = None) -> int:
        """The bytes placed, after `wait`."""
        self.wait(timeout_s)
        return self.total

    def wait_quiet(self, timeout_s: float | None = None) -> bool:
        """After a failure: wait until the peer confirms that nothing more can land. Returns
        False when it did not within the time. Then `landed` says whether all of it had."""
        return self._engine.wait_until(lambda: self.landed is not None, timeout_s)

    def cancel(self) -> None:
        """Ask the peer to drop what has not landed. The transfer ends when the peer confirms."""
        self._engine.cancel(self)

    def add_done_callback(self, callback: Callable[[Transfer], None]) -> None:
        """Call `callback(self)` on the dispatcher thread once the transfer has ended."""
        with self._engine.lock:
            if not self.finished:
                self._callbacks.append(callback)
                return
        self._engine.dispatch(callback, self)

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

    # --- for the core ---------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """True while pieces wait to be sent."""
        if self.returned:
            return True
        return self.cursor < self.total or (self.total == 0 and self.cursor == 0)

    @property
    def started(self) -> bool:
        """True once a piece was handed to a link."""
        return self.cursor != 0

    def left_bytes(self) -> int:
        """Bytes not yet handed to a link."""
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

    def whole_head(self, floor: int) -> frames.Head:
        """The frame header of a transfer that is one plain piece."""
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
        """End the transfer (called once, under the engine's lock)."""
        if self.finished:
            return
        self.finished = True
        self.error = error
        for callback in self._callbacks:
            self._engine.dispatch(callback, self)
        self._callbacks.clear()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def expected_link(link: Link, size: int) -> float:
    """Seconds until `size` more bytes would have landed over `link`, at its present rate."""
    if link.rate_bytes_per_s <= 0:
        return 0.0
    return (link.unacked_bytes + size) / link.rate_bytes_per_s
