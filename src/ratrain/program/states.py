"""The states of a program: every byte that training keeps, numbered, with its rank and size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np

from ratrain.program.families import DEVICE, FAMILIES, NO_STATES, SEND_SLOTS, Declared, Per, Sizing
from ratrain.program.setup import Setup
from ratrain.program.units import Bools, Ints, Units, unit_columns


@dataclass(frozen=True)
class Family:
    """States of one sort, numbered from `start`: `count` for each step of the program that makes
    new ones, or in all where they outlive the step."""

    name: str
    start: int
    count: int
    per: Per
    tier: str


@dataclass(frozen=True)
class States:
    """Columns over states, and where each family and each cell of it begins."""

    units: Units
    families: tuple[Family, ...]
    family: Ints  # index into families
    rank: Ints
    size_bytes: Ints
    persistent: Bools  # exists before the step and after it
    unit_cell: Ints  # first (unit, micro-batch) cell of each unit
    slots: Mapping[str, Ints]  # for each family that a rank's ops take in turn: slots per rank

    @cached_property
    def by_name(self) -> dict[str, Family]:
        return {family.name: family for family in self.families}

    def start(self, name: str) -> int:
        """The number of a family's first state."""
        return self.by_name[name].start

    @property
    def cells(self) -> int:
        """(unit, micro-batch) cells of a step."""
        return int(self.units.micro_batches.sum())

    @cached_property
    def tiers(self) -> tuple[str, ...]:
        """The tiers in which the program has bytes; the device's first."""
        used = {
            self.families[int(index)].tier for index in np.unique(self.family[self.size_bytes > 0])
        }
        return (DEVICE, *sorted(used - {DEVICE}))

    def in_tier(self, tier: str) -> Bools:
        """Which states are in a tier."""
        return np.array([family.tier == tier for family in self.families])[self.family]

    def name(self, state: int) -> str:
        """A state's name for people: `saved[2.1, 7]` is unit 1 of stage 2, micro-batch 7."""
        family = self.families[int(self.family[state])]
        step, inside = divmod(state - family.start, max(family.count, 1))
        later = f", step {step}" if step else ""
        if family.per is Per.RANK_SLOT:
            rank = int(self.rank[state])
            first = int((self.rank[family.start : state] < rank).sum())
            return f"{family.name}[rank {rank}, slot {inside - first}{later}]"
        if family.per is Per.PART_SLOT:
            g = int(np.flatnonzero(self.units.part == inside // SEND_SLOTS)[0])
            return f"{family.name}[{self._stage(g)}, slot {inside % SEND_SLOTS}{later}]"
        if family.per is Per.UNIT:
            return f"{family.name}[{self._unit(inside)}{later}]"
        return f"{family.name}[{self.cell_name(inside)}{later}]"

    def cell_name(self, cell: int) -> str:
        """A (unit, micro-batch) cell for people."""
        g = int(np.searchsorted(self.unit_cell, cell, side="right")) - 1
        place = int(cell - self.unit_cell[g])
        position = self.units.position
        if position is not None:
            place = int(np.flatnonzero(position[self.units.part[g]] == place)[0])
        return f"{self._unit(g)}, {place}"

    def _stage(self, g: int) -> str:
        replica = int(self.units.replica[g])
        prefix = f"replica {replica} " if self.units.replica[-1] else ""
        stage = self.units.stage == self.units.stage[g]
        shared = len(np.unique(self.units.part[stage])) > 1
        member = f" on rank {self.units.rank[g]}" if shared else ""
        return f"{prefix}{self.units.stage_in_replica[g]}{member}"

    def _unit(self, g: int) -> str:
        alone = self.units.first_of_part[g] == self.units.last_of_part[g]
        return self._stage(g) + ("" if alone else f".{self.units.unit_in_stage[g]}")


def number_states(setup: Setup) -> States:
    """The states of a setup. Which of them are used depends on the program's ops."""
    units = unit_columns(setup)
    sizing = Sizing(setup, units)
    slots: dict[str, Ints] = {}
    families: list[Family] = []
    columns: list[tuple[Ints, Ints, Bools]] = []
    start = 0
    for declared in FAMILIES.values():
        rank, size = _ranks_and_sizes(declared, sizing, slots)
        copies = 1 if declared.persistent else setup.period
        families.append(Family(declared.name, start, len(rank), declared.per, declared.tier))
        kept = np.full(len(rank) * copies, declared.persistent)
        columns.append((np.tile(rank, copies), np.tile(size, copies), kept))
        start += len(kept)
    counts = [len(kept) for _, _, kept in columns]
    cells = units.micro_batches
    return States(
        units=units,
        families=tuple(families),
        family=np.repeat(np.arange(len(families)), counts),
        rank=np.concatenate([rank for rank, _, _ in columns]),
        size_bytes=np.concatenate([size for _, size, _ in columns]),
        persistent=np.concatenate([kept for _, _, kept in columns]),
        unit_cell=np.cumsum(cells) - cells,
        slots=slots,
    )


def _ranks_and_sizes(
    declared: Declared, sizing: Sizing, slots: dict[str, Ints]
) -> tuple[Ints, Ints]:
    """The rank and the bytes of each of a family's states; slots of ranks are noted in `slots`."""
    units, sizes = sizing.units, declared.sizes(sizing)
    if declared.per is Per.RANK_SLOT:
        rows = cast("list[list[int]]", sizes)
        slots[declared.name] = np.array([len(row) for row in rows], dtype=np.int64)
        ranks = [rank for rank, row in enumerate(rows) for _ in row]
        flat = [size for row in rows for size in row]
        return np.array(ranks, dtype=np.int64), np.array(flat, dtype=np.int64)
    of_each = cast("Ints", sizes)
    if not len(of_each):
        return NO_STATES, NO_STATES
    if declared.per is Per.CELL:
        return np.repeat(units.rank, units.micro_batches), np.repeat(of_each, units.micro_batches)
    if declared.per is Per.PART_SLOT:
        return np.repeat(units.rank[sizing.starts], SEND_SLOTS), np.repeat(of_each, SEND_SLOTS)
    return units.rank, of_each
