"""How an epoch is laid out in a budget: every mode of using memory and every number of open sums is
built as a program; the one that moves the fewest bytes through the disk is proved and taken."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from ratrain.describe.units import format_bytes
from ratrain.errors import Infeasible, SpecError
from ratrain.graph.blocks import Blocks, blocks_of
from ratrain.graph.clock import Rates, clocked
from ratrain.graph.csr import Csr, Ints, aggregation, renumbered
from ratrain.graph.partition import Partition, expansion, partitioned
from ratrain.graph.program import (
    MODES,
    GraphProgram,
    Layout,
    build,
    cell_bytes_of,
)
from ratrain.graph.prove import Columns, held_bytes, require_sound
from ratrain.graph.read import GraphData, graph_data
from ratrain.graph.spec import GraphFile, MemoryKeys
from ratrain.graph.trace import Shape
from ratrain.graph.units import Unit, units_of

PROCESS_BYTES = 275_000_000
"""Of Python with torch, before anything of a graph: measured 240 MB on Linux, x86, CPU build."""
ROW_BYTES = 40
"""Of a node: its label, its place in the order, whether it is learned, working space."""
EMPTY = Csr(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int32))
MOST_PARTS = 128
MOST_PAIRS = 20_000
"""Of partitions that share edges: a program of an epoch has some six ops for each."""
PARTS_IN_MEMORY = 12
"""So many of the widest data are to fit beside everything else, where `parts` is left out."""


@dataclass(frozen=True)
class Laid:
    """A graph cut into partitions, in their order."""

    data: GraphData
    partition: Partition
    partitioner: str
    shape: Shape
    forward: Blocks
    backward: Blocks
    expansion: float
    nodes: int
    edges: int

    @cached_property
    def topology_bytes(self) -> int:
        back = [] if self.backward is self.forward else list(self.backward.values())
        return sum(block.size_bytes for block in [*self.forward.values(), *back])

    @property
    def standing_bytes(self) -> int:
        """What is in memory whatever the plan: the process, the graph, the labels."""
        return PROCESS_BYTES + self.topology_bytes + ROW_BYTES * self.nodes

    def working_bytes(self, group: int) -> int:
        """Of open sums, and of what an op makes on the side."""
        shape = self.shape
        sums = max(max(u.sum_forward, u.sum_backward) for u in shape.units)
        widest = max(max(u.width_in, u.gradient) for u in shape.units)
        side = 2 * widest + 5 * shape.units[-1].width
        heads = max(u.heads for u in shape.units)
        if heads:  # rows under way, and a dozen numbers of each edge
            side += 2 * max(u.width for u in shape.units if u.attends)
        edges = 12 * heads * int(max(shape.entries.max(), shape.entries_back.max()))
        return ((group * sums + side) * shape.largest + edges) * shape.element_bytes


@dataclass(frozen=True)
class Candidate:
    """A layout that was tried; `why` it cannot be taken, "" where it can."""

    layout: Layout
    read_bytes: int = 0
    written_bytes: int = 0
    why: str = ""

    def moved_s(self, rates: Rates) -> float:
        return (
            self.read_bytes / rates.read_bytes_per_s + self.written_bytes / rates.write_bytes_per_s
        )


@dataclass(frozen=True)
class Plan:
    """The layout taken, its proved program, and what was tried."""

    laid: Laid
    columns: Columns
    candidates: tuple[Candidate, ...]
    budget_bytes: int
    rates: Rates

    @property
    def program(self) -> GraphProgram:
        return self.columns.program

    @property
    def peak_bytes(self) -> int:
        """Of the process in all."""
        layout = self.program.layout
        cells = layout.cells * layout.cell_bytes
        return self.laid.standing_bytes + self.laid.working_bytes(layout.group) + cells

    @property
    def disk_bytes(self) -> int:
        return held_bytes(self.program)["disk"]

    @property
    def in_memory_bytes(self) -> int:
        """What training in memory would take: features, and of every unit activations, their
        gradients and the gathered sums."""
        shape, nodes = self.laid.shape, self.laid.nodes
        columns = shape.units[0].width_in
        columns += sum(2 * u.width_out + u.sum_forward for u in shape.units)
        return self.laid.standing_bytes + columns * nodes * shape.element_bytes

    @cached_property
    def epoch_s(self) -> float:
        """Predicted."""
        return float(clocked(self.columns, self.rates).end_s.max())


def lay_out(spec: GraphFile, folder: Path, *, whole: bool = False) -> Laid:
    """Reads or makes the graph, and cuts it: the same from the same file. Of `data` the graph goes
    then, unless the `whole` is wanted."""
    data = graph_data(spec.graph, folder)
    units = units_of(spec.model, data.features.width, data.classes)
    element_bytes = np.dtype(spec.train.precision).itemsize
    parts = min(
        spec.memory.parts or _parts(spec.memory, units, data, element_bytes), data.graph.nodes
    )
    partition, how = partitioned(data.graph, parts, spec.memory.partitioner, spec.graph.seed)
    laid = cut(spec, data, partition, how)
    return laid if whole else replace(laid, data=replace(data, graph=EMPTY))


def _parts(memory: MemoryKeys, units: tuple[Unit, ...], data: GraphData, element_bytes: int) -> int:
    """As few partitions as leave room for a dozen."""
    graph = data.graph
    standing = PROCESS_BYTES + 16 * graph.edges + ROW_BYTES * graph.nodes
    left = max(memory.budget_bytes - standing, memory.budget_bytes // 20)
    widest = max(max(u.width_in, u.gradient, u.sum_forward, u.sum_backward) for u in units)
    layer = graph.nodes * widest * element_bytes
    parts = -(-layer * PARTS_IN_MEMORY // left)
    return 1 << min(max(parts - 1, 0).bit_length(), MOST_PARTS.bit_length() - 1)


def cut(spec: GraphFile, data: GraphData, partition: Partition, how: str) -> Laid:
    """A graph cut by a partition."""
    units = units_of(spec.model, data.features.width, data.classes)
    element_bytes = np.dtype(spec.train.precision).itemsize
    graph: Csr = renumbered(data.graph, partition.new_of_old)
    matrix = aggregation(graph, spec.model.kind, spec.train.precision)
    forward = blocks_of(matrix, partition.bounds)
    symmetric = spec.model.kind != "sage" and not spec.graph.directed
    backward = forward if symmetric else blocks_of(matrix.transposed(), partition.bounds)
    shape = Shape(
        units,
        partition.sizes,
        _entries(forward, partition.count),
        _entries(backward, partition.count),
        element_bytes,
    )
    if len(forward) > MOST_PAIRS:
        raise SpecError(
            f"{len(forward):,} pairs of {partition.count:,} partitions share edges; at most "
            f"{MOST_PAIRS:,} are planned",
            place="[memory] parts",
            fix=f"cut into fewer, as {int(partition.count * (MOST_PAIRS / len(forward)) ** 0.5)}",
        )
    rows = expansion(graph, partition)
    sizes = data.graph.nodes, data.graph.edges
    return Laid(data, partition, how, shape, forward, backward, rows, *sizes)


def _entries(blocks: Blocks, parts: int) -> Ints:
    entries = np.zeros((parts, parts), dtype=np.int64)
    for at, block in blocks.items():
        entries[at] = block.entries
    return entries


def planned(laid: Laid, memory: MemoryKeys, disk: Path) -> Plan:
    """The plan of the fewest bytes, or `Infeasible`."""
    rates = Rates(memory.disk_read_bytes_per_s, memory.disk_write_bytes_per_s)
    tried: list[tuple[Candidate, GraphProgram | None]] = []
    for layout in _layouts(laid, memory):
        try:
            program = build(laid.shape, layout)
        except Infeasible as error:
            tried.append((Candidate(layout, why=error.what), None))
            continue
        tried.append((Candidate(layout, program.read_bytes, program.written_bytes), program))
    fitting = [(candidate, program) for candidate, program in tried if program is not None]
    if not fitting:
        raise _too_small(laid, memory, tried[-1][0] if tried else None)
    best = min(fitting, key=lambda each: (each[0].moved_s(rates), each[0].layout.group))[1]
    free = shutil.disk_usage(_existing(disk)).free
    cells = best.layout.cells * best.layout.cell_bytes
    columns = require_sound(best, {"host": cells})
    plan = Plan(laid, columns, tuple(c for c, _ in tried), memory.budget_bytes, rates)
    if plan.disk_bytes > free:
        raise Infeasible(
            f"needs {format_bytes(plan.disk_bytes)} on the disk, and {format_bytes(free)} are free",
            place=str(disk),
            fix="make room, or name another folder: `disk` in [memory]",
        )
    return plan


def _layouts(laid: Laid, memory: MemoryKeys) -> Iterator[Layout]:
    """Groups by doubling, as far as the budget reaches, in every mode asked for."""
    modes = ["cache", "bypass"] if memory.mode == "auto" else [memory.mode]
    cell_bytes = cell_bytes_of(laid.shape)
    most = _useful_cells(laid.shape, cell_bytes)
    group = 1
    while True:
        left = memory.budget_bytes - laid.standing_bytes - laid.working_bytes(group)
        if left < cell_bytes:
            return
        for mode in modes:
            yield Layout(mode, group, min(left // cell_bytes, most), cell_bytes)
        if group >= laid.shape.parts:
            return
        group = min(group * 2, laid.shape.parts)


def _useful_cells(shape: Shape, cell_bytes: int) -> int:
    """All that an epoch has, at once: more would lie idle."""
    columns = [u.width_out + u.gradient + u.kept for u in shape.units]
    columns.append(shape.units[0].width_in)
    row_bytes = shape.largest * shape.element_bytes
    return shape.parts * sum(-(-row_bytes * each // cell_bytes) + 2 for each in columns)


def _too_small(laid: Laid, memory: MemoryKeys, last: Candidate | None) -> Infeasible:
    standing, working = laid.standing_bytes, laid.working_bytes(1)
    needed = standing + working + MOST_IN_OP * cell_bytes_of(laid.shape)
    said = f": {last.why}" if last else ""
    rising = max(needed, int(memory.budget_bytes * 1.02))
    return Infeasible(
        f"{format_bytes(memory.budget_bytes)} do not hold the process with the graph "
        f"({format_bytes(standing)}), one sum ({format_bytes(working)}) and its data{said}",
        place="[memory] budget",
        fix=f"try {format_bytes(rising)}, or more `parts` than {laid.shape.parts}",
    )


MOST_IN_OP = 48
"""Cells of one op's data: three of the widest, of sixteen each."""


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())


__all__ = ["MODES", "Candidate", "Laid", "Plan", "lay_out", "planned"]
