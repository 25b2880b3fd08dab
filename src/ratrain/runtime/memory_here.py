"""How much memory this machine has left for a run, and whether the kernel killed for lack of it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ratrain.profile.quota import folders
from ratrain.readers.numbers import is_number

_PROCESS = Path("/proc/self")
_KERNEL_LOG = Path("/dev/kmsg")
_RECORD_BYTES = 8192
_CLOCKS_APART_S = 60.0
"""By how much the kernel log's clock and ours may differ, which both count from the start."""
_UNLIMITED = 1 << 60
"""A limit of so many bytes is none: version 1 writes a number close to 2**63."""


@dataclass(frozen=True)
class MemoryHere:
    """The bytes that processes may still take, and what says so."""

    size_bytes: int
    source: str


def memory_here() -> MemoryHere | None:
    """The least of what the machine has available and of what the limits of this process's control
    groups leave; None where the kernel says neither."""
    left = [*_of_machine(), *_of_groups()]
    return min(left, key=lambda memory: memory.size_bytes) if left else None


def _of_machine() -> Iterator[MemoryHere]:
    for line in _lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            yield MemoryHere(int(line.split()[1]) * 1024, "MemAvailable in /proc/meminfo")


def _of_groups() -> Iterator[MemoryHere]:
    """What each limit leaves; the kernel drops cached files of a group before it kills there."""
    for group in _groups():
        for limit_file, used_file, cached in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = _number(group / limit_file), _number(group / used_file)
            if limit is None or used is None or limit >= _UNLIMITED:
                continue
            used -= _field(group / "memory.stat", cached) or 0
            yield MemoryHere(max(limit - used, 0), f"the limit of the control group {group}")


@dataclass(frozen=True)
class KillWatch:
    """What the kernel's counts of processes killed for lack of memory were when a run began."""

    before: dict[str, int] = field(default_factory=lambda: _kill_counts())
    began_s: float = field(default_factory=time.monotonic)

    def words(self, pid: int) -> str:
        """That memory ran out when a process was killed, and what shows it; "" where nothing
        does."""
        logged = _logged_kill(pid, self.began_s - _CLOCKS_APART_S)
        if logged:
            return f'memory ran out (kernel log: "{logged}")'
        for source, count in _kill_counts().items():
            if count > self.before.get(source, count):
                return f"probably memory ran out (oom_kill in {source} rose)"
        return ""

    @property
    def looked_at(self) -> str:
        """Where it was looked for, for people."""
        log = ["the kernel log"] if os.access(_KERNEL_LOG, os.R_OK) else []
        counts = ["the counts of its control groups and of /proc/vmstat"] if self.before else []
        return " and ".join([*log, *counts]) or "nothing: this system shows neither log nor counts"


def _kill_counts() -> dict[str, int]:
    """By file: those of this process's control groups first, then of the whole machine."""
    counts: dict[str, int] = {}
    files = [
        group / name for group in _groups() for name in ("memory.events", "memory.oom_control")
    ]
    for file in (*files, Path("/proc/vmstat")):
        count = _field(file, "oom_kill")
        if count is not None:
            counts[str(file)] = count
    return counts


def _logged_kill(pid: int, since_s: float) -> str:
    """What the kernel's log says of a process that it killed for lack of memory; "" where it says
    nothing, or may not be read."""
    pattern = re.compile(
        rf"\d+,\d+,(\d+),[^;]*;([^\n]*out of memory: Killed process {pid} \([^)]*\))",
        re.IGNORECASE,
    )
    last = ""
    with suppress(OSError):
        handle = os.open(_KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
        try:
            while True:
                try:
                    record = os.read(handle, _RECORD_BYTES).decode(errors="replace")
                except BrokenPipeError:  # the record was overwritten meanwhile
                    continue
                if (match := pattern.match(record)) and int(match[1]) / 1e6 >= since_s:
                    last = match[2].strip()
        finally:
            os.close(handle)
    return last


def _groups() -> list[Path]:
    """The folders of this process's control groups of memory, and of those above them."""
    with suppress(OSError, ValueError):
        mounted, groups = ((_PROCESS / name).read_text() for name in ("mountinfo", "cgroup"))
        return list(folders(mounted, groups, "memory"))
    return []


def _number(file: Path) -> int | None:
    """None where there is no such file, or it says "max"."""
    text = next(iter(_lines(file)), "").strip()
    return int(text) if is_number(text) else None


def _field(file: Path, name: str) -> int | None:
    for line in _lines(file):
        words = line.split()
        if len(words) == 2 and words[0] == name and is_number(words[1]):
            return int(words[1])
    return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
