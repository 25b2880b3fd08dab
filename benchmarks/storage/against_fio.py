"""The store of a tier against fio on the same disk, in alternating pairs.

    python benchmarks/storage/against_fio.py FOLDER [--size-mib 1024] [--pairs 3]

Both move blocks of 8 MiB past the page cache with four threads, into a file whose blocks exist; a
write ends when the disk has it. Needs fio (apt install fio).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import time
from pathlib import Path
from statistics import median

from ratrain.storage import Key, TierStore, page_buffer

MIB = 1 << 20


def of_fio(folder: Path, size: int, direction: str) -> float:
    """Bytes a second."""
    command = (
        f"fio --name=ratrain --directory={folder} --rw={direction} --direct=1 --bs=8M"
        f" --size={size // 4}"
        " --numjobs=4 --ioengine=psync --thread --end_fsync=1 --fallocate=posix --overwrite=1"
        " --group_reporting --output-format=json"
    )
    done = subprocess.run(command.split(), capture_output=True, text=True, check=True)
    body = json.loads(done.stdout[done.stdout.index("{") :])
    return float(body["jobs"][0][direction]["bw_bytes"])


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--pairs", type=int, default=3)
    asked = parser.parse_args()
    size, key = asked.size_mib * MIB, Key("benchmark", "0")
    store = TierStore(asked.folder, "benchmark", 0)
    buffer = page_buffer(size)
    buffer[:] = bytes(range(256)) * (len(buffer) // 256)
    rates: dict[str, list[float]] = {
        name: [] for name in ("store write", "fio write", "store read", "fio read")
    }
    used_s: dict[str, list[float]] = {"write": [], "read": []}
    try:
        store.reserve({key: size})
        store.write(key, buffer)
        of_fio(asked.folder, size, "write")
        for _ in range(asked.pairs):
            for direction in ("write", "read"):
                began_s, before_s = time.perf_counter(), processor_s()
                if direction == "write":
                    store.write(key, buffer)
                    store.flush(key)
                else:
                    store.read(key, buffer)
                rates[f"store {direction}"].append(size / (time.perf_counter() - began_s))
                used_s[direction].append((processor_s() - before_s) * 2048 / asked.size_mib)
                rates[f"fio {direction}"].append(of_fio(asked.folder, size, direction))
    finally:
        store.close()
        for path in asked.folder.glob("ratrain.*"):
            path.unlink()
    print(f"direct: {store.direct}; {asked.pairs} pairs of {asked.size_mib} MiB")
    for name, of_name in rates.items():
        each = ", ".join(f"{rate / 1e9:.2f}" for rate in of_name)
        print(f"{name:12} {median(of_name) / 1e9:.2f} GB/s median ({each})")
    for direction in ("write", "read"):
        ratios = [
            a / b
            for a, b in zip(rates[f"store {direction}"], rates[f"fio {direction}"], strict=True)
        ]
        print(
            f"{direction}: store / fio {median(ratios):.2f} median, worst {min(ratios):.2f}; "
            f"processor {median(used_s[direction]):.2f} s per 2 GiB"
        )


if __name__ == "__main__":
    main()
