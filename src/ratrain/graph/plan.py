"""How an epoch is laid out in a budget: every mode of using memory and every number of open sums is
built as a program; the one that moves the fewest bytes through the disk is proved and taken."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ratrain.describe.units import counted, format_bytes
from ratrain.errors import Infeasible, SpecError
from ratrain.graph.blocks import Blocks, blocks_of
from ratrain.graph.clock import Rates, clocked
from ratrain.graph.csr import Csr, Ints, Matrix, aggregation, renumbered
from ratrain.graph.partition import Partition, expansion, partitioned
from ratrain.graph.program import (
    MODES,
    NEEDED,
    ONE_SUM,
    GraphProgram,
    Layout,
    build,
    cell_bytes_of,
)
from ratrain.graph.prove import Columns, held_bytes, require_sound
from ratrain.graph.read import GraphData, graph_data
from ratrain.graph.share import Boundary, Division, by_needed_rows, divided, needed_rows
from ratrain.graph.spec import GraphFile, MemoryKeys
from ratrain.graph.trace import Needs, Shape
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
    division: Division
    topology_bytes: tuple[int, ...]  # of each process
    expansion: float
    nodes: int
    edges: int
    needed: tuple[Boundary, Boundary] | None = None  # forward, backward: as `needed_rows` has it

    def in_mode(self, mode: str) -> Laid:
        """With what a way of using memory has besides: the rows that partitions sum of others."""
        if mode not in NEEDED or self.needed is not None:
            return self
        forward, backward = self.needed_rows
        shape = replace(
            self.shape,
            needs=Needs(*(_counts(rows, self.shape.parts) for rows in (forward, backward))),
            snapshots=mode == "snapshots",
        )
        lists_bytes = sum(places.nbytes for places in forward.values())
        if backward is not forward:
            lists_bytes += sum(places.nbytes for places in backward.values())
        topology = tuple(each + lists_bytes for each in self.topology_bytes)
        return replace(self, shape=shape, topology_bytes=topology, needed=(forward, backward))

    def _by_needed_rows(self) -> Laid:
        assert self.needed is not None
        forward = by_needed_rows(self.forward, self.needed[0])
        symmetric = self.backward is self.forward
        backward = forward if symmetric else by_needed_rows(self.backward, self.needed[1])
        return replace(self, forward=forward, backward=backward)

    @cached_property
    def needed_rows(self) -> tuple[Boundary, Boundary]:
        forward = needed_rows(self.forward, self.shape.sizes)
        if self.backward is self.forward:
            return forward, forward
        return forward, needed_rows(self.backward, self.shape.sizes)

    @property
    def standing_bytes(self) -> int:
        """What is in memory whatever the plan: the process, its edges, the labels. Of the process
        that has most."""
        return PROCESS_BYTES + max(self.topology_bytes) + ROW_BYTES * self.nodes

    def of(self, process: int) -> Laid:
        """What one of several processes has of it, or the only one: where rows are packed, blocks
        have columns by their place among those."""
        if self.division.processes == 1:
            return self._by_needed_rows() if self.shape.packs else self
        forward, backward = self.division.blocks_of(self.forward, process), self.backward
        backward = (
            forward
            if self.backward is self.forward
            else self.division.blocks_of(self.backward, process)
        )
        data = replace(self.data, graph=EMPTY)
        shape = self.shape.of(process)
        return replace(self, data=data, shape=shape, forward=forward, backward=backward)

    def nodes_of(self, part: int) -> Ints:
        """The nodes, as the data number them, of the rows of a partition that the process has to do
        with."""
        nodes = self.partition.order[self.partition.bounds[part] : self.partition.bounds[part + 1]]
        process = self.shape.process
        if self.shape.owner[part] == process:
            return nodes
        return nodes[self.division.boundary[part, process]]

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
    """The layout taken, its proved program of each process, and what was tried."""

    laid: Laid
    columns: Columns
    candidates: tuple[Candidate, ...]
    budget_bytes: int
    rates: Rates

    @property
    def program(self) -> GraphProgram:
        """The first process's."""
        return self.columns.program

    @property
    def processes(self) -> int:
        return len(self.columns.programs)

    @property
    def read_bytes(self) -> int:
        """Of an epoch, by all processes."""
        return sum(program.read_bytes for program in self.columns.programs)

    @property
    def written_bytes(self) -> int:
        return sum(program.written_bytes for program in self.columns.programs)

    @property
    def sent_bytes(self) -> int:
        """From process to process."""
        return sum(program.sent_bytes for program in self.columns.programs)

    @property
    def peak_bytes(self) -> int:
        """Of a process in all, at most."""
        layout = self.program.layout
        cells = layout.cells * layout.cell_bytes
        return self.laid.standing_bytes + self.laid.working_bytes(layout.group) + cells

    @property
    def disk_bytes(self) -> int:
        return sum(held_bytes(program)["disk"] for program in self.columns.programs)

    @property
    def in_memory_bytes(self) -> int:
        """What training in memory would take: features, and of every unit activations, their
        gradients and the gathered sums."""
        shape, nodes = self.laid.shape, self.laid.nodes
        columns = shape.units[0].width_in
        columns += sum(2 * u.width_out + u.sum_forward for u in shape.units)
        standing = PROCESS_BYTES + sum(self.laid.topology_bytes) + ROW_BYTES * nodes
        return standing + columns * nodes * shape.element_bytes

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
    if parts < spec.memory.processes:
        raise SpecError(
            f"{spec.memory.processes} processes divide {counted(parts, 'partition')}",
            place="[memory] processes",
            fix="take fewer, or cut the nodes into more `parts`",
        )
    how, seed = spec.memory.partitioner, spec.graph.seed
    partition, how = partitioned(data.graph, parts, how, seed, directed=spec.graph.directed)
    ordered = in_order(spec, data.graph, partition)
    if not whole:  # before its matrix is cut, which takes twice as much
        data = replace(data, graph=EMPTY)
    return cut(spec, data, ordered, partition, how)


