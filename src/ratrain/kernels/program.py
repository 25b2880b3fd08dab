"""A tile program: ops of cores and DMA channels over the states that tiles are.

It is held in the columns of the training programs of `program/`: a core is a rank, its vector unit
the compute lane, its DMA channels further lanes. Who waits for whom follows from the uses of states
by the same rule (`program.edges`), and the same walk and the same clock go over it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ratrain.kernels.machine import Machine, Tier
from ratrain.kernels.tiles import Array, Box, Tile
from ratrain.program.edges import Edges, derive_edges
from ratrain.program.graph import Waiting, graph_of
from ratrain.program.kind import Lane
from ratrain.program.units import Bools, Ints
from ratrain.program.uses import Uses
from ratrain.program.walk import Walk, walk

COMPUTE = 0
"""The lane of a core's vector unit; those above it are its DMA channels."""
CHANNELS = len(Lane) - 1

Memory = Mapping[int, Array]
Use = tuple[int, int, int]
"""Mode (`program.uses`), state, version."""


@dataclass(slots=True)
class Op:
    """What a core's vector unit or a DMA channel does at once. A transfer has bytes, of DDR time
    also that of its strided rows; compute has cycles."""

    core: int
    lane: int
    verb: str
    target: Tile
    sources: tuple[Tile, ...]
    uses: tuple[Use, ...]
    run: Callable[[Memory], None]
    cycles: float = 0.0
    size_bytes: int = 0
    strided_rows: int = 0
    over: Tier | None = None  # the shared memory whose rate a transfer takes

    @property
    def word(self) -> str:
        """For people: `mm c.0[0:6, 0:48] <- a tile.1, b.0`."""
        read = f" <- {', '.join(map(str, self.sources))}" if self.sources else ""
        return f"{self.verb} {self.target}{read}"


@dataclass(frozen=True, slots=True)
class State:
    """A region of a tensor, or a slot of a buffer."""

    name: str
    tier: Tier
    core: int
    size_bytes: int
    given: bool  # holds something before the kernel starts


@dataclass(frozen=True)
class Tensor:
    """A matrix in DDR that a kernel is given, or leaves behind."""

    name: str
    storage: int
    shape: tuple[int, int]
    dtype: np.dtype
    is_input: bool
    is_output: bool
    boxes: tuple[Box, ...]  # regions taken of it, where it is written

    @property
    def size_bytes(self) -> int:
        return self.shape[0] * self.shape[1] * self.dtype.itemsize


@dataclass(frozen=True)
class States:
    """The columns that `program.edges` reads."""

    rank: Ints
    persistent: Bools


@dataclass(frozen=True)
class TileProgram:
    """For each core and lane an ordered list of ops. `loops`: for each folded loop how often it
    was written out, of how many times."""

    machine: Machine
    states: tuple[State, ...]
    tensors: tuple[Tensor, ...]
    storage_bytes: tuple[int, ...]  # of each buffer slot; 0: a tensor's
    ops: tuple[Op, ...]  # core by core, lane by lane, in order
    lane_names: tuple[str, ...]
    loops: Mapping[str, tuple[int, int]]

    @cached_property
    def core(self) -> Ints:
        return np.array([op.core for op in self.ops], dtype=np.int64)

    @cached_property
    def lane(self) -> Ints:
        return np.array([op.lane for op in self.ops], dtype=np.int64)

    @cached_property
    def uses(self) -> Uses:
        counts = [len(op.uses) for op in self.ops]
        rows = np.array([use for op in self.ops for use in op.uses], dtype=np.int64).reshape(-1, 3)
        mode, state, version = (np.ascontiguousarray(column) for column in rows.T)
        return Uses(np.repeat(np.arange(len(self.ops)), counts), state, version, mode)

    @cached_property
    def edges(self) -> Edges:
        """Who waits for whom."""
        kept = States(
            np.array([state.core for state in self.states], dtype=np.int64),
            np.array([state.given for state in self.states], dtype=bool),
        )
        return derive_edges(self.uses, kept, self.core * len(Lane) + self.lane)

    @cached_property
    def walked(self) -> Walk:
        """An order in which its ops can run, and those that never can."""
        alone = np.full(len(self.ops), -1, dtype=np.int64)
        waiting = Waiting(self.edges, alone, self.core, self.lane, self.machine.cores)
        walked = walk(graph_of(waiting))
        once = len(self.ops)  # the walk goes over two steps; a kernel has one
        return Walk(walked.order[walked.order < once], walked.stuck[walked.stuck < once])

    @property
    def least_bytes(self) -> int:
        """Of its tensors, each once in each direction in which it is used."""
        return sum(t.size_bytes * (t.is_input + t.is_output) for t in self.tensors)

    def place(self, op: int) -> str:
        """Where an op stands, for people."""
        where = self.ops[op]
        return f"{where.word} on core {where.core}, lane {self.lane_names[where.lane]}"
