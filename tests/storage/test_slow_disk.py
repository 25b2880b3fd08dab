"""A disk that a control group makes slow: the same bytes, later, and counted as the kernel does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratrain.storage import PAGE

GROUPS = Path("/sys/fs/cgroup/blkio")
RATE = 20 << 20
"""Bytes a second, in each direction."""
SIZE = 40 << 20
CHILD = """
import json, os, sys, time
from pathlib import Path
from ratrain.storage import Key, TierStore, page_buffer
folder, group, size = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
store = TierStore(folder, "run", 0)
key, data, back = Key("optimizer", "7"), page_buffer(size), page_buffer(size)
data[:] = bytes(range(256)) * (len(data) // 256)
store.reserve({key: size})
(group / "cgroup.procs").write_text(str(os.getpid()))
began_s = time.perf_counter()
store.write(key, data)
written_s = time.perf_counter()
store.read(key, back)
read_s = time.perf_counter()
t = store.traffic
print(json.dumps([written_s - began_s, read_s - written_s, back == data, t.written_bytes,
                  t.read_bytes, t.write_s, t.read_s]))
store.close()
"""

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(name="group")
def slow_group(tmp_path: Path) -> Iterator[Path]:
    device = tmp_path.stat().st_dev
    group = GROUPS / f"ratrain-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no control groups for block devices (version 1), or no root")
    try:
        for way in ("read", "write"):
            rule = f"{os.major(device)}:{os.minor(device)} {RATE}"
            (group / f"blkio.throttle.{way}_bps_device").write_text(rule)
    except OSError:
        group.rmdir()
        pytest.skip("the folder for tests is on no device that can be slowed")
    yield group
    group.rmdir()


def counted(group: Path) -> dict[str, int]:
    """Bytes that the group has moved, by direction."""
    lines = (group / "blkio.throttle.io_service_bytes").read_text().splitlines()
    rows = [line.split() for line in lines if len(line.split()) == 3]
    return {way: sum(int(row[2]) for row in rows if row[1] == way) for way in ("Read", "Write")}


def test_a_slow_disk_gives_the_same_bytes_at_its_rate_and_they_are_the_kernels(
    group: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path), str(group), str(SIZE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    write_s, read_s, same, written, read, told_write_s, told_read_s = json.loads(done.stdout)
    assert same
    for took_s, told_s in ((write_s, told_write_s), (read_s, told_read_s)):
        # A group may have a second's bytes in advance; on a busy machine it is slower.
        assert took_s > SIZE / RATE - 1.2
        assert told_s == pytest.approx(took_s, rel=0.05, abs=0.05)
    kernel = counted(group)
    assert 0 <= kernel["Write"] - written <= 64 * PAGE
    assert 0 <= kernel["Read"] - read <= 64 * PAGE
