"""One state on disk into a checkpoint: its file taken as it is, and written a second time.

    python benchmarks/storage/given.py FOLDER [--size-mib 256] [--pairs 5]

In this process, in alternating pairs, without any training beside it. Of each the seconds until the
disk has it, checksums included, and the bytes that the kernel counted as written.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from ratrain.checkpoint.digests import Digests
from ratrain.checkpoint.entries import Entry
from ratrain.checkpoint.shard_writer import ShardWriter
from ratrain.checkpoint.tensor_file import header_ahead
from ratrain.storage import Key, TierStore, page_buffer

MIB = 1 << 20
KEY = Key("optimizer", "0")


def written_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


def taken(store: TierStore, state: np.ndarray, to: Path) -> None:
    entry, (at, size_bytes) = Entry("0", "weights", 0, len(state), len(state)), store.place(KEY)
    digests, data = Digests(entry, at), state.data.cast("B")
    while len(data):
        block = digests.upto_block(data)
        digests.hash(block)
        data = data[len(block) :]
    header = header_ahead([(entry, at)], at, size_bytes)
    assert header is not None and digests.stored().sha256
    store.give(KEY, header, to)


def copied(state: np.ndarray, to: Path) -> None:
    entry = Entry("0", "weights", 0, len(state), len(state))
    with ShardWriter(to, [entry]) as writer:
        writer.write(entry.name, state)
        writer.finish()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size-mib", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=5)
    asked = parser.parse_args()
    folder: Path = asked.folder
    folder.mkdir(parents=True)
    size = asked.size_mib * MIB
    buffer = page_buffer(size)
    state = np.frombuffer(buffer, np.float32)
    state[:] = np.random.default_rng(1).standard_normal(len(state), dtype=np.float32)
    store = TierStore(folder / "tier", "run", 0)
    store.reserve({KEY: size}, 1000)
    ways: dict[str, Callable[[Path], None]] = {
        "taken": lambda to: taken(store, state, to),
        "written": lambda to: copied(state, to),
    }
    rows: dict[str, list[tuple[float, int]]] = {way: [] for way in ways}
    for pair in range(asked.pairs):
        for way, save in ways.items():
            store.write(KEY, buffer)
            before, began_s = written_bytes(), time.perf_counter()
            save(to := folder / f"{way}-{pair}")
            rows[way].append((time.perf_counter() - began_s, written_bytes() - before))
            to.unlink()
    for way, each in rows.items():
        seconds, sizes = zip(*each, strict=True)
        print(
            f"{way:8} {median(seconds):.3f} s ({min(seconds):.3f} to {max(seconds):.3f}), "
            f"{median(sizes) / MIB:.1f} MiB written, of a state of {asked.size_mib} MiB"
        )
    store.close()


if __name__ == "__main__":
    main()
