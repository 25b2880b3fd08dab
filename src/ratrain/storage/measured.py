"""What a disk does a second, by the transfers that a run makes of it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from ratrain.storage.pages import page_buffer
from ratrain.storage.store import Key, TierStore

MEASURED_BYTES = 256_000_000


@dataclass(frozen=True)
class DiskRates:
    """Bytes a second, each direction alone, and whether past the page cache."""

    read_bytes_per_s: float
    write_bytes_per_s: float
    direct: bool

    @property
    def both_bytes_per_s(self) -> float:
        """Of bytes read and as many written, one after the other: what an optimizer on the disk
        moves."""
        return 2 / (1 / self.read_bytes_per_s + 1 / self.write_bytes_per_s)


def disk_rates(folder: Path, size_bytes: int = MEASURED_BYTES, times: int = 3) -> DiskRates:
    """The disk of a folder, by the best of a few passes over a state of that size."""
    store = TierStore(folder, f"measured-{os.getpid()}", 0)
    try:
        key, buffer = Key("measured", "0"), page_buffer(size_bytes)
        store.reserve({key: size_bytes})
        read_s: list[float] = []
        write_s: list[float] = []
        for _ in range(times):
            began_s = time.perf_counter()
            store.write(key, buffer)
            store.flush(key)
            written_s = time.perf_counter()
            store.read(key, buffer)
            write_s.append(written_s - began_s)
            read_s.append(time.perf_counter() - written_s)
        return DiskRates(size_bytes / min(read_s), size_bytes / min(write_s), store.direct)
    finally:
        store.close()
