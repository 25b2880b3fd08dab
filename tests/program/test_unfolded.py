"""A program with all of its replicas means the same as the one in which they are folded."""

from __future__ import annotations

from dataclasses import replace

from costs_made import plain_costs
from hypothesis import given, settings
from made import Case, cases, small

from ratrain.program.kind import Kind
from ratrain.program.setup import Budget
from ratrain.program.unfolded import unfolded, unfolded_ops
from ratrain.program.verify import verify
from ratrain.simulate.simulate import step_time_s


@settings(max_examples=60)
@given(cases())
def test_every_replica_has_the_bounds_of_the_one_that_stood_for_it(case: Case) -> None:
    folded = case.program
    whole = unfolded(folded)
    verdict, of_folded = verify(whole.program), verify(folded)
    assert verdict.sound == of_folded.sound
    assert whole.program.setup.devices == folded.setup.devices
    assert len(whole.program.table) == unfolded_ops(folded)
    assert [bound.total_bytes for bound in verdict.bounds] == [
        of_folded.bounds[rank].total_bytes for rank in whole.folded_rank
    ]


@settings(max_examples=60)
@given(cases())
def test_replicas_that_take_equally_long_take_as_long_as_the_one_that_stood_for_them(
    case: Case,
) -> None:
    folded, whole = case.program, unfolded(case.program).program
    times_s = {Kind.F: 1.0, Kind.B: 2.0, Kind.I: 1.25, Kind.W: 0.75, Kind.R: 1.0}
    times_s |= {Kind.GradSync: 0.5, Kind.PrefetchW: 0.25, Kind.SEND_F: 0.125, Kind.UpdateShard: 0.5}
    assert step_time_s(whole, plain_costs(whole.table, times_s)) == step_time_s(
        folded, plain_costs(folded.table, times_s)
    )


def test_the_first_of_those_that_a_rank_stood_for_is_known() -> None:
    whole = unfolded(small("ratrain"))
    assert whole.folded_rank == (0, 1, 0, 1)
    assert whole.first_of_each == {0: 0, 1: 1}


def test_each_rank_keeps_its_budgets() -> None:
    program = small("ratrain")
    budgets = (Budget(0, 0, "", 500), Budget(1, 1, "", 700), Budget(0, 1, "host", 900))
    setup = replace(program.setup, budgets=budgets)
    whole = unfolded(program.with_setup(setup)).program.setup
    assert [whole.budget_of(rank) for rank in range(4)] == [500, 700, 500, 700]
    assert [whole.budget_of(rank, "host") for rank in range(4)] == [900] * 4


def test_a_program_without_alike_replicas_stays_what_it_is() -> None:
    program = unfolded(small("1f1b")).program
    assert unfolded(program).program is program
