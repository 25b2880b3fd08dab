"""Who waits for whom, compiled and in Python."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import Case, cases, small

from ratrain.compiled import library
from ratrain.program.edges import EdgeList, Edges, derive_edges
from ratrain.program.kind import Lane
from ratrain.program.table import Table
from ratrain.program.uses import Uses


@settings(max_examples=50, deadline=None)
@given(cases(max_micro_batches=12))
def test_compiled_edges_equal_those_of_the_python_twin(case: Case) -> None:
    assert library("program", "edges_c") is not None, "the compiled edges are not built"
    table = case.program.table
    assert_alike(edges_of(table, table.uses), edges_of(table, table.uses, compiled=False))


@settings(max_examples=50, deadline=None)
@given(cases(max_micro_batches=12), st.integers(0, 2**32 - 1))
def test_they_are_equal_for_programs_that_break_rules_of_use(case: Case, seed: int) -> None:
    table = case.program.table
    broken = mixed_up(table.uses, seed)
    assert_alike(edges_of(table, broken), edges_of(table, broken, compiled=False))


def test_uses_at_random_break_every_rule_of_use() -> None:
    table = small("ratrain", save=True).table
    edges = edges_of(table, mixed_up(table.uses, 0))
    for problem in (edges.unwritten, edges.written_twice, edges.freed_twice, edges.unfreed):
        assert len(problem)


def mixed_up(uses: Uses, seed: int) -> Uses:
    """Uses of the same versions at random: some twice, some never, by any op."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(uses.op), size=len(uses.op))
    op, mode = rng.permutation(uses.op), rng.permutation(uses.mode)
    return Uses(op, uses.state[rows], uses.version[rows], mode)


@settings(max_examples=10, deadline=None)
@given(cases(max_micro_batches=4))
def test_a_use_of_a_state_that_does_not_exist_is_refused(case: Case) -> None:
    table, uses = case.program.table, case.program.table.uses
    beyond = Uses(uses.op, uses.state + len(table.states.rank), uses.version, uses.mode)
    with pytest.raises(IndexError):
        edges_of(table, beyond)


def edges_of(table: Table, uses: Uses, *, compiled: bool = True) -> Edges:
    lane = table.rank * len(Lane) + table.lane
    return derive_edges(uses, table.states, lane, compiled=compiled)


def assert_alike(ours: Edges, twin: Edges) -> None:
    for listed in fields(Edges):
        compiled, other = getattr(ours, listed.name), getattr(twin, listed.name)
        if isinstance(compiled, EdgeList):
            for column in fields(EdgeList):
                assert_same(getattr(compiled, column.name), getattr(other, column.name))
        else:
            assert_same(compiled, other)


def assert_same(these: np.ndarray, other: np.ndarray) -> None:
    assert these.dtype == other.dtype
    assert np.array_equal(these, other)
