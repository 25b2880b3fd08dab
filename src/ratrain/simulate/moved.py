"""What a program moves between memory tiers: its bill, which simulator, plan and report print."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratrain.program.kind import Lane
from ratrain.program.table import Table
from ratrain.program.tiers import DEVICE
from ratrain.program.units import Ints
from ratrain.program.uses import READ, WRITE


@dataclass(frozen=True)
class Moved:
    """Transfers between a rank's device and one of its tiers, in a mean step: their bytes as the
    program has them, and each transfer's of a period."""

    tier: str
    rank: int
    steps: int  # of the period
    read: Ints
    written: Ints

    @property
    def read_bytes(self) -> float:
        return int(self.read.sum()) / self.steps

    @property
    def written_bytes(self) -> float:
        return int(self.written.sum()) / self.steps

    @property
    def total_bytes(self) -> float:
        return self.read_bytes + self.written_bytes


def moved_by(table: Table) -> tuple[Moved, ...]:
    """For each rank and tier below the device what is moved."""
    states, uses = table.states, table.uses
    lanes = np.array([bool(lane.moves) for lane in Lane])
    moves = lanes[table.lane[uses.op]]  # a Save reads the version, not the bytes
    state_rank, size, mode = states.rank[uses.state], states.size_bytes[uses.state], uses.mode

    def moved(tier: str, rank: int) -> Moved:
        there = moves & states.in_tier(tier)[uses.state] & (state_rank == rank) & (size > 0)
        read, written = size[there & (mode == READ)], size[there & (mode == WRITE)]
        return Moved(tier, rank, table.setup.period, read, written)

    ranks = np.unique(state_rank).tolist()
    each = [moved(tier, rank) for tier in states.tiers if tier != DEVICE for rank in ranks]
    return tuple(row for row in each if len(row.read) or len(row.written))