class Ordered(NamedTuple):
    """A graph in its partition's order: its matrix, its edges, and rows that partitions need over
    all rows."""

    matrix: Matrix
    edges: int
    expansion: float


def in_order(spec: GraphFile, graph: Csr, partition: Partition) -> Ordered:
    """A graph as `cut` takes it."""
    graph = renumbered(graph, partition.new_of_old)
    matrix = aggregation(graph, spec.model.kind, spec.train.precision)
    return Ordered(matrix, graph.edges, expansion(graph, partition))


def _parts(memory: MemoryKeys, units: tuple[Unit, ...], data: GraphData, element_bytes: int) -> int:
    """As few partitions as leave each process room for a dozen."""
    graph, processes = data.graph, memory.processes
    standing = PROCESS_BYTES + 16 * graph.edges // processes + ROW_BYTES * graph.nodes
    left = max(memory.budget_bytes - standing, memory.budget_bytes // 20)
    widest = max(max(u.width_in, u.gradient, u.sum_forward, u.sum_backward) for u in units)
    layer = graph.nodes * widest * element_bytes // processes
    parts = -(-layer * PARTS_IN_MEMORY // left)
    most = MOST_PARTS // processes
    return processes << min(max(parts - 1, 0).bit_length(), most.bit_length() - 1)


def cut(spec: GraphFile, data: GraphData, ordered: Ordered, partition: Partition, how: str) -> Laid:
    """A graph cut by its partition."""
    units = units_of(spec.model, data.features.width, data.classes)
    element_bytes = np.dtype(spec.train.precision).itemsize
    matrix = ordered.matrix
    forward = blocks_of(matrix, partition.bounds)
    symmetric = spec.model.kind != "sage" and not spec.graph.directed
    backward = forward if symmetric else blocks_of(matrix.transposed(), partition.bounds)
    entries = _entries(forward, partition.count), _entries(backward, partition.count)
    weights = partition.sizes + sum(each.sum(1) for each in entries)
    division = divided(weights, spec.memory.processes, forward, backward)
    shape = Shape(
        units,
        partition.sizes,
        *entries,
        element_bytes,
        division.owner,
        division.boundary_rows,
    )
    if len(forward) > MOST_PAIRS:
        raise SpecError(
            f"{len(forward):,} pairs of {partition.count:,} partitions share edges; at most "
            f"{MOST_PAIRS:,} are planned",
            place="[memory] parts",
            fix=f"cut into fewer, as {int(partition.count * (MOST_PAIRS / len(forward)) ** 0.5)}",
        )
    topology = _topology_bytes(division, forward, backward)
    laid = data, partition, how, shape, forward, backward, division, topology
    return Laid(*laid, ordered.expansion, matrix.pattern.nodes, ordered.edges)


def _topology_bytes(division: Division, forward: Blocks, backward: Blocks) -> tuple[int, ...]:
    """Of each process its blocks, and whose rows it sends and receives."""
    sizes = [division.size_bytes(process) for process in range(division.processes)]
    for blocks in (forward,) if forward is backward else (forward, backward):
        for (part, _), block in blocks.items():
            sizes[division.owner[part]] += block.size_bytes
    return tuple(sizes)


def _counts(rows: Boundary, parts: int) -> Ints:
    counts = np.zeros((parts, parts), dtype=np.int64)
    for at, places in rows.items():
        counts[at] = len(places)
    return counts


def _entries(blocks: Blocks, parts: int) -> Ints:
    entries = np.zeros((parts, parts), dtype=np.int64)
    for at, block in blocks.items():
        entries[at] = block.entries
    return entries


def planned(laid: Laid, memory: MemoryKeys, disk: Path) -> Plan:
    """The plan of the fewest bytes, or `Infeasible`."""
    disk_rates = memory.disk_read_bytes_per_s, memory.disk_write_bytes_per_s
    rates = Rates(*disk_rates, memory.exchange_bytes_per_s)
    tried: list[tuple[Candidate, list[GraphProgram]]] = []
    laid_in = {mode: laid.in_mode(mode) for mode in _modes(laid, memory)}
    for layout in _layouts(laid_in, memory):
        shape = laid_in[layout.mode].shape
        shapes = [shape.of(process) for process in range(shape.processes)]
        try:
            programs = [build(shape, layout) for shape in shapes]
        except Infeasible as error:
            tried.append((Candidate(layout, why=error.what), []))
            continue
        read = sum(program.read_bytes for program in programs)
        written = sum(program.written_bytes for program in programs)
        tried.append((Candidate(layout, read, written), programs))
    fitting = [(candidate, programs) for candidate, programs in tried if programs]
    if not fitting:
        raise _too_small(laid, memory, tried[0][0] if tried else None)
    best = min(fitting, key=lambda each: (each[0].moved_s(rates), each[0].layout.group))
    free = shutil.disk_usage(_existing(disk)).free
    cells = best[0].layout.cells * best[0].layout.cell_bytes
    columns = require_sound(best[1], {"host": cells})
    laid = laid_in[best[0].layout.mode]
    plan = Plan(laid, columns, tuple(c for c, _ in tried), memory.budget_bytes, rates)
    if plan.disk_bytes > free:
        raise Infeasible(
            f"needs {format_bytes(plan.disk_bytes)} on the disk, and {format_bytes(free)} are free",
            place=str(disk),
            fix="make room, or name another folder: `disk` in [memory]",
        )
    return plan


def _modes(laid: Laid, memory: MemoryKeys) -> list[str]:
    """Those that are tried."""
    several = laid.shape.processes > 1
    if several and memory.mode in ONE_SUM:
        raise SpecError(
            f"{memory.mode} is for one process, and {laid.shape.processes} divide the partitions",
            place="[memory] mode",
            fix="leave it out, or `processes`",
        )
    if memory.mode != "auto":
        return [memory.mode]
    return ["cache", "bypass", *(["packed"] if not several and laid.shape.parts > 1 else [])]


def _layouts(laid_in: Mapping[str, Laid], memory: MemoryKeys) -> Iterator[Layout]:
    """Groups by doubling, as far as the budget reaches, in every mode asked for."""
    for mode, laid in laid_in.items():
        cell_bytes = cell_bytes_of(laid.shape)
        most = _useful_cells(laid.shape, cell_bytes)
        most_parts = max(map(len, map(laid.shape.parts_of, range(laid.shape.processes))))
        groups = (1 << power for power in range((most_parts - 1).bit_length()))
        for group in (1,) if mode in ONE_SUM else (*groups, most_parts):
            left = memory.budget_bytes - laid.standing_bytes - laid.working_bytes(group)
            if left >= cell_bytes:
                yield Layout(mode, group, min(left // cell_bytes, most), cell_bytes)


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
