"""A tensor's checksums, as its bytes go by."""

from __future__ import annotations

from hashlib import sha256

from ratrain.checkpoint.entries import BLOCK_BYTES, Entry
from ratrain.checkpoint.manifest import StoredEntry


class Digests:
    """A tensor being written: how far it is, and the checksums of its blocks so far."""

    def __init__(self, entry: Entry, offset: int) -> None:
        self.entry = entry
        self.offset = offset
        self.done_bytes = 0
        self._digests: list[str] = []
        self._open = sha256()

    def upto_block(self, data: memoryview) -> memoryview:
        """As much of the next bytes as ends where a block ends, or before."""
        return data[: BLOCK_BYTES - self.done_bytes % BLOCK_BYTES]

    def hash(self, data: memoryview) -> None:
        """Takes such bytes."""
        self._open.update(data)
        self.done_bytes += len(data)
        if self.done_bytes % BLOCK_BYTES == 0 or self.done_bytes == self.entry.size_bytes:
            self._digests.append(self._open.hexdigest())
            self._open = sha256()

    def stored(self) -> StoredEntry:
        return StoredEntry(self.entry, self.offset, tuple(self._digests))
