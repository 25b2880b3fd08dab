"""The store of a tier on disk: what it promises, and each fault that a disk may have."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ratrain.errors import StorageError
from ratrain.storage import (
    PAGE,
    Key,
    OsFiles,
    StoreLimits,
    TierStore,
    disk_rates,
    in_pages,
    left_over,
    page_buffer,
    remove_left_over,
)

MIB = 1 << 20
KEY = Key("optimizer", "7")
SMALL_BLOCKS = StoreLimits(block_bytes=4 * PAGE, timeout_s=20)


def filled(size_bytes: int, seed: int) -> memoryview:
    buffer = page_buffer(size_bytes)
    buffer[:size_bytes] = random.Random(seed).randbytes(size_bytes)
    return buffer


@contextmanager
def store_in(folder: Path, files: OsFiles | None = None, rank: int = 0) -> Iterator[TierStore]:
    store = TierStore(folder, "run", rank, files=files, limits=SMALL_BLOCKS)
    try:
        yield store
    finally:
        store.close()


@pytest.mark.parametrize("size", [1, 100 * 47 * 2, PAGE, 5 * PAGE + 512, MIB + 1])
def test_what_is_read_is_what_was_last_written_whatever_its_size(tmp_path: Path, size: int) -> None:
    with store_in(tmp_path) as store:
        others = {Key("optimizer", str(n)): size + n for n in range(3)}
        store.reserve(others)
        last = {key: filled(length, hash(key)) for key, length in others.items()}
        for key in others:
            store.write(key, filled(others[key], 1))
            store.write(key, last[key])
        for key, length in others.items():
            into = page_buffer(length)
            store.read(key, into)
            assert into[:length] == last[key][:length]


def test_bytes_are_counted_in_whole_pages_with_the_block_behind(tmp_path: Path) -> None:
    with store_in(tmp_path) as store:
        store.reserve({KEY: 5 * PAGE + 1})
        store.write(KEY, filled(5 * PAGE + 1, 0))
        store.read(KEY, page_buffer(6 * PAGE))
        assert store.traffic.written_bytes == store.traffic.read_bytes == 7 * PAGE


def test_a_part_of_a_state_is_read_without_the_rest(tmp_path: Path) -> None:
    with store_in(tmp_path) as store:
        store.reserve({KEY: 9 * PAGE})
        written, part = filled(9 * PAGE, 5), page_buffer(3 * PAGE)
        store.write(KEY, written)
        for begin in (0, 2 * PAGE, 6 * PAGE):
            store.read(KEY, part, begin)
            assert part == written[begin : begin + 3 * PAGE]
        assert store.traffic.read_bytes == 3 * 4 * PAGE
        os.truncate(store.path / KEY.name, 9 * PAGE)
        with pytest.raises(StorageError, match="the file was cut"):
            store.read(KEY, part, 0)


def test_lanes_may_read_and_write_other_states_at_once(tmp_path: Path) -> None:
    with store_in(tmp_path) as store:
        keys = [Key("optimizer", str(number)) for number in range(6)]
        store.reserve(dict.fromkeys(keys, 300_000))
        failed: list[str] = []

        def work(key: Key, seed: int) -> None:
            for turn in range(20):
                written, read = filled(300_000, seed + turn), page_buffer(300_000)
                store.write(key, written)
                store.read(key, read)
                if read[:300_000] != written[:300_000]:
                    failed.append(key.name)

        threads = [threading.Thread(target=work, args=(k, 100 * n)) for n, k in enumerate(keys)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed


class Short(OsFiles):
    """Does less than it is asked for, as a system may."""

    def __init__(self, pages: int) -> None:
        self.pages = pages

    def read(self, file: int, into: memoryview, offset: int) -> int:
        return super().read(file, into[: self.pages * PAGE], offset)

    def write(self, file: int, data: memoryview, offset: int) -> int:
        return super().write(file, data[: self.pages * PAGE], offset)


def test_short_counts_are_gone_on_from(tmp_path: Path) -> None:
    with store_in(tmp_path, Short(1)) as store:
        store.reserve({KEY: 10 * PAGE})
        written, read = filled(10 * PAGE, 3), page_buffer(10 * PAGE)
        store.write(KEY, written)
        store.read(KEY, read)
        assert read == written


class Asked(OsFiles):
    """Of how many bytes each call is; it moves none."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def allocate(self, file: int, size_bytes: int) -> None:
        os.truncate(file, size_bytes)  # without blocks

    def write(self, file: int, data: memoryview, offset: int) -> int:
        self.sizes.append(len(data))
        return len(data)


def test_a_state_of_more_than_the_system_moves_at_once_goes_in_several_calls(
    tmp_path: Path,
) -> None:
    """Linux takes 0x7ffff000 bytes a call, and drops what is beyond."""
    size, files = (5 << 29) + 100, Asked()
    store = TierStore(tmp_path, "run", 0, files=files, limits=StoreLimits(block_bytes=1 << 40))
    store.reserve({KEY: size})
    store.write(KEY, page_buffer(size))  # memory that nobody touches
    assert max(files.sizes) <= 1 << 30
    assert sum(files.sizes) == in_pages(size) + PAGE
    store.close()


