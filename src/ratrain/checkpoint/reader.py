"""Ranges of a checkpoint, stitched from the files that hold them, so that any layout may load.

Every block that is read is verified: a range comes back as it was written, or not at all.
Memory: the caller's buffer and one block.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratrain.checkpoint.entries import BLOCK_BYTES, ELEMENT_BYTES
from ratrain.checkpoint.listing import absent, damaged, read_manifest
from ratrain.checkpoint.manifest import Manifest, RankRecord, StoredEntry
from ratrain.checkpoint.own import own_kinds, site_weights
from ratrain.errors import CannotResume, CheckpointError, SavedElsewhere
from ratrain.objects.client import stores
from ratrain.objects.remote import Location, Remote
from ratrain.readers.files import read_at

Array = NDArray[Any]
ReadAt = Callable[[memoryview, int], int]
"""Fills a buffer from an offset of a file on; the bytes read."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint, open for reading. It holds no file open between calls."""

    path: Location
    manifest: Manifest

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of state it holds: weights and moments of every unit, others of some."""
        return self.manifest.kinds

    def expect(self, model: str, config_hash: str, units: Mapping[str, int]) -> None:
        """Raises unless the checkpoint is of this model, with these unit sizes."""
        meta, place = self.manifest.meta, str(self.path)
        fix = "resume with the job that wrote it, or give the new job its own run folder"
        if meta.model != model:
            raise CannotResume(f"is of model {meta.model!r}, not {model!r}", place=place, fix=fix)
        for unit in sorted({*meta.units, *units}):
            stored, expected = meta.units.get(unit), units.get(unit)
            if stored != expected:
                raise CannotResume(
                    f"unit {unit!r} has {stored or 'no'} elements here, {expected or 'none'} in "
                    f"model {model!r}",
                    place=place,
                    fix=fix,
                )
        if meta.config_hash != config_hash:
            raise CannotResume(
                f"was written with a different configuration of {model!r} "
                f"({meta.config_hash[:12]}, not {config_hash[:12]})",
                place=place,
                fix=fix,
            )

    def read_range(self, unit: str, kind: str, begin: int, end: int) -> NDArray[np.float32]:
        """Elements [begin, end) of a unit, as float32."""
        out = np.empty(max(end - begin, 0), np.float32)
        self.read_into(unit, kind, begin, out)
        return out

    def read_into(self, unit: str, kind: str, begin: int, out: NDArray[np.float32]) -> None:
        """Fills `out` with a unit's elements from `begin` on; where each replica has its own, with
        their mean. On an error it holds rubbish."""
        there = self.manifest.kinds_of(unit)
        if kind not in there and (own := own_kinds(kind, there)):
            weights = site_weights(self.manifest.meta.state, len(own), str(self.path))
            self.read_into(unit, own[0], begin, out)
            out *= np.float32(weights[0])
            for each, weight in zip(own[1:], weights[1:], strict=True):
                out += self.read_range(unit, each, begin, begin + len(out)) * np.float32(weight)
            out /= np.float32(len(own))
            return
        end = begin + len(out)
        if out.dtype != np.float32 or not out.flags.c_contiguous or out.ndim != 1:
            raise CheckpointError(
                f"cannot read into {out.dtype} of shape {out.shape}",
                place=f"{unit}/{kind}",
                fix="pass a contiguous one-dimensional float32 array",
            )
        reached = begin
        for record, stored in self.manifest.ranges.get((unit, kind), []):
            entry = stored.entry
            if len(out) and entry.begin <= reached < min(entry.end, end):
                upto = min(entry.end, end)
                self._read_stored(
                    record,
                    stored,
                    reached - entry.begin,
                    out[reached - begin : upto - begin],
                )
                reached = upto
        if reached < end or begin < 0:
            raise CheckpointError(
                f"has no {unit}/{kind} [{max(reached, begin)}, {end}); "
                f"it holds {self._said(unit, kind)}",
                place=str(self.path),
                fix="request a range that the model has",
            )

    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Reads every byte and compares every checksum, but of files that are on other disks only;
        `progress` takes bytes done and total."""
        scratch = np.empty(BLOCK_BYTES, np.uint8)
        elsewhere = {record.file for record in absent(self.path, self.manifest)}
        records = [record for record in self.manifest.files if record.file not in elsewhere]
        done, total = 0, sum(record.size_bytes - record.header_bytes for record in records)
        for record in records:
            with self._open(record) as read:
                for stored in record.stored:
                    for block in range(stored.entry.blocks):
                        done += len(self._block(read, record, stored, block, scratch))
                        if progress:
                            progress(done, total)

    def _said(self, unit: str, kind: str) -> str:
        size = self.manifest.meta.units.get(unit)
        if size is None:
            return f"units {', '.join(self.manifest.meta.units)}"
        kinds = self.manifest.kinds_of(unit)
        return f"[0, {size})" if kind in kinds else f"kinds {', '.join(kinds)}"

    def _read_stored(
        self, record: RankRecord, stored: StoredEntry, begin: int, out: NDArray[np.float32]
    ) -> None:
        """Fills `out` from an entry's elements, counted from the entry's own first."""
        entry, done = stored.entry, 0
        with self._open(record) as read:
            for block in _blocks(entry.block_elements, begin, begin + len(out)):
                first = block * entry.block_elements
                count = min(entry.block_elements, entry.elements - first)
                skip = begin + done - first
                part = out[done : done + count - skip]
                if entry.dtype == "F32" and len(part) == count:
                    self._block(read, record, stored, block, part.view(np.uint8))
                else:
                    scratch = np.empty(count * ELEMENT_BYTES[entry.dtype], np.uint8)
                    data = self._block(read, record, stored, block, scratch)
                    part[:] = as_float32(data, entry.dtype)[skip : skip + len(part)]
                done += len(part)

    def _block(
        self, read: ReadAt, record: RankRecord, stored: StoredEntry, block: int, into: Array
    ) -> Array:
        """The bytes of one block, read into the beginning of `into`, verified."""
        begin = block * BLOCK_BYTES
        data = into[: min(BLOCK_BYTES, stored.entry.size_bytes - begin)]
        # What is missing of a cut file may still lie in the memory that is read into.
        cut = read(data.data, stored.offset + begin) < len(data)
        if cut or sha256(data.data).hexdigest() != stored.sha256[block]:
            at = stored.offset + begin
            raise damaged(
                self.path,
                f"{record.file} is altered: bytes {at} to {at + len(data)} "
                f"({stored.entry.name}) do not match their checksum",
            )
        return data

    @contextmanager
    def _open(self, record: RankRecord) -> Generator[ReadAt]:
        path, spread = self.path / record.file, self.manifest.spread
        if isinstance(path, Remote):
            remote = path
            yield lambda data, offset: stores().read_into(remote, offset, data)
            return
        if spread is not None and not path.exists():
            raise _on_another_disk(path, spread.host_of(record.file))
        try:
            fd = os.open(path, os.O_RDONLY)
            try:
                yield lambda data, offset: read_at(fd, data, offset)
            finally:
                os.close(fd)
        except OSError as error:
            problem = f"{record.file} cannot be read: {error.strerror}"
            raise damaged(self.path, problem) from error


def _on_another_disk(path: Path, host: str) -> SavedElsewhere:
    return SavedElsewhere(
        f"{path.name} was saved to the disk of host {host}, and is not here",
        place=str(path.parent),
        fix="copy the rank files of this step from all hosts into this folder; to resume, it is "
        "enough to start the same hosts, in any order",
    )


def open_checkpoint(path: Location, verify: bool = True) -> Checkpoint:
    """A complete checkpoint. With `verify` every byte is read and its checksum compared first;
    without, only the manifest and the files' headers and sizes, and each block when it is read.
    """
    checkpoint = Checkpoint(path, read_manifest(path))
    if verify:
        checkpoint.verify()
    return checkpoint


def as_float32(data: Array, dtype: str) -> NDArray[np.float32]:
    """The elements of a block's bytes; bfloat16 is the upper half of a float32."""
    if dtype == "BF16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return data.view(np.float32 if dtype == "F32" else np.float16).astype(np.float32, copy=False)


def _blocks(block_elements: int, begin: int, end: int) -> Iterator[int]:
    """The blocks that hold elements [begin, end)."""
    yield from range(begin // block_elements, -(-end // block_elements) if end > begin else 0)
