"""Which processors this process may use, and whether the kernel made it wait because its share of
them was used up.

Under a quota (a container's, a lab's) a short piece of work runs at full speed, or is cut by a
pause. Only the mean of many says what the share gives.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_PROCESS = Path("/proc/self")
_FIELD = "nr_throttled"


def processors() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def throttled() -> int:
    """In how many periods a control group of this process, or one above it, has used up its share
    so far. 0 where there is no quota, or the kernel does not say."""
    try:
        mounted = (_PROCESS / "mountinfo").read_text()
        groups = (_PROCESS / "cgroup").read_text()
        return sum(_count(folder / "cpu.stat") for folder in folders(mounted, groups))
    except (OSError, ValueError):
        return 0


def folders(mountinfo: str, groups: str, controller: str = "cpu") -> Iterator[Path]:
    """The folders of the process's control groups that may share out processors (or limit what
    another controller does), and of those above them, from the texts of /proc/self/mountinfo and
    /proc/self/cgroup."""
    for mount in mountinfo.splitlines():
        left, _, right = mount.partition(" - ")
        kind, _, options = right.split(" ", 2)
        root, top = left.split(" ")[3:5]
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
            for group in groups.splitlines():
                number, names, path = group.split(":", 2)
                if (number == "0") if kind == "cgroup2" else (controller in names.split(",")):
                    yield from _upwards(Path(top), path.removeprefix(root.rstrip("/")))


def _upwards(top: Path, group: str) -> Iterator[Path]:
    parts = [part for part in group.split("/") if part]
    for depth in range(len(parts), -1, -1):
        yield top.joinpath(*parts[:depth])


def _count(stat: Path) -> int:
    if not stat.is_file():
        return 0
    fields = dict(line.split() for line in stat.read_text().splitlines())
    return int(fields.get(_FIELD, 0))
