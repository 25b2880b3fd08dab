"""The ranks among this process's children, as the operating system sees them (Linux)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def end_ranks() -> None:
    """Ends the ranks that this process has started, at once."""
    for pid in _ranks():
        _kill(pid)


def end_stopped_ranks() -> set[int]:
    """Ends the ranks that are stopped (SIGSTOP, a debugger), which hear no polite signal; returns
    their world ranks."""
    ended: set[int] = set()
    for pid in _ranks():
        with suppress(OSError, KeyError, IndexError, ValueError):
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            if state in "Tt":
                words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                pairs = dict(word.split(b"=", 1) for word in words if b"=" in word)
                ended.add(int(pairs[b"RANK"]))
                _kill(pid)
    return ended


def _ranks() -> Iterator[int]:
    for path in Path("/proc/self/task").glob("*/children"):
        for pid in map(int, path.read_text().split()):
            with suppress(OSError):
                if b"ratrain.runtime.rank" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    yield pid


def _kill(pid: int) -> None:
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
