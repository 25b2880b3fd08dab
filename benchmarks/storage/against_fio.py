"""The store of a tier against fio on the same disk, in turn.

    python benchmarks/storage/against_fio.py FOLDER [--size-mib 1024] [--pairs 3]

The store and fio's `psync` move blocks of 8 MiB past the page cache with four threads, `io_uring`
blocks of 1 MiB, eight at once, from registered buffers; into files whose blocks exist; a write ends
when the disk has it. Needs fio (apt install fio).
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


ENGINES = {
    "psync": "--ioengine=psync --bs=8M --numjobs=4",
    "io_uring": "--ioengine=io_uring --bs=1M --numjobs=1 --iodepth=8 --fixedbufs=1",
}


def of_fio(folder: Path, size: int, direction: str, engine: str) -> float:
    """Bytes a second."""
    jobs = 4 if engine == "psync" else 1
    command = (
        f"fio --name=ratrain-{engine} --directory={folder} --rw={direction} --direct=1"
        f" --size={size // jobs} {ENGINES[engine]} --thread --end_fsync=1 --fallocate=posix"
        " --overwrite=1 --group_reporting --output-format=json"
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
        f"{who} {direction}": [] for direction in ("write", "read") for who in ("store", *ENGINES)
    }
    used_s: dict[str, list[float]] = {"write": [], "read": []}
    try:
        store.reserve({key: size})
        store.write(key, buffer)
        for engine in ENGINES:
            of_fio(asked.folder, size, "write", engine)
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
                for engine in ENGINES:
                    reached = of_fio(asked.folder, size, direction, engine)
                    rates[f"{engine} {direction}"].append(reached)
    finally:
        store.close()
        for path in asked.folder.glob("ratrain-*.*"):
            path.unlink()
    print(f"direct: {store.direct}; {asked.pairs} pairs of {asked.size_mib} MiB")
    for name, of_name in rates.items():
        each = ", ".join(f"{rate / 1e9:.2f}" for rate in of_name)
        print(f"{name:14} {median(of_name) / 1e9:.2f} GB/s median ({each})")
    for direction in ("write", "read"):
        print(f"{direction}: the store takes {median(used_s[direction]):.2f} s per 2 GiB")
        for engine in ENGINES:
            pairs = zip(rates[f"store {direction}"], rates[f"{engine} {direction}"], strict=True)
            ratios = [ours / theirs for ours, theirs in pairs]
            print(f"  store / {engine} {median(ratios):.2f} median, worst {min(ratios):.2f}")


if __name__ == "__main__":
    main()
