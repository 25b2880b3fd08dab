"""What the kernel says of this machine and its processes; "" where a system does not say it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ratrain.readers.processes import process_state


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
    process = process_state(os.getpid())
    if process is None:
        return time.time()
    since_boot_s = process.started_ticks / os.sysconf("SC_CLK_TCK")
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot_s
    return time.time() - max(0.0, age_s)
