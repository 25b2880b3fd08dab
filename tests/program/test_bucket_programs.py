"""Backward that sends: a GradSync happens together with the backward that fills its buckets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made import replica

from ratrain.errors import ProgramError
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.setup import Accumulation, Setup
from ratrain.program.strategies import Choices, apply_strategy, strategy
from ratrain.program.text import read_text, write_text
from ratrain.program.verify import Rule, verify
from ratrain.program.walk import walk

BUCKET = 64


def made(*, sends: bool = True, name: str = "ratrain", micro_batches: int = 4) -> Program:
    setup = Setup((replica((2, 2), micro_batches, 3, 2, True),))
    choices = Choices(accumulation=Accumulation.SHARDED, bucket_bytes=BUCKET, backward_sends=sends)
    chosen = replace(strategy("ratrain"), skeleton=name) if name != "ratrain" else strategy(name)
    return apply_strategy(chosen, setup, choices)


@pytest.mark.parametrize(("name", "filling"), [("ratrain", Kind.B), ("zb-h1", Kind.W)])
def test_a_reduction_happens_together_with_what_makes_its_gradient(
    name: str, filling: Kind
) -> None:
    program = made(name=name)
    table = program.table
    assert verify(program).sound
    syncs = np.flatnonzero(table.kind == Kind.GradSync)
    assert len(syncs) == (table.kind == filling).sum() > 0
    for sync in syncs:
        (beside,) = set(np.flatnonzero(table.group == table.group[sync])) - {sync}
        assert table.kind[beside] == filling
        assert table.unit[beside] == table.unit[sync]
        assert table.micro_batch[beside] == table.micro_batch[sync]


def test_two_buckets_are_all_that_is_held_of_gradients_that_are_not_reduced() -> None:
    for bound in verify(made()).bounds:
        assert bound.by_family["transit"] == 2 * BUCKET
        assert "gradient" not in bound.by_family


def test_a_program_without_buckets_that_backward_fills_says_nothing_of_them() -> None:
    assert "backward_sends" not in write_text(made(sends=False))


def test_a_program_whose_backward_sends_is_read_as_it_was_written() -> None:
    program = made()
    assert "backward_sends yes" in write_text(program)
    again = read_text(write_text(program))
    assert isinstance(again, Program)
    assert again.setup == program.setup
    assert again.lanes == program.lanes


def test_reductions_in_another_order_than_their_backwards_stand_still() -> None:
    program = made()
    lane = list(program.lane(0, Lane.REDUCE))
    lane[0], lane[1] = lane[1], lane[0]
    swapped = replace(program, lanes={**program.lanes, (0, Lane.REDUCE): tuple(lane)})
    findings = verify(swapped).findings
    assert Rule.DEADLOCK in {finding.rule for finding in findings}


def test_a_reduction_without_the_backward_that_fills_its_buckets_is_found() -> None:
    program = made()
    lane = [a for a in program.lane(0, Lane.REDUCE) if a.kind is Kind.GradSync]
    fewer = replace(program, lanes={**program.lanes, (0, Lane.REDUCE): tuple(lane[1:])})
    assert not verify(fewer).sound


def test_the_compiled_walk_and_its_twin_agree_on_pairs() -> None:
    table = made().table
    compiled, twin = walk(table), walk(table, compiled=False)
    assert np.array_equal(compiled.order, twin.order)


def test_backward_that_sends_needs_sharded_accumulation_and_buckets() -> None:
    setup = made().setup
    for without in (
        {"accumulation": Accumulation.LOCAL},
        {"bucket_bytes": None},
        {"transit_slots": 0},
    ):
        with pytest.raises(ProgramError, match="needs sharded accumulation, and buckets"):
            replace(setup, **without)  # type: ignore[arg-type]
