"""One rank's file, written tensor by tensor straight from the buffers that hold them.

Checksums are SHA-256: a processor with SHA instructions computes it faster than disks write
(docs/notes/checkpoints.md has figures), and it runs in a thread beside the write. Memory beyond
the caller's buffers: none that grows with them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

from ratrain.checkpoint.digests import Digests
from ratrain.checkpoint.disk import free_bytes, full, told, write_at
from ratrain.checkpoint.entries import BUFFER_FORMATS, Entry
from ratrain.checkpoint.folder import discard
from ratrain.checkpoint.manifest import RankRecord
from ratrain.checkpoint.tensor_file import lay_out_file
from ratrain.errors import CheckpointError


class ShardWriter:
    """Writes a rank's file of known entries, in any order; `finish` returns its record.

    A disk that is full, or refuses for another reason, ends the whole checkpoint: the partial
    folder is removed, for it can never be committed.
    """

    def __init__(self, path: Path, entries: Sequence[Entry]) -> None:
        self.path = path
        self._layout = lay_out_file(entries, path)
        self._tensors = {
            entry.name: Digests(entry, offset)
            for entry, offset in zip(self._layout.entries, self._layout.offsets, strict=True)
        }
        self._hasher = ThreadPoolExecutor(1, thread_name_prefix="checksum")
        self._fd = -1
        try:
            with self._told("opening a checkpoint file"):
                # ours alone: two ranks given the same number must not mix their bytes
                self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            free = free_bytes(path.parent)
            if free is not None and free < self._layout.size_bytes:
                raise full(path.parent, self._layout.size_bytes - free)
            with self._told("writing a checkpoint"):
                write_at(self._fd, memoryview(self._layout.header), 0)
        except CheckpointError:
            self._fail()
            raise

    def write(self, name: str, buffer: Any) -> None:
        """Appends a buffer's elements to a tensor: all of them at once, or piece by piece.

        `buffer` is anything with a contiguous buffer of the tensor's type, such as a numpy array.
        """
        tensor = self._tensors.get(name)
        if tensor is None:
            raise CheckpointError(
                f"no tensor {name!r} was announced", place=str(self.path), fix="add its entry"
            )
        data = _bytes_of(buffer, tensor)
        try:
            while len(data):
                piece = tensor.upto_block(data)
                data = data[len(piece) :]
                offset = tensor.offset + tensor.done_bytes
                hashed = self._hasher.submit(tensor.hash, piece)
                with self._told("writing a checkpoint"):
                    try:
                        write_at(self._fd, piece, offset)
                    finally:
                        hashed.result()
        except CheckpointError:
            self._fail()
            raise

    def finish(self) -> RankRecord:
        """Makes the file last, closes it, and returns what the commit needs to know about it."""
        for tensor in self._tensors.values():
            if tensor.done_bytes < tensor.entry.size_bytes:
                raise CheckpointError(
                    f"tensor {tensor.entry.name!r} has {tensor.done_bytes} bytes "
                    f"of {tensor.entry.size_bytes}",
                    place=str(self.path),
                    fix="write all of it before finish()",
                )
        try:
            with self._told("writing a checkpoint"):
                os.fsync(self._fd)
        except CheckpointError:
            self._fail()
            raise
        self.close()
        header = self._layout.header
        return RankRecord(
            file=self.path.name,
            size_bytes=self._layout.size_bytes,
            header_bytes=len(header),
            header_sha256=sha256(header).hexdigest(),
            stored=tuple(tensor.stored() for tensor in self._tensors.values()),
        )

    def close(self) -> None:
        """Ends the writer; a file that was not finished stays partial, and is never committed."""
        self._hasher.shutdown()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _told(self, doing: str) -> Any:
        return told(self.path.parent, doing, self._missing_bytes)

    def _missing_bytes(self) -> int:
        """What is still to be written and finds no room."""
        free = free_bytes(self.path.parent)
        written = sum(tensor.done_bytes for tensor in self._tensors.values())
        return 0 if free is None else self._layout.size_bytes - written - free

    def _fail(self) -> None:
        self.close()
        discard(self.path.parent)


def _bytes_of(buffer: Any, tensor: Digests) -> memoryview:
    """The bytes of a buffer, not copied, where it fits what remains of the tensor."""
    entry, view = tensor.entry, memoryview(buffer)
    if view.format not in BUFFER_FORMATS[entry.dtype] or not view.c_contiguous:
        raise CheckpointError(
            f"a buffer of format {view.format!r}"
            + ("" if view.c_contiguous else " with holes")
            + f" for a tensor of {entry.dtype}",
            place=entry.name,
            fix=f"pass a contiguous buffer of format {' or '.join(BUFFER_FORMATS[entry.dtype])}",
        )
    left_bytes = entry.size_bytes - tensor.done_bytes
    if view.nbytes > left_bytes:
        raise CheckpointError(
            f"{view.nbytes} bytes where {left_bytes} remain",
            place=entry.name,
            fix="leave padding out: store only elements below the unit's size",
        )
    return view.cast("B") if view.nbytes else memoryview(b"")