def test_a_file_that_was_cut_is_an_error_that_names_it_and_the_byte(tmp_path: Path) -> None:
    with store_in(tmp_path) as store:
        store.reserve({KEY: 20 * PAGE})
        store.write(KEY, filled(20 * PAGE, 0))
        os.truncate(store.path / KEY.name, 7 * PAGE + 100)
        with pytest.raises(StorageError, match=r"optimizer-7 ends at byte .* the file was cut"):
            store.read(KEY, page_buffer(20 * PAGE))


@pytest.mark.parametrize("what", ["older version", "zeros", "other state"])
def test_a_file_that_is_not_what_was_written_last_is_an_error(tmp_path: Path, what: str) -> None:
    other = Key("optimizer", "8")
    with store_in(tmp_path) as store:
        store.reserve({KEY: 3 * PAGE, other: 3 * PAGE})
        store.write(KEY, filled(3 * PAGE, 0))
        store.write(other, filled(3 * PAGE, 1))
        before = (store.path / KEY.name).read_bytes()
        store.write(KEY, filled(3 * PAGE, 2))
        put = {
            "older version": before,
            "zeros": bytes(len(before)),
            "other state": (store.path / other.name).read_bytes(),
        }
        (store.path / KEY.name).write_bytes(put[what])
        with pytest.raises(StorageError, match=r"version 2 was written"):
            store.read(KEY, page_buffer(3 * PAGE))


class Failing(OsFiles):
    """One call fails, with the system's own error."""

    def __init__(self, call: str, number: int, after: int = 0) -> None:
        self.call, self.number, self.after = call, number, after

    def _due(self, call: str) -> None:
        if call == self.call:
            self.after -= 1
            if self.after < 0:
                raise OSError(self.number, os.strerror(self.number))

    def allocate(self, file: int, size_bytes: int) -> None:
        super().allocate(file, size_bytes)
        self._due("allocate")

    def read(self, file: int, into: memoryview, offset: int) -> int:
        self._due("read")
        return super().read(file, into, offset)

    def write(self, file: int, data: memoryview, offset: int) -> int:
        self._due("write")
        return super().write(file, data, offset)

    def flush(self, file: int) -> None:
        self._due("flush")
        super().flush(file)


@pytest.mark.parametrize(("call", "done"), [("write", "written"), ("read", "read")])
def test_a_failing_transfer_names_state_file_and_byte(tmp_path: Path, call: str, done: str) -> None:
    with store_in(tmp_path, Failing(call, errno.EIO, after=1)) as store:
        store.reserve({KEY: 20 * PAGE})
        with pytest.raises(StorageError, match=rf"could not be {done} at byte .*Input/output"):
            store.write(KEY, filled(20 * PAGE, 0))
            store.read(KEY, page_buffer(20 * PAGE))


def test_a_failed_flush_is_not_tried_again(tmp_path: Path) -> None:
    with store_in(tmp_path, Failing("flush", errno.EIO)) as store:
        store.reserve({KEY: PAGE})
        store.write(KEY, filled(PAGE, 0))
        with pytest.raises(StorageError, match=r"could not be flushed: Input/output error"):
            store.flush(KEY)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_space_that_cannot_be_had_leaves_nothing_behind(tmp_path: Path, number: int) -> None:
    with store_in(tmp_path, Failing("allocate", number, after=2)) as store:
        sizes = {Key("optimizer", str(n)): 4 * PAGE for n in range(5)}
        with pytest.raises(StorageError, match=r"the states that wait on disk need .* are free"):
            store.reserve(sizes)
        assert not [path for path in store.path.iterdir() if path.name.startswith("optimizer")]


class Hanging(OsFiles):
    """A write that does not come back until it is let."""

    def __init__(self) -> None:
        self.let = threading.Event()

    def write(self, file: int, data: memoryview, offset: int) -> int:
        if len(data) < PAGE or offset:
            self.let.wait(30)
        return super().write(file, data, offset)


def test_a_disk_that_hangs_is_an_error_that_names_the_state_and_how_long_it_took(
    tmp_path: Path,
) -> None:
    files = Hanging()
    store = TierStore(tmp_path, "run", 0, files=files, limits=StoreLimits(PAGE, timeout_s=0.2))
    try:
        store.reserve({KEY: 4 * PAGE})
        began_s = time.monotonic()
        with pytest.raises(StorageError, match=r"optimizer-7 was not written in 0.2 s"):
            store.write(KEY, filled(4 * PAGE, 0))
        assert time.monotonic() - began_s < 10
    finally:
        files.let.set()
        store.close()


class Cached(OsFiles):
    """A file system without direct input and output."""

    def is_direct(self, folder: Path) -> bool:
        del folder
        return False


