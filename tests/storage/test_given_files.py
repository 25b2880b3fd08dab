"""A state's file given away as it is, and the header that makes a tensor file of it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from ratrain.checkpoint.entries import Entry
from ratrain.checkpoint.tensor_file import header_ahead
from ratrain.errors import StorageError
from ratrain.storage import PAGE, Key, OsFiles, TierStore, page_buffer

KEY = Key("optimizer", "7")
SIZE = 3 * PAGE + 100


def filled(value: int) -> memoryview:
    buffer = page_buffer(SIZE)
    buffer[:] = bytes([value]) * len(buffer)
    return buffer


def store_with_state(folder: Path, files: OsFiles | None = None) -> TierStore:
    store = TierStore(folder / "tier", "run", 0, files=files)
    store.reserve({KEY: SIZE}, 100)
    store.write(KEY, filled(1))
    return store


def state_in(path: Path) -> bytes:
    return path.read_bytes()[PAGE : PAGE + SIZE]


def now(store: TierStore) -> bytes:
    buffer = page_buffer(SIZE)
    store.read(KEY, buffer)
    return bytes(buffer[:SIZE])


def test_a_file_that_was_given_away_keeps_its_bytes_whatever_is_written_later(
    tmp_path: Path,
) -> None:
    store = store_with_state(tmp_path)
    kept: list[Path] = []
    for value in range(2, 6):
        kept.append(tmp_path / f"given-{value}")
        store.give(KEY, b"#" * PAGE, kept[-1])
        assert now(store) == bytes([value - 1]) * SIZE  # it is read until it is written
        store.write(KEY, filled(value))
        assert now(store) == bytes([value]) * SIZE
    store.close()
    for value, path in enumerate(kept, 1):
        assert (state_in(path), path.stat().st_nlink) == (bytes([value]) * SIZE, 1)
        assert path.read_bytes()[:PAGE] == b"#" * PAGE
    assert not list((tmp_path / "tier").iterdir())


def test_no_byte_of_the_state_is_copied(tmp_path: Path) -> None:
    """The file is the same one, not another of the same bytes."""
    store = store_with_state(tmp_path)
    (before,) = [p.stat().st_ino for p in store.path.glob(KEY.name)]
    moved = store.traffic.written_bytes, store.traffic.read_bytes
    store.give(KEY, b"#" * PAGE, tmp_path / "given")
    assert (tmp_path / "given").stat().st_ino == before
    assert (store.traffic.written_bytes, store.traffic.read_bytes) == moved
    store.close()


class NoRoom(OsFiles):
    """A disk that is full once the first extent is there."""

    full = False

    def allocate(self, file: int, size_bytes: int) -> None:
        if self.full:
            os.posix_fallocate(file, 0, PAGE)  # what fails leaves the file grown
            raise OSError(errno.ENOSPC, "No space left on device")
        super().allocate(file, size_bytes)


def test_where_the_next_version_has_no_room_nothing_is_given_and_the_state_goes_on(
    tmp_path: Path,
) -> None:
    files = NoRoom()
    store = store_with_state(tmp_path, files)
    files.full = True
    with pytest.raises(OSError, match="No space"):
        store.give(KEY, b"#" * PAGE, tmp_path / "given")
    assert not (tmp_path / "given").exists()
    assert sorted(p.name for p in store.path.iterdir()) == ["lock", KEY.name]
    store.write(KEY, filled(2))
    assert now(store) == bytes([2]) * SIZE
    store.close()


class FailsToFlush(OsFiles):
    def flush(self, file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")


def test_a_file_that_the_disk_may_not_have_is_not_given(tmp_path: Path) -> None:
    store = store_with_state(tmp_path, FailsToFlush())
    with pytest.raises((OSError, StorageError), match="Input/output"):
        store.give(KEY, b"#" * PAGE, tmp_path / "given")
    assert not (tmp_path / "given").exists()
    store.close()


class OtherDisk(OsFiles):
    def link(self, path: Path, to: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")


def test_another_file_system_is_found_out_by_trying(tmp_path: Path) -> None:
    for files, can in ((OsFiles(), True), (OtherDisk(), False)):
        store = store_with_state(tmp_path, files)
        assert store.can_give(tmp_path) is can
        assert not list(tmp_path.glob(".link*")) and not list(store.path.glob(".link*"))
        store.close()


def test_readers_of_a_given_file_are_those_of_any_file_of_the_checkpoint(tmp_path: Path) -> None:
    store = store_with_state(tmp_path)
    before = os.umask(0o027)
    try:
        store.give(KEY, b"#" * PAGE, tmp_path / "given")
    finally:
        os.umask(before)
    assert (tmp_path / "given").stat().st_mode & 0o777 == 0o640
    store.close()


def test_a_header_ahead_makes_a_tensor_file_that_others_read(tmp_path: Path) -> None:
    numpy_file = pytest.importorskip("safetensors.numpy")
    entries = [
        (Entry("7", kind, 5, elements, 100), at)
        for kind, elements, at in (("weights", 10, 4096), ("moment1", 20, 4096 + 64))
    ]
    data = np.arange(2048, dtype=np.float32).tobytes()
    header = header_ahead(entries, 4096, 4096 + len(data))
    assert header is not None and len(header) == 4096
    (tmp_path / "file").write_bytes(header + data)
    read = numpy_file.load_file(tmp_path / "file")
    for entry, at in entries:
        wanted = np.arange((at - 4096) // 4, (at - 4096) // 4 + entry.elements, dtype=np.float32)
        assert np.array_equal(read[entry.name], wanted)
    rows = json.loads(header[8:])
    assert sum(
        t["data_offsets"][1] - t["data_offsets"][0] for n, t in rows.items() if n[0] != "_"
    ) == len(data)


def test_a_header_that_is_larger_than_its_room_is_none() -> None:
    entries = [(Entry("7", f"kind{n}", 0, 10, 100), 4096 + 64 * n) for n in range(60)]
    assert header_ahead(entries, 4096, 9000) is None
