"""Tied embeddings: where their sums stand, whom they hold up, and what cannot be tied."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import Case, cases, replica, small

from ratrain.errors import ProgramError
from ratrain.program.actions import NONE, Action, Kind, Lane
from ratrain.program.passes.tied import tie_embeddings
from ratrain.program.pipelining.csv import write_csv
from ratrain.program.program import Program
from ratrain.program.replicas import Replica, Unit, stage
from ratrain.program.setup import Accumulation, Setup
from ratrain.program.strategies import Choices, apply_strategy, strategy
from ratrain.program.text import read_text, write_text
from ratrain.program.verify import verify

quick = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def words(program: Program, rank: int, lane: Lane) -> list[str]:
    return [f"{a.stage}.{a.unit}{a.kind.name}" for a in program.lane(rank, lane)]


def test_the_head_is_updated_last_behind_a_sum_of_what_is_reduced() -> None:
    program = small("ratrain", tie=True, save=True)
    assert words(program, 0, Lane.REDUCE) == [
        *("0.2GradSync", "0.1GradSync", "0.0GradSync", "0.0TieSync")
    ]
    assert words(program, 1, Lane.REDUCE) == [
        *("1.2GradSync", "1.1GradSync", "1.0GradSync", "1.2TieSync")
    ]
    for lane in (Lane.UPDATE, Lane.DISK):
        assert [a.unit for a in program.lane(1, lane)] == [1, 0, 2]


def test_a_rank_with_both_copies_adds_them_in_one_op() -> None:
    program = small("ratrain", (2,), tie=True)
    assert words(program, 0, Lane.REDUCE) == [
        *("0.3GradSync", "0.2GradSync", "0.1GradSync", "0.0GradSync", "0.0TieSync")
    ]
    assert (program.table.group == -1).all()


def test_a_single_replica_sums_its_copies_where_nothing_is_reduced() -> None:
    setup = Setup((replica((1, 1), 4, ends=True),))
    program = apply_strategy(strategy("ratrain"), setup, Choices(tie=True))
    assert words(program, 0, Lane.REDUCE) == ["0.0TieSync"]
    assert words(program, 1, Lane.REDUCE) == ["1.1TieSync"]
    assert verify(program).sound


@quick
@given(cases())
def test_each_replica_has_one_sum_and_both_its_halves_share_a_group(case: Case) -> None:
    table = case.program.table
    ties = np.flatnonzero(table.kind == Kind.TieSync)
    assert bool(len(ties)) == case.choices.tie
    for number, pipeline in enumerate(case.setup.replicas if case.choices.tie else ()):
        of_replica = ties[table.states.units.replica[table.unit[ties]] == number]
        assert len(of_replica) == min(pipeline.ranks, 2)
        groups = set(table.group[of_replica].tolist())
        assert len(groups) == 1
        assert (groups == {-1}) == (pipeline.ranks == 1)
        assert not np.isin(table.group[np.setdiff1d(np.arange(len(table)), of_replica)],
                           [*(groups - {-1})]).any()  # fmt: skip


@quick
@given(cases(tied=True))
def test_tying_keeps_every_other_op_and_its_lane(case: Case) -> None:
    tied = case.program
    plain = replace(case, choices=replace(case.choices, tie=False)).program
    for key in {*tied.lanes, *plain.lanes}:
        rest = [action for action in tied.lane(*key) if action.kind is not Kind.TieSync]
        assert sorted(rest) == sorted(plain.lane(*key))
        if key[1] not in (Lane.UPDATE, Lane.DISK, Lane.LOAD, Lane.STORE):
            assert rest == list(plain.lane(*key))


@quick
@given(cases(), st.integers(1, 10**6))
def test_only_a_tied_program_says_so_in_its_text(case: Case, budget_bytes: int) -> None:
    setup = replace(case.setup, budget_bytes=budget_bytes)
    program = apply_strategy(case.strategy, setup, case.choices)
    text = write_text(program)
    assert ("\ntied yes\n" in text) == case.choices.tie
    assert "tied no" not in text
    assert read_text(text) == program


def test_the_csv_form_leaves_ties_out() -> None:
    for comms in (False, True):
        plain, tied = (write_csv(small("1f1b", tie=tie), comms=comms) for tie in (False, True))
        assert plain == tied


def test_whole_gradients_are_what_is_tied() -> None:
    setup = Setup((replica((2, 2), 4, 2, ends=True),))
    sharded = Choices(accumulation=Accumulation.SHARDED, tie=True)
    with pytest.raises(ProgramError, match="sharded accumulation does not keep"):
        apply_strategy(strategy("ratrain"), setup, sharded)
    with pytest.raises(ProgramError, match="sharded accumulation does not keep"):
        replace(setup, sharding=2, accumulation=Accumulation.SHARDED, tied=True)


def test_one_unit_alone_is_not_tied_to_itself() -> None:
    with pytest.raises(ProgramError, match="cannot be tied to itself"):
        Setup((Replica((stage(0, (Unit("all"),)),), 1),), tied=True)


@pytest.mark.parametrize(("tied", "unit"), [(True, 1), (False, 0)])
def test_a_sum_of_a_unit_that_is_not_tied_is_refused(tied: bool, unit: int) -> None:
    program = small("ratrain", tie=tied)
    stray = Action(Kind.TieSync, 0, unit, NONE)
    lanes = {**program.lanes, (0, Lane.REDUCE): (*program.lane(0, Lane.REDUCE), stray)}
    with pytest.raises(ProgramError, match="names a unit that is not tied"):
        verify(replace(program, lanes=lanes))


def test_tying_costs_no_memory_while_the_sum_is_reduced_in_place() -> None:
    plain, tied = small("megatron"), tie_embeddings(small("megatron"))
    bounds = [[b.total_bytes for b in verify(program).bounds] for program in (plain, tied)]
    assert bounds[0] == bounds[1]
