"""Small checkpoints that several tests share: their contents follow from step, unit and kind."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratrain.checkpoint.entries import Entry
from ratrain.checkpoint.folder import begin, commit, rank_path
from ratrain.checkpoint.manifest import Meta, RankRecord
from ratrain.checkpoint.reader import Checkpoint
from ratrain.checkpoint.shard_writer import ShardWriter

UNITS = {"e": 640, "0": 1000, "1": 1000, "h": 65}
MODEL, CONFIG = "tiny", "c0ffee"

Division = Sequence[Sequence[Entry]]
"""What each rank writes."""


KINDS = ("weights", "moment1", "moment2")
"""What AdamW has in a checkpoint."""


def contents(step: int, unit: str, kind: str, size: int) -> NDArray[np.float32]:
    """The elements of one buffer; every bit pattern occurs, NaNs too."""
    seed = zlib.crc32(f"{step} {unit} {kind}".encode())
    bits = np.random.default_rng(seed).integers(0, 1 << 32, size, np.uint32)
    return bits.view(np.float32)


def evenly(units: Mapping[str, int], ranks: int) -> Division:
    """Every rank owns the same part of every unit, of every kind."""
    owned: list[list[Entry]] = [[] for _ in range(ranks)]
    for unit, size in units.items():
        cuts = [size * rank // ranks for rank in range(ranks + 1)]
        for rank in range(ranks):
            first, last = cuts[rank], cuts[rank + 1]
            if first < last:
                owned[rank] += [Entry(unit, kind, first, last - first, size) for kind in KINDS]
    return owned


def write_ranks(partial: Path, step: int, division: Division) -> list[RankRecord]:
    """Every rank's file, written one after another."""
    records: list[RankRecord] = []
    for rank, entries in enumerate(division):
        with ShardWriter(rank_path(partial, rank), entries) as writer:
            for entry in entries:
                whole = contents(step, entry.unit, entry.kind, entry.size)
                writer.write(entry.name, whole[entry.begin : entry.end])
            records.append(writer.finish())
    return records


def save(
    run: Path,
    step: int,
    division: Division | None = None,
    units: Mapping[str, int] = UNITS,
    state: Mapping[str, Any] | None = None,
) -> Path:
    """A whole checkpoint."""
    partial = begin(run, step)
    records = write_ranks(partial, step, division or evenly(units, 2))
    return commit(partial, records, Meta(step, MODEL, CONFIG, units, state or {"tokens": step * 8}))


def same_bits(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> bool:
    return np.array_equal(actual.view(np.uint32), expected.view(np.uint32))


def holds(checkpoint: Checkpoint) -> bool:
    """Whether every buffer is what its step says."""
    meta = checkpoint.manifest.meta
    return all(
        same_bits(checkpoint.read_range(unit, kind, 0, size), contents(meta.step, unit, kind, size))
        for unit, size in meta.units.items()
        for kind in KINDS
    )
