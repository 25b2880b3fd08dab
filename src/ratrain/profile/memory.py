"""Bandwidth of main memory and of the disk; copies between tiers where there are two."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ratrain.profile.doubt import Watch
from ratrain.profile.products import gpu_present
from ratrain.storage import disk_rates

COPY_BYTES = 256_000_000
DISK_BYTES = 256_000_000
MEMORY_COPY, DEVICE_COPY = "memory copy", "copies to and from the GPU"
DISK_WRITE, DISK_READ = "disk write", "disk read"


def memory_bytes_per_s(watch: Watch) -> float:
    """Bytes read and written a second by a copy far larger than the caches."""
    source = np.ones(COPY_BYTES // 8)
    target = np.empty_like(source)
    return 2 * source.nbytes / watch.median_s(MEMORY_COPY, lambda: np.copyto(target, source))


def device_copy_bytes_per_s(watch: Watch) -> tuple[float, float] | None:
    """Bytes a second from pinned host memory to the GPU and back; None without a GPU."""
    if not gpu_present():
        return None
    import torch as module  # pyright: ignore[reportMissingImports]

    torch: Any = module
    host = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")

    def copy(target: Any, source: Any) -> float:
        def work() -> None:
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()

        return COPY_BYTES / watch.median_s(DEVICE_COPY, work)

    return copy(device, host), copy(host, device)


def gpu_memory(watch: Watch) -> tuple[int, float]:
    """(bytes of the GPU's memory, bytes read and written a second by a copy inside it)."""
    import torch as module  # pyright: ignore[reportMissingImports]

    torch: Any = module
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def work() -> None:
        target.copy_(source)
        torch.cuda.synchronize()

    capacity = int(torch.cuda.get_device_properties(0).total_memory)
    return capacity, 2 * COPY_BYTES / watch.median_s(MEMORY_COPY, work)


def capacity_bytes() -> int:
    """Bytes of main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def disk_free_bytes() -> int:
    """Free bytes of the disk that holds temporary files."""
    return shutil.disk_usage(tempfile.gettempdir()).free


def disk_bytes_per_s(watch: Watch, folder: Path | None = None) -> tuple[float, float]:
    """Bytes a second written (and flushed to the device) and read again, as optimizer states that
    wait on disk are: past the page cache, where the file system can.

    What the kernel's own threads do for the disk counts as others' work.
    """
    with watch.over(DISK_WRITE), watch.over(DISK_READ):
        rates = disk_rates(folder or Path(tempfile.gettempdir()), DISK_BYTES, times=2)
    return rates.write_bytes_per_s, rates.read_bytes_per_s
