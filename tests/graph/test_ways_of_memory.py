"""Ways of using memory, by the bytes that they move: packed files of boundary rows, and what other
systems do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graph_made import drawn_graph, file_of, grid_edges, laid_out

from ratrain.errors import Infeasible
from ratrain.graph.csr import csr_of
from ratrain.graph.partition import of_labels
from ratrain.graph.plan import Laid, cut, in_order, planned
from ratrain.graph.program import (
    MODES,
    READ_LANE,
    WRITE_LANE,
    GraphProgram,
    Layout,
    build,
    cell_bytes_of,
    moved_bytes,
)
from ratrain.graph.prove import require_sound
from ratrain.graph.spec import MODE_NAMES
from ratrain.graph.trace import ADD, SNAPSHOT

SIDE, ACROSS = 40, 4
PARTS, BLOCK = ACROSS**2, SIDE // ACROSS


def test_every_way_that_a_file_may_name_is_described() -> None:
    assert set(MODES) == set(MODE_NAMES)


def grid(kind: str = "gcn", mode: str = "cache") -> Laid:
    """A grid cut into squares, of which each needs a line of each neighbour."""
    spec = file_of(kind, hidden=64)
    data, ends = drawn_graph(1, nodes=SIDE * SIDE, width=64), grid_edges(SIDE)
    data = replace(data, graph=csr_of(ends[0], ends[1], SIDE * SIDE, directed=False))
    row, column = np.divmod(np.arange(SIDE * SIDE), SIDE)
    partition = of_labels(row // BLOCK * ACROSS + column // BLOCK, PARTS)
    laid = cut(spec, data, in_order(spec, data.graph, partition), partition, "squares")
    return laid.in_mode(mode)


def built(laid: Laid, mode: str, cells: int) -> GraphProgram:
    layout = Layout(mode, 1, cells, cell_bytes_of(laid.shape))
    program = build(laid.shape, layout)
    require_sound([program], {"host": cells * layout.cell_bytes})
    return program


def test_of_a_mesh_in_little_memory_packed_files_move_the_fewest_bytes_and_are_taken() -> None:
    spec, laid = file_of("gcn"), grid()
    rows_bytes = 4 * SIDE * SIDE // PARTS * 64 * 8
    budget = laid.standing_bytes + laid.working_bytes(1) + rows_bytes
    plan = planned(laid, replace(spec.memory, budget_bytes=budget), Path("/"))
    moved = {
        each.layout.mode: each.read_bytes + each.written_bytes
        for each in plan.candidates[::-1]
        if not each.why
    }
    assert plan.program.layout.mode == "packed"
    assert moved["packed"] < 0.8 * min(moved["cache"], moved["bypass"])
    assert plan.peak_bytes <= budget


def test_packed_files_read_of_another_partition_what_is_summed_and_no_more() -> None:
    program = built(grid(mode="packed"), "packed", 60)
    rows = [op for op in program.ops if op.lane == READ_LANE and op.datum and op.datum.to >= 0]
    neighbours = 4 * ACROSS * (ACROSS - 1)  # pairs, both ways
    assert len(rows) == neighbours * 6  # of three sums forward and three back
    for op in rows:
        assert op.datum is not None
        assert program.shape.count(op.datum) == BLOCK
        assert op.size_bytes == moved_bytes(BLOCK * program.shape.row_bytes(op.datum))


def test_a_snapshot_has_the_rows_of_a_sum_and_its_backward_reads_it() -> None:
    laid = grid(mode="snapshots")
    program, plain = built(laid, "snapshots", 60), built(grid(), "bypass", 60)
    snapshots = [op for op in program.ops if op.datum and op.datum.family == SNAPSHOT]
    along = np.array([1, *[2] * (ACROSS - 2), 1])
    rows = BLOCK * BLOCK + (along[:, None] + along).ravel() * BLOCK
    wanted = sum(moved_bytes(int(count) * 64 * 8) for count in rows) * 3
    for lane in (READ_LANE, WRITE_LANE):
        assert sum(op.size_bytes for op in snapshots if op.lane == lane) == wanted
    assert program.written_bytes == plain.written_bytes + wanted


def test_a_layer_that_fits_stays_as_grinnder_has_it_and_goes_to_the_disk_where_it_does_not() -> (
    None
):
    laid = grid()
    layer = PARTS * -(-SIDE * SIDE // PARTS * 64 * 8 // cell_bytes_of(laid.shape))
    roomy, tight = (built(laid, "grinnder", cells) for cells in (3 * layer, 2 * layer))
    made = {d for op in tight.ops for d in op.item.makes if op.item.verb in ("F", "B")}
    written = {op.datum for op in tight.ops if op.lane == WRITE_LANE}
    assert written == made
    assert roomy.written_bytes < tight.written_bytes


def test_grinnder_needs_what_a_sum_needs_at_once() -> None:
    laid = laid_out(file_of("gcn"), drawn_graph(1), 6)
    needed = max(
        len(
            {
                d
                for item in built(laid, "lru", 64).items
                if item[:3] == (ADD, 1, part)
                for d in item.reads
            }
        )
        for part in range(6)
    )
    assert built(laid, "lru", needed - 1).read_bytes
    assert built(laid, "grinnder", needed + 1).read_bytes
    with pytest.raises(Infeasible, match="at once"):
        built(laid, "grinnder", needed - 1)
