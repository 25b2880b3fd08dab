"""The states of a program: every byte that training keeps, numbered, with its rank and size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ratrain.program.setup import Recovery, Setup
from ratrain.program.units import RECOVERY_CODE, Bools, Ints, Units, unit_columns

SEND_SLOTS = 2
"""Tensors of one stage and direction on their way at once: one leaving (or being read), and one
being made (or arriving). As many parts of sums, of one rank and direction."""


@dataclass(frozen=True)
class Family:
    """States of one sort, numbered from `start`. `per` says what numbers them inside."""

    name: str
    start: int
    count: int
    per: str  # "unit", "unit x micro-batch", "stage slot", "slot"


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

    def start(self, name: str) -> int:
        """The number of a family's first state."""
        return next(family.start for family in self.families if family.name == name)

    def name(self, state: int) -> str:
        """A state's name for people: `saved[2.1, 7]` is unit 1 of stage 2, micro-batch 7."""
        family = self.families[int(self.family[state])]
        inside = state - family.start
        if family.per == "slot":
            rank = int(self.rank[state])
            first = int((self.rank[family.start : state] < rank).sum())
            return f"{family.name}[rank {rank}, slot {inside - first}]"
        if family.per == "stage slot":
            g = int(np.flatnonzero(self.units.stage == inside // SEND_SLOTS)[0])
            return f"{family.name}[{self._stage(g)}, slot {inside % SEND_SLOTS}]"
        if family.per == "unit":
            return f"{family.name}[{self._unit(inside)}]"
        g = int(np.searchsorted(self.unit_cell, inside, side="right")) - 1
        return f"{family.name}[{self._unit(g)}, {inside - self.unit_cell[g]}]"

    def _stage(self, g: int) -> str:
        replica = int(self.units.replica[g])
        prefix = f"replica {replica} " if self.units.replica[-1] else ""
        return f"{prefix}{self.units.stage_in_replica[g]}"

    def _unit(self, g: int) -> str:
        alone = self.units.first_of_stage[g] == self.units.last_of_stage[g]
        return self._stage(g) + ("" if alone else f".{self.units.unit_in_stage[g]}")


def number_states(setup: Setup) -> States:
    """The states of a setup. Which of them are used depends on the program's ops."""
    units = unit_columns(setup)
    described = [u for r in setup.replicas for s in r.stages for u in s.units]

    def sizes(name: str) -> Ints:
        return np.array([getattr(unit, name) for unit in described], dtype=np.int64)

    cells = units.micro_batches
    starts = units.unit_in_stage == 0
    ends = np.r_[starts[1:], True]
    stage_rank = np.repeat(units.rank[starts], SEND_SLOTS)
    view, gradient, inputs = sizes("view_bytes"), sizes("gradient_bytes"), sizes("input_bytes")
    # Selective recovery: scores are no longer kept, but exist for one unit while it makes them.
    scores = sizes("scores_bytes") * (units.recovery == RECOVERY_CODE[Recovery.SELECTIVE])
    scratch = _scratch_sizes(setup, units, sizes("scratch_bytes") + scores)
    outputs = _output_bytes(setup)
    taken = {
        "transit": _transit_sizes(setup, units, gradient),
        "gathered": _gathered_sizes(setup, units, view),
        "partial": _partial_sizes(setup, units, outputs, units.has_output),
        "partialb": _partial_sizes(setup, units, inputs, units.has_input),
    }
    level3 = setup.gathers_per_use
    whole = setup.data if setup.sharding else 1

    families: list[tuple[str, str, bool, Ints, Ints]] = [
        ("scratch", "slot", True, *_slots(scratch)),
        ("view", "unit", True, units.rank, view * (not level3)),
        ("shard_view", "unit", True, units.rank, share(view, setup.data) * level3),
        ("optimizer", "unit", True, units.rank, share(sizes("optimizer_bytes"), whole)),
        *((name, "slot", True, *_slots(rows)) for name, rows in taken.items()),
        ("gradient", "unit", False, units.rank, gradient),
        ("shard", "unit", False, units.rank, share(gradient, setup.data)),
    ]
    for name, size in (
        ("input", inputs),
        ("saved", sizes("saved_bytes") - scores),
        ("outgrad", outputs),
    ):
        repeated = np.repeat(units.rank, cells), np.repeat(size, cells)
        families.append((name, "unit x micro-batch", False, *repeated))
    sends_on, sends_back = units.next_is_remote[ends], units.previous_is_remote[starts]
    slots = (
        ("sendx", outputs[ends] * sends_on),
        ("sendg", inputs[starts] * sends_back),
        ("recvg", outputs[ends] * (sends_on & (not setup.split_backward))),
    )
    for name, size in slots:
        families.append((name, "stage slot", True, stage_rank, np.repeat(size, SEND_SLOTS)))

    counts = [len(rank) for *_, rank, _ in families]
    first = np.cumsum([0, *counts])
    return States(
        units=units,
        families=tuple(
            Family(name, int(start), count, per)
            for (name, per, *_), start, count in zip(families, first, counts, strict=False)
        ),
        family=np.repeat(np.arange(len(families)), counts),
        rank=np.concatenate([rank for *_, rank, _ in families]),
        size_bytes=np.concatenate([size for *_, size in families]),
        persistent=np.repeat(np.array([kept for _, _, kept, *_ in families]), counts),
        unit_cell=np.cumsum(cells) - cells,
        slots={
            name: np.array([len(row) for row in rows], dtype=np.int64)
            for name, rows in taken.items()
        },
    )


def share(size_bytes: Ints, owners: int) -> Ints:
    """An owner's part of a state that is divided evenly, rounded up."""
    return -(-size_bytes // owners)


def _output_bytes(setup: Setup) -> Ints:
    """What each unit hands on: the next unit's input, or the tensor its stage sends."""
    out: list[int] = []
    for replica in setup.replicas:
        for stage in replica.stages:
            out += [unit.input_bytes for unit in stage.units[1:]] + [stage.output_bytes]
    return np.array(out, dtype=np.int64)


def _transit_sizes(setup: Setup, units: Units, gradient: Ints) -> list[list[int]]:
    """For each rank, its slots for gradients that are not reduced yet."""
    if not setup.per_micro_batch:
        return [[] for _ in range(setup.ranks)]
    piece = np.minimum(gradient, setup.bucket_bytes) if setup.bucket_bytes else gradient
    rows = [piece[units.rank == rank].tolist() for rank in range(setup.ranks)]
    return [[max(row)] * setup.transit_slots for row in rows] if setup.transit_slots else rows


def _gathered_sizes(setup: Setup, units: Units, view: Ints) -> list[list[int]]:
    """For each rank, slots for gathered views: those in use, and one on its way. Recovery ahead
    of backward keeps a view in use for every unit of its buffer."""
    if not setup.gathers_per_use:
        return [[] for _ in range(setup.ranks)]
    ahead = RECOVERY_CODE[Recovery.FORWARD]
    slots = [
        1 + (setup.recovery_buffer if (units.recovery[units.rank == rank] == ahead).any() else 1)
        for rank in range(setup.ranks)
    ]
    return [[int(view[units.rank == rank].max())] * n for rank, n in enumerate(slots)]


def _partial_sizes(setup: Setup, units: Units, size: Ints, summed: Bools) -> list[list[int]]:
    """For each rank, its slots for parts of sums: one being summed, one being made. A part is
    whole, also where each rank keeps a share of the sum alone (sequence parallelism)."""
    if setup.tensor == 1:
        return [[] for _ in range(setup.ranks)]
    size = size * (setup.tensor if setup.sequence_parallel else 1)
    rows = [size[(units.rank == rank) & summed].tolist() for rank in range(setup.ranks)]
    return [[max(row)] * SEND_SLOTS if row else [] for row in rows]


def _scratch_sizes(setup: Setup, units: Units, scratch: Ints) -> list[list[int]]:
    """For each rank what its most wasteful op needs, always counted: ops run one at a time."""
    found = [int(scratch[units.rank == rank].max()) for rank in range(setup.ranks)]
    return [[size] if size else [] for size in found]


def _slots(rows: list[list[int]]) -> tuple[Ints, Ints]:
    ranks = [rank for rank, row in enumerate(rows) for _ in row]
    return np.array(ranks, dtype=np.int64), np.array([s for row in rows for s in row], np.int64)
