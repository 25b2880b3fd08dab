"""Network ops in turn: one queue a rank never waits for another's, and the verifier sees that."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import replace
from graphlib import TopologicalSorter

import numpy as np
import pytest
from hypothesis import given, settings
from made import Case, cases, replica, small

from ratrain.program.edges import LANE_EDGE, EdgeList
from ratrain.program.kind import Kind
from ratrain.program.passes.turns import network_in_turn
from ratrain.program.program import Program
from ratrain.program.setup import Setup
from ratrain.program.strategies import Choices, apply_strategy, strategy
from ratrain.program.table import Table
from ratrain.program.text.read import read_text
from ratrain.program.text.write import write_text
from ratrain.program.verify import Rule, verify


def sends_tensors(kind: int) -> bool:
    """But those of a tensor group."""
    named = Kind(kind)
    return named.is_message or named.is_collective or named.is_tie


def turns_of(table: Table, rank: int) -> list[int]:
    """A rank's network ops in the one order that its lanes and turns leave; an error where they
    leave several."""
    own = [
        op
        for op in np.flatnonzero(table.rank == rank).tolist()
        if sends_tensors(int(table.kind[op]))
    ]
    before: dict[int, set[int]] = {op: set() for op in own}
    for one, other in itertools.pairwise(own):
        if table.lane[one] == table.lane[other]:
            before[other].add(one)
    inside = table.edges.inside
    for source, target, kind, state in zip(
        *(c.tolist() for c in (inside.source, inside.target, inside.kind, inside.state)),
        strict=True,
    ):
        if kind == LANE_EDGE and state < 0 and source in before and target in before:
            before[target].add(source)
    sorter, order = TopologicalSorter(before), list[int]()
    sorter.prepare()
    while sorter.is_active():
        (only,) = sorter.get_ready()
        order.append(only)
        sorter.done(only)
    return order


def left_by_single_queues(table: Table) -> int:
    """Network ops that never run where each rank does one at a time, and an op together with its
    partners alone: whatever a communicator would do with them. Compute is always done."""
    queues = {rank: deque(turns_of(table, rank)) for rank in range(table.setup.ranks)}
    partners: dict[int, list[int]] = {}
    for queue in queues.values():
        for op in queue:
            partners.setdefault(int(table.group[op]), []).append(op)
    moved = True
    while moved:
        moved = False
        for queue in queues.values():
            while queue:
                group = int(table.group[queue[0]])
                together = [queue[0]] if group < 0 else partners[group]
                if any(queues[int(table.rank[op])][0] != op for op in together):
                    break
                for op in together:
                    queues[int(table.rank[op])].popleft()
                moved = True
    return sum(map(len, queues.values()))


@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_ranks_that_do_one_network_op_at_a_time_never_wait_for_each_other(case: Case) -> None:
    program = network_in_turn(case.program)
    assert verify(case.program).sound
    assert verify(program).sound
    assert left_by_single_queues(program.table) == 0


@settings(max_examples=20, deadline=None)
@given(case=cases(tied=True))
def test_sums_of_tied_copies_have_their_turn_too(case: Case) -> None:
    program = network_in_turn(case.program)
    assert verify(program).sound
    assert left_by_single_queues(program.table) == 0


def test_a_step_begins_its_turns_behind_those_of_the_step_before() -> None:
    table = network_in_turn(small("ratrain")).table
    across = table.edges.across
    pairs = set(zip(across.source.tolist(), across.target.tolist(), strict=True))
    for rank in range(table.setup.ranks):
        turns = turns_of(table, rank)
        assert (turns[-1], turns[0]) in pairs or table.lane[turns[-1]] == table.lane[turns[0]]


def test_turns_that_cross_are_a_deadlock_for_the_verifier() -> None:
    """Each of two ranks waits for the other's gradient before it sends its own activation."""
    program = network_in_turn(
        apply_strategy(strategy("1f1b"), Setup((replica((1, 1), 2),)), Choices())
    )
    table = program.table
    assert verify(program).sound
    sends = [op for op in turns_of(table, 0) if Kind(int(table.kind[op])) is Kind.SEND_F]
    gradients = [op for op in turns_of(table, 0) if Kind(int(table.kind[op])) is Kind.RECV_B]
    inside = table.edges.inside
    crossed = EdgeList(
        np.append(inside.source, gradients[0]),
        np.append(inside.target, sends[0]),
        np.append(inside.kind, np.int8(LANE_EDGE)),
        np.append(inside.state, -1),
    )
    wrong = replace(table)
    wrong.__dict__["edges"] = replace(table.edges, inside=crossed)
    (finding,) = verify(wrong).findings
    assert finding.rule is Rule.DEADLOCK
    assert "0SEND_F0 on rank 0" in finding.message


@pytest.mark.parametrize("name", ["ratrain", "zb-h1", "interleaved"])
def test_the_text_of_a_program_says_that_its_network_ops_take_turns(name: str) -> None:
    program = network_in_turn(small(name))
    text = write_text(program)
    assert "network_in_turn yes" in text
    again = read_text(text, "here")
    assert isinstance(again, Program)
    assert again.setup.network_in_turn
    assert turns_of(again.table, 0) == turns_of(program.table, 0)
    assert "network_in_turn" not in write_text(small(name))


def test_messages_of_both_directions_take_turns_as_the_pipeline_makes_them() -> None:
    """The first stage of 1F1B does not keep its second activation back for the first gradient."""
    setup = Setup((replica((1, 1), 4),))
    program = network_in_turn(apply_strategy(strategy("1f1b"), setup, Choices()))
    words = [program.table.word(op) for op in turns_of(program.table, 0)]
    messages = [word for word in words if "SEND" in word or "RECV" in word]
    assert messages[:3] == ["0SEND_F0", "0SEND_F1", "0RECV_B0"]
