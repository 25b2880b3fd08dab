"""What the verifier says of an epoch's program."""

from __future__ import annotations

from dataclasses import replace

import pytest
from graph_made import KINDS, drawn_graph, file_of, laid_out, tight

from ratrain.errors import Infeasible
from ratrain.graph.program import (
    MODES,
    ONE_SUM,
    WRITE_LANE,
    GraphProgram,
    Layout,
    build,
    cell_bytes_of,
)
from ratrain.graph.prove import Columns, prove
from ratrain.graph.trace import ADD
from ratrain.program.uses import FREE
from ratrain.program.verify import Rule


def spilling(kind: str = "gcn", mode: str = "bypass") -> GraphProgram:
    """A program whose data leave memory and come back."""
    spec = file_of(kind)
    return tight(laid_out(spec, drawn_graph(1), 5).in_mode(mode), mode, 1).program


def without(program: GraphProgram, op: int) -> GraphProgram:
    return replace(program, ops=program.ops[:op] + program.ops[op + 1 :])


def test_an_eviction_without_its_write_reads_what_an_earlier_epoch_left() -> None:
    program = spilling()
    spill = next(at for at, op in enumerate(program.ops) if op.lane == WRITE_LANE)
    rules = {finding.rule for finding in prove(Columns((without(program, spill),)))}
    assert Rule.READ_BEFORE_WRITE in rules


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bypass", *ONE_SUM])
@pytest.mark.parametrize("kind", KINDS)
def test_every_op_of_a_program_is_needed(kind: str, mode: str) -> None:
    program = spilling(kind, mode)
    assert prove(Columns((program,))) == []
    for op in range(len(program.ops)):
        if program.ops[op].item.verb != "step":
            assert prove(Columns((without(program, op),))), program.ops[op].word


def test_a_cell_that_is_taken_before_it_was_freed_is_found() -> None:
    program = spilling()
    at, op = next((n, op) for n, op in enumerate(program.ops) if any(u[0] == FREE for u in op.uses))
    kept = replace(op, uses=[use for use in op.uses if use[0] != FREE])
    changed = replace(program, ops=(*program.ops[:at], kept, *program.ops[at + 1 :]))
    found = prove(Columns((changed,)))
    assert Rule.OVERWRITTEN in {finding.rule for finding in found}


def test_ops_in_another_order_wait_for_ever_or_read_what_is_not_there() -> None:
    program = spilling()
    first = next(at for at, op in enumerate(program.ops) if op.item.verb == ADD)
    ops = list(program.ops)
    last = next(at for at, op in enumerate(ops) if op.item.verb == "step")
    ops.insert(last, ops.pop(first))
    assert prove(Columns((replace(program, ops=tuple(ops)),)))


def test_more_than_a_tier_holds_is_found() -> None:
    program = spilling()
    found = prove(Columns((program,)), {"host": 4096, "disk": 4096})
    assert {(f.rule, f.state) for f in found} == {
        (Rule.OVER_BUDGET, "host"),
        (Rule.OVER_BUDGET, "disk"),
    }


@pytest.mark.parametrize("mode", MODES)
def test_fewer_cells_than_an_op_needs_are_refused(mode: str) -> None:
    laid = laid_out(file_of("gat"), drawn_graph(1), 5).in_mode(mode)
    with pytest.raises(Infeasible, match="at once"):
        build(laid.shape, Layout(mode, 1, 2, cell_bytes_of(laid.shape)))


def test_the_farthest_next_use_never_reads_more_than_the_longest_unused() -> None:
    for seed in range(4):
        laid = laid_out(file_of("sage"), drawn_graph(seed), 6)
        for cells in (24, 32, 48):
            layouts = [Layout(m, 1, cells, cell_bytes_of(laid.shape)) for m in ("cache", "lru")]
            ours, lru = (build(laid.shape, layout) for layout in layouts)
            assert ours.read_bytes <= lru.read_bytes
