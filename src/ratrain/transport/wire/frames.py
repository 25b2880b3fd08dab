"""The wire: one fixed header of 72 bytes, in network byte order, before every frame.

    kind u8 | flags u8 | version u16 | imm u32 | pages u32 | page_len u32
    tid u64 | floor u64 | total u64 | key u64 | offset u64 | start u64 | size u64

A header with `pages` is followed by that many u64 destination offsets (by twice as many when
the payload is pulled: the source addresses come second; a pulled plain write has one source
address). Then come `size` bytes of payload, unless the payload is pulled.
Everything is bounded before anything is stored: see `unpack`.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ratrain.errors import TransportError

HEAD: Final = struct.Struct("!BBHIIIQQQQQQQ")
HEAD_BYTES: Final = 72
_FIRST: Final = struct.Struct("!BBHII")  # kind, flags, version, imm, pages
VERSION: Final = 1

# The kinds of frames.
WRITE: Final = 1
MSG: Final = 2
ACK: Final = 3
CANCEL: Final = 4
QUIESCED: Final = 5
PING: Final = 6
PONG: Final = 7
CREDIT: Final = 8
FEATURE: Final = 9
BYE: Final = 10

# Their flags.
HAS_IMM: Final = 1
PER_PAGE: Final = 2
PULL: Final = 4

MAX_PAGES: Final = 4096
MAX_PIECE_BYTES: Final = 4 << 20
MAX_PULL_BYTES: Final = 64 << 20
MAX_ACKS: Final = 4096

# An acknowledgement is a pair (tid, code << 56 | index); code 0 is "placed".
UNKNOWN_KEY: Final = 1
OUT_OF_BOUNDS: Final = 2
UNREADABLE: Final = 3
NO_ROOM: Final = 4
OVER: Final = 5
ON_DEVICE: Final = 6
REASONS = {
    UNKNOWN_KEY: "the region is unknown or was revoked",
    OUT_OF_BOUNDS: "the write leaves the region",
    UNREADABLE: "the receiver could not read the source memory",
    NO_ROOM: "the receiver has no buffer of this size",
    ON_DEVICE: "the target lies on a device that this connection does not reach",
    OVER: "the receiver had already given up on this transfer",
}


class FrameError(TransportError):
    """Bytes that no correct peer sends; the connection is closed."""


class Head(NamedTuple):
    """One frame's header. `start` is the piece's place in the transfer, in bytes."""

    kind: int
    flags: int = 0
    version: int = VERSION
    imm: int = 0
    pages: int = 0
    page_len: int = 0
    tid: int = 0
    floor: int = 0
    total: int = 0
    key: int = 0
    offset: int = 0
    start: int = 0
    size: int = 0

    @property
    def list_bytes(self) -> int:
        """Bytes of the list that follows the header."""
        if self.kind == ACK:
            return self.pages * 16
        if self.flags & PULL:
            return self.pages * 16 if self.pages else 8
        return self.pages * 8

    @property
    def payload_bytes(self) -> int:
        """Bytes on the wire after the list."""
        return 0 if self.kind not in (WRITE, MSG) or self.flags & PULL else self.size


def pack(head: Head) -> bytes:
    """The 72 bytes of `head`."""
    return HEAD.pack(*head)


def unpack(buffer: bytes | bytearray | memoryview, at: int = 0) -> Head:
    """The header at `at`; FrameError when it breaks a bound."""
    head = Head._make(HEAD.unpack_from(buffer, at))
    kind, flags, version, _, pages, page_len, _, _, total, _, _, index, size = head
    if version != VERSION or not 1 <= kind <= BYE or flags > 7:
        raise FrameError(f"unknown frame: kind {kind}, flags {flags}, version {version}")
    if kind == WRITE:
        limit = MAX_PULL_BYTES if flags & PULL else MAX_PIECE_BYTES
        if size > limit or total >> 56 or pages > MAX_PAGES or index + size > total:
            raise FrameError(f"frame of {size} bytes and {pages} pages at {index} of {total}")
        if pages and pages * page_len != size:
            raise FrameError(f"{pages} pages of {page_len} bytes are not {size} bytes")
        if not pages and page_len:
            raise FrameError("a page length without pages")
    elif kind == MSG:
        if size > MAX_PIECE_BYTES or size != total or pages or flags or index:
            raise FrameError(f"message of {size} bytes out of bounds")
    elif kind == ACK:
        if not 1 <= pages <= MAX_ACKS:
            raise FrameError(f"{pages} acknowledgements in one frame")
    elif pages or flags & PULL:
        raise FrameError(f"a list after a frame of kind {kind}")
    return head


def unpack_acks(buffer: bytes | bytearray | memoryview, at: int) -> int:
    """The number of acknowledgements after the ACK header at `at`; bounds as in `unpack`."""
    _, flags, version, _, pages = _FIRST.unpack_from(buffer, at)
    if version != VERSION or flags > 7 or not 1 <= pages <= MAX_ACKS:
        raise FrameError(f"{pages} acknowledgements in one frame of version {version}")
    return pages


ACKS = Head(ACK)
"""The header that a receiver is given with a list of acknowledgements."""
