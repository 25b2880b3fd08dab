"""What the kernel says of this machine and its processes; "" where a system does not say it."""

from __future__ import annotations

import os
import time
from pathlib import Path


def boot() -> str:
    """What names this start of this machine; "" where the system has no such name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def process_began_s() -> float:
    """When this process began, by the wall clock; to a hundredth of a second."""
    ticks = state_and_start(os.getpid())[1]
    if not ticks:
        return time.time()
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")
    return time.time() - max(0.0, age_s)


def state_and_start(pid: int) -> tuple[str, str]:
    """(state, start time) of a process; both "" where they cannot be seen."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""
