"""States of one rank on disk, by name.

Every state has an extent of its own, whose blocks exist before the first step: a disk that others
fill later stops no step. A write is followed by a block that names state, size and version, and a
read looks at that first: what another has cut, or what is not the version last written, is an error
and never a tensor. Transfers are cut into blocks that a few threads move past the page cache.

A state's file may be given away as it is, as to a checkpoint: its next version goes to another
extent, whose blocks exist by then too. That is why no file is cloned (FICLONE): of a clone every
block that is written next has yet to be found, and a disk that others filled would stop the step.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from ratrain.describe.units import format_bytes, format_time
from ratrain.errors import StorageError
from ratrain.storage.files import Files, OsFiles
from ratrain.storage.folder import RankFolder, cannot
from ratrain.storage.pages import PAGE, in_pages, label, page_buffer, version_on

MOST_AT_ONCE = 1 << 30
"""Bytes of one call; the system itself takes no more than 2 GiB."""
SPARE_BYTES = 1 << 20
"""Of a disk, beside extents: for folders and the file system's own."""


class Key(NamedTuple):
    """A state: of which unit, and of which family."""

    family: str
    unit: str

    @property
    def name(self) -> str:
        return f"{self.family}-{self.unit}"


@dataclass(frozen=True)
class StoreLimits:
    """How a store moves bytes: in blocks of this size, by so many threads; and how long a transfer
    may take before the disk is said to hang."""

    block_bytes: int = 8 << 20
    threads: int = 4
    timeout_s: float = 300.0


@dataclass
class Traffic:
    """What was moved, and how long it took those who waited for it."""

    read_bytes: int = 0
    written_bytes: int = 0
    read_s: float = 0.0
    write_s: float = 0.0
    lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def add_read(self, size_bytes: int, took_s: float = 0.0) -> None:
        """Counts one transfer; from any thread."""
        with self.lock:
            self.read_bytes += size_bytes
            self.read_s += took_s

    def add_written(self, size_bytes: int, took_s: float = 0.0) -> None:
        with self.lock:
            self.written_bytes += size_bytes
            self.write_s += took_s

    @property
    def words(self) -> str:
        return (
            f"{format_bytes(self.read_bytes)} read in {format_time(self.read_s)}, "
            f"{format_bytes(self.written_bytes)} written in {format_time(self.write_s)}"
        )


@dataclass
class _Extent:
    """Room for what a file says of itself once it is given away, the state, and its label."""

    path: Path
    file: int
    size_bytes: int
    data_at: int = 0
    version: int = 0
    following: tuple[Path, int] | None = None  # the file of the next version, and it open
    lock: Lock = field(default_factory=Lock)

    @property
    def room(self) -> int:
        return in_pages(self.size_bytes)

    @property
    def label_at(self) -> int:
        return self.data_at + self.room

    @property
    def length(self) -> int:
        return self.label_at + PAGE


