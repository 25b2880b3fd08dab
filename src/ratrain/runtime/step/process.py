"""What the operating system says about this process."""

from __future__ import annotations

import resource
from pathlib import Path


def resident_bytes() -> int:
    """Bytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
