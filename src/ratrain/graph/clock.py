"""The time of an epoch, by the simulator's own event loop: the disk has a rate for each direction,
and what is computed takes as long as its arithmetic or the memory that it goes over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratrain.graph.program import COMPUTE_LANE, LANES, SEND_LANE, Op
from ratrain.graph.prove import Columns
from ratrain.graph.trace import ADD, ADD_B, BACKWARD, FORWARD, OPEN, OPEN_B, PACKED, SUM, Shape
from ratrain.program.graph import Pairs
from ratrain.simulate.costs import NO_LINK, OpCosts
from ratrain.simulate.engine import Nodes, Run, run_nodes
from ratrain.timeline.timeline import Span, Timeline


@dataclass(frozen=True)
class Rates:
    """What a machine does a second. Those of computing are assumed, as of one core of a server of
    2020, until a run times them (`calibrate`)."""

    read_bytes_per_s: float
    write_bytes_per_s: float
    exchange_bytes_per_s: float = 1.5e9  # of each process, with others of this machine
    product_flops: float = 50e9
    sum_bytes_per_s: float = 7e9
    row_bytes_per_s: float = 8e9  # of rows that are gone over one by one, read or written


def clocked(columns: Columns, rates: Rates) -> Run:
    """When each op starts and ends. Processes share the disk; each has its own connections."""
    count, processes = len(columns.ops), len(columns.programs)
    zero, nothing = np.zeros(count, dtype=np.int64), np.zeros(0, dtype=np.int64)
    inside = columns.edges.inside
    process = columns.process.astype(np.int32)
    _, group_sizes = np.unique(columns.group[columns.group >= 0], return_counts=True)
    nodes = Nodes(
        Pairs(inside.source, inside.target),
        Pairs(nothing, nothing),
        columns.group,
        group_sizes.astype(np.int64),
        np.where(columns.lane == COMPUTE_LANE, process, -1).astype(np.int32),
        process,
        zero,
        zero,
        np.zeros(processes, dtype=np.int64),
    )
    links = [NO_LINK, DISK_READ, DISK_WRITE, EXCHANGE, NO_LINK]
    link = np.array(links)[columns.lane]
    sends = columns.lane == SEND_LANE
    link[sends] += process[sends]
    moved = np.where(link == NO_LINK, 0, [op.size_bytes for op in columns.ops])
    shapes = [program.shape for program in columns.programs]
    costs = OpCosts(
        np.array(
            [
                _computing_s(shapes[at], op, rates)
                for op, at in zip(columns.ops, process.tolist(), strict=True)
            ]
        ),
        moved.astype(np.float64),
        np.zeros(count),
        link.astype(np.int32),
        np.full(count, NO_LINK, dtype=np.int32),
    )
    speeds = [rates.read_bytes_per_s, rates.write_bytes_per_s]
    speeds += [rates.exchange_bytes_per_s] * processes
    return run_nodes(nodes, costs, np.array(speeds), 1)


DISK_READ, DISK_WRITE, EXCHANGE = range(3)
"""Links by number; each process has one of the last kind."""


def timeline_of(columns: Columns, run: Run) -> Timeline:
    """An epoch's ops as they run."""
    spans = tuple(
        Span(0, process, LANES[op.lane], op.word, float(run.start_s[at]), float(run.end_s[at]))
        for at, (op, process) in enumerate(zip(columns.ops, columns.process.tolist(), strict=True))
    )
    return Timeline("simulate", spans)


def _computing_s(shape: Shape, op: Op, rates: Rates) -> float:
    item = op.item
    if item.verb == SUM:
        return op.size_bytes / rates.exchange_bytes_per_s
    if op.datum is not None or item.part < 0:
        return 0.0
    unit, rows = shape.units[item.unit - 1], int(shape.sizes[item.part])
    columns = unit.sum_forward if item.verb in (OPEN, ADD, FORWARD) else unit.sum_backward
    if item.verb in (OPEN, OPEN_B):
        return rows * columns * shape.element_bytes / rates.sum_bytes_per_s
    if item.verb in (ADD, ADD_B):
        entries = shape.entries if item.verb == ADD else shape.entries_back
        added = int(entries[item.part, item.source]) * columns * shape.element_bytes
        return added / rates.sum_bytes_per_s
    products = (1 + unit.own) * unit.has_weights * (2 if item.verb == BACKWARD else 1)
    flops = 2.0 * rows * unit.width_in * unit.width * products
    # Narrow rows take longer to come from memory than to be multiplied: a product reads its input
    # and writes its output, bias and ReLU read and write that; back, both gradients read theirs.
    forward, back = unit.width_in + 5 * unit.width, 5 * unit.width_in + 2 * unit.width
    passed = rows * (back if item.verb == BACKWARD else forward) * shape.element_bytes
    passed += sum(2 * shape.size_bytes(datum) for datum in item.makes if datum.to == PACKED)
    return flops / rates.product_flops + passed / rates.row_bytes_per_s
