"""Partitions divided among processes: who has which; and which rows of a partition other processes,
or other partitions, need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ratrain.graph.blocks import Block, Blocks
from ratrain.graph.csr import Ints, Ints32

Boundary = Mapping[tuple[int, int], Ints32]
"""By (partition, process): the places in the partition of the rows that the process needs, which
has others; ascending."""


@dataclass(frozen=True)
class Division:
    """Which process has which partition, and what they need of each other's."""

    processes: int
    owner: Ints  # of each partition
    boundary: Boundary

    @property
    def boundary_rows(self) -> Ints:
        """Rows of a partition that a process needs of another: partitions x processes."""
        rows = np.zeros((len(self.owner), self.processes), dtype=np.int64)
        for at, places in self.boundary.items():
            rows[at] = len(places)
        return rows

    def blocks_of(self, blocks: Blocks, process: int) -> Blocks:
        """The blocks of a process's own rows. Of others' partitions it has the rows that it needs
        alone, by which columns are numbered then."""
        own: dict[tuple[int, int], Block] = {}
        for (part, source), block in blocks.items():
            if self.owner[part] == process:
                places = self.boundary.get((source, process))
                own[part, source] = block if places is None else _within(block, places)
        return own

    def size_bytes(self, process: int) -> int:
        """Of the lists of rows that a process sends and receives."""
        return sum(
            places.nbytes
            for (part, to), places in self.boundary.items()
            if process in (to, self.owner[part])
        )


def needed_rows(blocks: Blocks, sizes: Ints) -> Boundary:
    """By (partition, partition that sums it): the places of the rows that another one sums."""
    rows: dict[tuple[int, int], Ints32] = {}
    for (part, source), block in blocks.items():
        if part != source:
            is_needed = np.zeros(sizes[source], dtype=bool)
            is_needed[block.columns] = True
            rows[source, part] = np.flatnonzero(is_needed).astype(np.int32)
    return rows


def by_needed_rows(blocks: Blocks, needed: Boundary) -> Blocks:
    """The blocks with columns by their place among the rows needed of another partition."""
    return {
        (part, source): _within(block, needed[source, part]) if part != source else block
        for (part, source), block in blocks.items()
    }


def divided(weights: Ints, processes: int, forward: Blocks, backward: Blocks) -> Division:
    """Neighbouring partitions to one process, of about equal weight; each has one at least.
    `forward` and `backward`: blocks of the whole graph."""
    owner = _owners(weights, processes)
    needed: dict[tuple[int, int], list[Ints32]] = {}
    for blocks in (forward,) if forward is backward else (forward, backward):
        for (part, source), block in blocks.items():
            if owner[part] != owner[source]:
                needed.setdefault((source, int(owner[part])), []).append(np.unique(block.columns))
    boundary = {at: np.unique(np.concatenate(lists)) for at, lists in needed.items()}
    return Division(processes, owner, boundary)


def _owners(weights: Ints, processes: int) -> Ints:
    middle = np.cumsum(weights) - weights / 2
    owner = (middle * processes / max(weights.sum(), 1)).astype(np.int64)
    if len(np.unique(owner)) == processes:
        return owner
    return np.arange(len(weights)) * processes // len(weights)


def _within(block: Block, places: Ints32) -> Block:
    return replace(block, columns=np.searchsorted(places, block.columns).astype(np.int32))
