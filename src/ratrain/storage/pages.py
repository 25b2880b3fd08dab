"""Buffers and sizes in whole pages, which direct input and output takes; the block that says what
an extent holds."""

from __future__ import annotations

import mmap
import struct

PAGE = 4096
"""Address, offset and length of a direct transfer are multiples of a disk's logical block, 512 or
4096 bytes. A loop device takes less, so what works there proves nothing."""

_HEADER = struct.Struct("<8sQQ")
_MAGIC = b"RATTIER1"


def in_pages(size_bytes: int) -> int:
    """The size rounded up to whole pages."""
    return -(-size_bytes // PAGE) * PAGE


def page_buffer(size_bytes: int) -> memoryview:
    """Memory of its own that begins on a page, of at least this size in whole pages."""
    return memoryview(mmap.mmap(-1, max(in_pages(size_bytes), PAGE)))


def label(name: str, version: int, size_bytes: int) -> memoryview:
    """The block behind an extent's bytes: whose they are, and the how-manieth."""
    block = page_buffer(PAGE)
    block[: _HEADER.size] = _HEADER.pack(_MAGIC, version, size_bytes)
    encoded = name.encode()[: PAGE - _HEADER.size]
    block[_HEADER.size : _HEADER.size + len(encoded)] = encoded
    return block


def version_on(block: memoryview, name: str, size_bytes: int) -> int | None:
    """The version that such a block names; None where it is no block of this state."""
    magic, version, size = _HEADER.unpack(block[: _HEADER.size])
    encoded = name.encode()[: PAGE - _HEADER.size]
    held = bytes(block[_HEADER.size : _HEADER.size + len(encoded)])
    return version if (magic, size, held) == (_MAGIC, size_bytes, encoded) else None
