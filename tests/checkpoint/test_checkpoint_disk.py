"""A full disk is told in one message and harms nothing; memory does not grow with a tensor."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path

import pytest
from checkpoint_made import CONFIG, MODEL, contents, evenly, holds, save

from ratrain.checkpoint.folder import begin, commit, discard, rank_path
from ratrain.checkpoint.listing import latest
from ratrain.checkpoint.manifest import Meta
from ratrain.checkpoint.reader import open_checkpoint
from ratrain.checkpoint.shard_writer import ShardWriter
from ratrain.errors import CheckpointError

UNITS = {"e": 3000, "0": 1500}
PAGE_BYTES = 4096

Resize = Callable[[str], None]


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[tuple[Path, Resize]]:
    """A file system in memory, and the function that changes its size or number of files."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")

    def resize(option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True)

    try:
        yield folder, resize
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def save_together(run: Path, step: int) -> Path:
    """Two ranks that open their files before either writes, so that both count on the same room."""
    division = evenly(UNITS, 2)
    partial = begin(run, step)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(ShardWriter(rank_path(partial, rank), entries))
            for rank, entries in enumerate(division)
        ]
        for writer, entries in zip(writers, division, strict=True):
            for entry in entries:
                whole = contents(step, entry.unit, entry.kind, entry.size)
                writer.write(entry.name, whole[entry.begin : entry.end])
        records = [writer.finish() for writer in writers]
    return commit(partial, records, Meta(step, MODEL, CONFIG, UNITS, {}))


def messages_until_it_fits(run: Path, give: Callable[[int], None]) -> list[str]:
    """Saves step 2 with ever more room; after each failure only step 1 may be there, whole."""
    folder, messages, room = run / "checkpoints", list[str](), 0
    while True:
        give(room)
        room += 1
        try:
            assert holds(open_checkpoint(save_together(run, 2)))
            return messages
        except CheckpointError as error:
            assert error.place.startswith(str(folder))
            messages.append(error.what)
        assert [path.name for path in folder.iterdir()] == ["step-00000001"]
        newest = latest(run)
        assert newest is not None
        assert holds(open_checkpoint(newest.path))


@pytest.mark.root
def test_a_disk_that_fills_at_any_byte_leaves_earlier_checkpoints_whole(
    small_disk: tuple[Path, Resize],
) -> None:
    disk, resize = small_disk
    first = save(disk, 1, units=UNITS)
    used = sum(-(-path.stat().st_size // PAGE_BYTES) for path in first.iterdir())
    messages = messages_until_it_fits(
        disk, lambda room: resize(f"size={(used + room) * PAGE_BYTES}")
    )
    assert len(messages) > 10
    assert all(message.startswith("the disk is full: at least ") for message in messages)
    assert all(message.endswith("B missing") for message in messages)


@pytest.mark.root
def test_a_disk_without_room_for_another_file_leaves_earlier_checkpoints_whole(
    small_disk: tuple[Path, Resize],
) -> None:
    disk, resize = small_disk
    first = save(disk, 1, units=UNITS)
    used = 3 + len(list(first.iterdir()))  # the root, checkpoints/ and step 1 with its files
    messages = messages_until_it_fits(disk, lambda room: resize(f"nr_inodes={used + room}"))
    assert len(messages) >= 3
    assert set(messages) == {"the disk takes no more files: all its inodes are used"}


def test_a_rank_whose_folder_another_rank_gave_up_is_told_so(tmp_path: Path) -> None:
    partial = begin(tmp_path, 1)
    entries = evenly(UNITS, 1)[0]
    with ShardWriter(rank_path(partial, 0), entries) as writer:
        for entry in entries:
            whole = contents(1, entry.unit, entry.kind, entry.size)
            writer.write(entry.name, whole[entry.begin : entry.end])
        discard(partial)
        record = writer.finish()
    meta = Meta(1, MODEL, CONFIG, UNITS, {})
    with pytest.raises(CheckpointError, match="the folder is gone"):
        commit(partial, [record], meta)
    with pytest.raises(CheckpointError, match="the folder is gone"):
        ShardWriter(rank_path(partial, 1), entries)
    assert list((tmp_path / "checkpoints").iterdir()) == []


GROWTH = """
import sys
from pathlib import Path
import numpy as np
from ratrain.checkpoint.entries import Entry
from ratrain.checkpoint.folder import begin, commit, rank_path
from ratrain.checkpoint.manifest import Meta
from ratrain.checkpoint.reader import open_checkpoint
from ratrain.checkpoint.shard_writer import ShardWriter

def peak_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

size = 50_000_000
whole = np.arange(size, dtype=np.float32)
before = peak_bytes()
run = Path(sys.argv[1])
partial = begin(run, 1)
cuts = [0, 20_000_003, size]
entries = [Entry("e", "weights", a, b - a, size) for a, b in zip(cuts, cuts[1:])]
with ShardWriter(rank_path(partial, 0), entries) as writer:
    for entry in entries:
        writer.write(entry.name, whole[entry.begin:entry.end])
    path = commit(partial, [writer.finish()], Meta(1, "m", "c", {"e": size}, {}))
checkpoint = open_checkpoint(path)
part = whole[7:]
wanted = part[::1000].copy()
part[:] = 0
checkpoint.read_into("e", "weights", 7, part)
assert np.array_equal(part[::1000], wanted)
print(peak_bytes() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_for_200_mb_grows_by_a_few_blocks_only(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", GROWTH, str(tmp_path)], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 4 * (16 << 20)