class TierStore:
    """One rank's states on disk. `run` and `rank` name its folder in `folder`, which it locks."""

    def __init__(
        self,
        folder: Path,
        run: str,
        rank: int,
        *,
        files: Files | None = None,
        limits: StoreLimits | None = None,
    ) -> None:
        self._files, self._limits = files or OsFiles(), limits or StoreLimits()
        self._folder = RankFolder(folder, run, rank)
        self._extents: dict[Key, _Extent] = {}
        self._pool = ThreadPoolExecutor(self._limits.threads, thread_name_prefix="tier")
        self.traffic = Traffic()
        try:
            self.direct = self._files.is_direct(self.path)
        except OSError as error:
            self.close()
            raise cannot(error, "cannot be written", self.path) from error

    @property
    def path(self) -> Path:
        """The rank's own folder."""
        return self._folder.path

    @property
    def note(self) -> str:
        """What is worth saying of the disk; "" where nothing is."""
        if self.direct:
            return ""
        return (
            f"{self.path}: this file system has no direct input and output (O_DIRECT), so the tier "
            "goes through the page cache: slower, and counted as the job's memory until written"
        )

    # ---- extents ------------------------------------------------------------------------

    def reserve(self, sizes: Mapping[Key, int], ahead_bytes: int = 0) -> None:
        """Makes an extent for each state that has none, or for none: what does not fit is said
        before anything is written. `ahead_bytes`: what their files may say of themselves when they
        are given away."""
        ahead = in_pages(ahead_bytes)
        new = {key: size for key, size in sizes.items() if key not in self._extents}
        needed = sum(ahead + in_pages(size) + PAGE for size in new.values())
        self._require(needed)
        made: list[Key] = []
        try:
            for key, size in new.items():
                made.append(key)
                self._make(key, size, ahead)
        except OSError as error:
            self._drop(made)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._full(needed, self._files.free_bytes(self.path)) from error
            raise cannot(error, "cannot be made", self.path) from error

    def require(self, size_bytes: int, states: int) -> None:
        """Says beforehand where the disk has no room for so many states of that size in all."""
        self._require(size_bytes + states * 4 * PAGE)

    def length(self, key: Key) -> int:
        """Bytes of a buffer for a state: whole pages."""
        return self._extents[key].room

    def _require(self, length: int) -> None:
        needed, free = length + SPARE_BYTES, self._files.free_bytes(self.path)
        if needed > free:
            raise self._full(needed, free)

    def _make(self, key: Key, size_bytes: int, ahead_bytes: int) -> None:
        path = self.path / key.name
        file = self._files.open(path, direct=self.direct)
        extent = self._extents[key] = _Extent(path, file, size_bytes, ahead_bytes)
        self._files.allocate(file, extent.length)

    # ---- files given away ---------------------------------------------------------------

    def can_give(self, folder: Path) -> bool:
        """Whether files can be given to a folder: it is on the same file system, which has links.
        Tried out."""
        probe = self.path / f".link-{os.getpid()}"
        to = folder / probe.name
        try:
            self._files.close(self._files.open(probe, direct=False))
            self._files.link(probe, to)
        except OSError:
            return False
        finally:
            probe.unlink(missing_ok=True)
            to.unlink(missing_ok=True)
        return True

    def place(self, key: Key) -> tuple[int, int]:
        """Where in its file a state begins, and how long the file is."""
        extent = self._extents[key]
        return extent.data_at, extent.length

    def give(self, key: Key, ahead: bytes, to: Path) -> None:
        """Gives the file of the version last written to whoever has the name `to`: it never changes
        again, but for its beginning, which becomes `ahead`. To be called while nobody writes the
        state. On an error the store has what it had; `OSError` is the system's."""
        extent = self._extents[key]
        assert extent.following is None and len(ahead) == extent.data_at, key.name
        other = f"{key.name}.other"
        path = self.path / (key.name if extent.path.name == other else other)
        file = self._files.open(path, direct=self.direct)
        try:
            self._files.allocate(file, extent.length)
            if ahead:
                block = page_buffer(len(ahead))
                block[:] = ahead
                self._whole(key, extent, self._files.write, block, 0, "written")
            self._files.flush(extent.file)
            self._files.link(extent.path, to)
        except BaseException:
            self._files.close(file)
            path.unlink(missing_ok=True)
            raise
        with extent.lock:
            extent.following = path, file

    def _turn(self, extent: _Extent) -> None:
        """Leaves a file that was given away."""
        if extent.following is not None:
            self._files.close(extent.file)
            extent.path.unlink(missing_ok=True)
            (extent.path, extent.file), extent.following = extent.following, None

    def _full(self, needed: int, free: int) -> StorageError:
        return StorageError(
            f"the states that wait on disk need {format_bytes(needed)} "
            f"({needed:,} bytes), and {format_bytes(free)} ({free:,}) are free",
            place=str(self.path),
            fix="make room, or give the tier disk another folder: `path` in [[device.tiers]] of "
            "the cluster file",
        )

    # ---- transfers ----------------------------------------------------------------------

    def write(self, key: Key, data: memoryview) -> None:
        """Writes a state's next version; `data` begins on a page and is as long as its pages."""
        extent = self._extents[key]
        with extent.lock:
            began_s = time.perf_counter()
            self._turn(extent)
            whole = slice(0, extent.room)
            self._each_block(key, extent, self._files.write, data, "written", whole)
            version = extent.version + 1
            block = label(key.name, version, extent.size_bytes)
            self._whole(key, extent, self._files.write, block, extent.label_at, "written")
            if not self.direct:
                self.flush(key)
                self._files.forget(extent.file)
            extent.version = version
            self.traffic.add_written(extent.room + PAGE, time.perf_counter() - began_s)

    def read(self, key: Key, into: memoryview, begin: int | None = None) -> None:
        """Reads the version last written; `into` as `data` of `write`. With `begin` only as much as
        `into` holds, from that byte on: both in whole pages."""
        extent = self._extents[key]
        with extent.lock:
            began_s = time.perf_counter()
            block = page_buffer(PAGE)
            self._whole(key, extent, self._files.read, block, extent.label_at, "read")
            held = version_on(block, key.name, extent.size_bytes)
            if held != extent.version:
                what = "another file's" if held is None else f"version {held}"
                raise StorageError(
                    f"{key.name} is {what} there, and version {extent.version} was written",
                    place=str(extent.path),
                    fix="let nothing else write there, and resume the run from its checkpoint",
                )
            part = slice(0, extent.room) if begin is None else slice(begin, begin + len(into))
            self._each_block(key, extent, self._files.read, into, "read", part)
            took_s = time.perf_counter() - began_s
            self.traffic.add_read(part.stop - part.start + PAGE, took_s)

    def flush(self, key: Key) -> None:
        """Waits until the disk has what was written. What fails is lost: the system may say of a
        second try that it succeeded, so there is none."""
        extent = self._extents[key]
        try:
            self._files.flush(extent.file)
        except OSError as error:
            raise cannot(error, f"{key.name} could not be flushed", extent.path) from error

    def _each_block(
        self,
        key: Key,
        extent: _Extent,
        move: Callable[[int, memoryview, int], int],
        buffer: memoryview,
        done: str,
        part: slice,
    ) -> None:
        """Moves all blocks of a part at once, and waits for all of them."""
        size = part.stop - part.start
        assert len(buffer) >= size, f"{key.name}: a buffer of {len(buffer)} bytes for {size}"
        assert part.stop <= extent.room, f"{key.name} has {extent.room} bytes, {part.stop} asked"
        step = min(self._limits.block_bytes, MOST_AT_ONCE)
        blocks = [
            self._pool.submit(
                self._whole,
                key,
                extent,
                move,
                buffer[at : min(at + step, size)],
                extent.data_at + part.start + at,
                done,
            )
            for at in range(0, size, step)
        ]
        self._finish(key, extent, blocks, done)

    def _finish(self, key: Key, extent: _Extent, blocks: list[Future[None]], done: str) -> None:
        """Waits for blocks; the first that failed speaks for all."""
        timeout_s = self._limits.timeout_s
        waiting = wait(blocks, timeout_s).not_done
        if waiting:
            for block in waiting:
                block.cancel()
            raise StorageError(
                f"{key.name} was not {done} in {timeout_s:g} s: {len(waiting)} of {len(blocks)} "
                "blocks are left; the disk hangs, or is far slower than the cluster file says",
                place=str(extent.path),
                fix="look at the disk, or give the tier disk another folder",
            )
        for block in blocks:
            block.result()

    def _whole(
        self,
        key: Key,
        extent: _Extent,
        move: Callable[[int, memoryview, int], int],
        buffer: memoryview,
        offset: int,
        done: str,
    ) -> None:
        """Moves a buffer: the system may do less than it is asked for, and says how much."""
        at = 0
        while at < len(buffer):
            try:
                count = move(extent.file, buffer[at:], offset + at)
            except OSError as error:
                what = f"{key.name} could not be {done} at byte {offset + at:,}"
                raise cannot(error, what, extent.path) from error
            whole_pages = count // PAGE * PAGE  # past the cache the next call must begin on one
            if whole_pages == 0 and count < len(buffer) - at:
                raise StorageError(
                    f"{key.name} ends at byte {offset + at + max(count, 0):,} of "
                    f"{extent.length:,}: the file was cut",
                    place=str(extent.path),
                    fix="let nothing else write there, and resume the run from its checkpoint",
                )
            at += count if count >= len(buffer) - at else whole_pages

    # ---- the end ------------------------------------------------------------------------

    def close(self) -> None:
        """Removes all files: the run is over, and its checkpoints are elsewhere."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._drop(list(self._extents))
        self._folder.leave()

    def _drop(self, keys: Iterable[Key]) -> None:
        for extent in (self._extents.pop(key) for key in keys if key in self._extents):
            self._turn(extent)
            self._files.close(extent.file)
            extent.path.unlink(missing_ok=True)