def test_without_direct_files_it_works_through_the_page_cache_and_says_so(tmp_path: Path) -> None:
    with store_in(tmp_path, Cached()) as store:
        assert "O_DIRECT" in store.note
        store.reserve({KEY: 10 * PAGE + 1})
        written, read = filled(10 * PAGE + 1, 3), page_buffer(10 * PAGE + 1)
        store.write(KEY, written)
        store.read(KEY, read)
        assert read == written
    with store_in(tmp_path) as store:
        assert not store.note


def test_a_rank_of_a_run_has_its_folder_alone_and_a_clean_end_leaves_nothing(
    tmp_path: Path,
) -> None:
    with store_in(tmp_path) as store, store_in(tmp_path, rank=1) as other:
        assert store.path != other.path
        with pytest.raises(StorageError, match=rf"process {os.getpid()} has the files of rank 0"):
            TierStore(tmp_path, "run", 0)
    assert not list(tmp_path.iterdir())


KILLED = """
import os, sys, signal
from pathlib import Path
from ratrain.storage import Key, TierStore, page_buffer
store = TierStore(Path(sys.argv[1]), "run", 0)
store.reserve({Key("optimizer", "7"): 40_000, Key("optimizer", "old"): 40_000})
store.write(Key("optimizer", "7"), page_buffer(40_000))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_rank_leaves_is_found_and_removed_and_the_next_one_begins_anew(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
        assert done.returncode == -9
    (found,) = left_over(tmp_path)
    assert found.size_bytes == 2 * (in_pages(40_000) + PAGE)
    with store_in(tmp_path) as store:
        assert not left_over(tmp_path) and not remove_left_over(tmp_path)  # it is in use
        assert [path.name for path in store.path.iterdir()] == ["lock"]
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert [each.path for each in remove_left_over(tmp_path)] == [found.path]
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file/run/rank-0: cannot be made: "):
        TierStore(tmp_path / "file", "run", 0)


def test_a_disk_is_measured_by_the_transfers_of_a_run(tmp_path: Path) -> None:
    rates = disk_rates(tmp_path, 8 * MIB, times=1)
    low, high = sorted((rates.read_bytes_per_s, rates.write_bytes_per_s))
    assert 0 < low <= rates.both_bytes_per_s <= high
    assert not list(tmp_path.iterdir())


# ---- real file systems that are small ---------------------------------------------------


@contextmanager
def mounted(folder: Path, size_mib: int, kind: str) -> Iterator[Path]:
    """A file system of that size: in memory, or ext4 in a file behind a loop device."""
    at = folder / "mounted"
    at.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(at)]
    if kind == "ext4":
        image = folder / "image"
        with image.open("wb") as file:
            file.truncate(size_mib * MIB)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
        command = ["mount", "-o", "loop", str(image), str(at)]
    subprocess.run(command, check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)


FILE_SYSTEMS = pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@pytest.mark.root
@ROOT
@FILE_SYSTEMS
def test_a_disk_that_is_too_small_is_said_before_anything_is_written(
    tmp_path: Path, kind: str
) -> None:
    with mounted(tmp_path, 40, kind) as disk, store_in(disk) as store:
        free = OsFiles().free_bytes(disk)
        with pytest.raises(StorageError, match=r"need 68.*MB .* are free") as caught:
            store.reserve({KEY: 64 * MIB})
        assert str(store.path) in str(caught.value)
        assert OsFiles().free_bytes(disk) >= free


@pytest.mark.root
@ROOT
@FILE_SYSTEMS
def test_space_that_another_took_meanwhile_is_given_back(tmp_path: Path, kind: str) -> None:
    """What is free is asked for, and gone when it is taken: the system has then grown the file."""

    class Outdated(OsFiles):
        asked = 0

        def free_bytes(self, folder: Path) -> int:
            self.asked += 1
            return 1 << 40 if self.asked == 1 else super().free_bytes(folder)

    with mounted(tmp_path, 40, kind) as disk, store_in(disk, Outdated()) as store:
        free = OsFiles().free_bytes(disk)
        with pytest.raises(StorageError, match=r"the states that wait on disk need"):
            store.reserve({KEY: 10 * MIB, Key("optimizer", "8"): 64 * MIB})
        assert OsFiles().free_bytes(disk) >= free - MIB


@pytest.mark.root
@ROOT
@FILE_SYSTEMS
def test_a_disk_that_others_fill_later_stops_no_write(tmp_path: Path, kind: str) -> None:
    with mounted(tmp_path, 40, kind) as disk, store_in(disk) as store:
        store.reserve({KEY: 8 * MIB})
        with pytest.raises(OSError, match="No space left"), (disk / "others").open("wb") as file:
            while True:
                file.write(bytes(MIB))
                file.flush()
        written, read = filled(8 * MIB, 0), page_buffer(8 * MIB)
        for _ in range(3):
            store.write(KEY, written)
        store.read(KEY, read)
        assert read == written
