"""The time of an epoch, by the simulator's own event loop: the disk has a rate for each direction,
and what is computed takes as long as its arithmetic or the memory that it goes over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratrain.graph.program import READ_LANE, GraphProgram, Op
from ratrain.graph.prove import Columns
from ratrain.graph.trace import ADD, ADD_B, BACKWARD, FORWARD, OPEN, OPEN_B, Shape
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
    product_flops: float = 50e9
    sum_bytes_per_s: float = 7e9
    row_bytes_per_s: float = 8e9  # of rows that are gone over one by one, read or written


def clocked(columns: Columns, rates: Rates) -> Run:
    """When each op starts and ends."""
    program = columns.program
    count = len(program.ops)
    zero, nothing = np.zeros(count, dtype=np.int64), np.zeros(0, dtype=np.int64)
    one = zero.astype(np.int32)
    inside = columns.edges.inside
    nodes = Nodes(
        Pairs(inside.source, inside.target),
        Pairs(nothing, nothing),
        zero - 1,
        nothing,
        np.where(columns.lane == 0, 0, -1).astype(np.int32),
        one,
        zero,
        zero,
        np.zeros(1, dtype=np.int64),
    )
    moved = np.array([op.size_bytes for op in program.ops], dtype=np.float64)
    link = np.where(columns.lane == 0, NO_LINK, np.where(columns.lane == READ_LANE, 0, 1))
    costs = OpCosts(
        np.array([_computing_s(program.shape, op, rates) for op in program.ops]),
        moved,
        np.zeros(count),
        link.astype(np.int32),
        np.full(count, NO_LINK, dtype=np.int32),
    )
    return run_nodes(nodes, costs, np.array([rates.read_bytes_per_s, rates.write_bytes_per_s]), 1)


def timeline_of(program: GraphProgram, run: Run, lanes: tuple[str, ...]) -> Timeline:
    """An epoch's ops as they run."""
    spans = tuple(
        Span(0, 0, lanes[op.lane], op.word, float(run.start_s[at]), float(run.end_s[at]))
        for at, op in enumerate(program.ops)
    )
    return Timeline("simulate", spans)


def _computing_s(shape: Shape, op: Op, rates: Rates) -> float:
    item = op.item
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
    return flops / rates.product_flops + passed / rates.row_bytes_per_s
