"""What the operating system says about this process."""

from __future__ import annotations

import resource
from pathlib import Path


def resident_bytes() -> int:
    """Bytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def code_of(library: str) -> tuple[int, int]:
    """From where to where a loaded library's code lies in memory; 0, 0: it is not loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    parts = [line.split() for line in lines if line.endswith(f"/{library}")]
    code = [part[0].split("-") for part in parts if "x" in part[1]]
    ends = [int(address, 16) for addresses in code for address in addresses]
    return (min(ends), max(ends)) if ends else (0, 0)
