"""What no order of a step's work can beat: no program's step is shorter, whatever its order."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from costs_made import plain_costs, random_costs, with_work
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import Case, cases, small

from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.simulate.costs import NO_LINK, Costs, Floats, Work, costs_of_ops
from ratrain.simulate.engine import run
from ratrain.simulate.step_bound import ChainBound, StepBound, one_machine_s, step_bound
from ratrain.simulate.step_bound_words import bound_json, bound_sentence

quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**31 - 1)
STEPS = 5


def bound_of(program: Program, costs: Costs) -> StepBound:
    table = program.table
    bound = step_bound(table, costs_of_ops(table, costs), costs.link_rate_bytes_per_s)
    assert bound is not None
    return bound


def step_ends(program: Program, costs: Costs, chain: ChainBound) -> Floats:
    """When the unit that a chain goes through ends, in each step of a run."""
    table, units = program.table, program.table.states.units
    names = np.array([unit.name for member in table.setup.members for unit in member.units])
    ends = (table.kind == chain.ending) & (names[table.unit] == chain.unit)
    ends &= units.stage_in_replica[table.unit] == chain.stage
    ends &= units.replica[table.unit] == table.setup.replica_of(chain.rank)
    ran = run(table, costs_of_ops(table, costs), costs.link_rate_bytes_per_s, STEPS)
    return ran.end_s.reshape(STEPS, len(table))[:, ends].max(axis=1)


@pytest.mark.slow
@settings(quick, max_examples=400)
@given(cases(), seeds)
def test_no_step_of_any_program_is_shorter_than_the_chain_through_a_unit(
    case: Case, seed: int
) -> None:
    program = case.program
    costs = random_costs(program.table, seed)
    chain = bound_of(program, costs).chained
    if chain is None:
        return
    lengths = np.diff(step_ends(program, costs, chain))
    assert lengths.min() >= chain.time_s * (1 - 1e-9) - 1e-9


@quick
@given(cases(), seeds)
def test_the_bound_is_at_least_what_the_busiest_rank_computes_and_the_busiest_link_carries(
    case: Case, seed: int
) -> None:
    program = case.program
    costs = random_costs(program.table, seed)
    table, of_ops = program.table, costs_of_ops(program.table, costs)
    computes = table.lane == Lane.COMPUTE
    computed_s = np.bincount(table.rank[computes], of_ops.fixed_s[computes]).max()
    rates = costs.link_rate_bytes_per_s
    carried = np.zeros(len(rates))
    for link in (of_ops.link, of_ops.peer_link):
        np.add.at(carried, link[link >= 0], of_ops.volume_bytes[link >= 0])
    bound = bound_of(program, costs)
    assert bound.busiest.time_s == pytest.approx(max(computed_s, (carried / rates).max()))
    assert bound.time_s >= bound.busiest.time_s


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=6
    )
)
def test_one_machine_takes_what_its_worst_set_of_jobs_takes(
    jobs: list[tuple[int, int, int]],
) -> None:
    sets = (chosen for size in range(1, len(jobs) + 1) for chosen in combinations(jobs, size))
    worst = max(
        min(head for head, _, _ in chosen)
        + sum(time for _, time, _ in chosen)
        + min(tail for _, _, tail in chosen)
        for chosen in sets
    )
    assert one_machine_s(jobs) == worst


def exchanging(program: Program, reduce_bytes: float, gather_bytes: float) -> Costs:
    """Forward takes 1 s and backward 2 s; each rank has a link out of 1 byte/s."""
    costs = plain_costs(program.table, {Kind.F: 1.0, Kind.B: 2.0})
    units = program.table.states.units
    none = np.zeros(len(units.rank))
    for kind, size in ((Kind.GradSync, reduce_bytes), (Kind.PrefetchW, gather_bytes)):
        volume = np.full(len(units.rank), size)
        no_peer = np.full(len(units.rank), NO_LINK)
        costs = with_work(costs, kind, Work(none, volume, none, units.rank, no_peer))
    return Costs(costs.work, np.ones(program.table.setup.ranks))


def test_a_replica_s_first_unit_exchanges_while_nothing_computes() -> None:
    bound = bound_of(program := small("ratrain", (2,), 4), exchanging(program, 0.5, 0.25))
    chain = bound.chained
    assert chain is not None
    assert bound.busiest.time_s == 4 * 4 * 3  # four micro-batches of four units
    assert (chain.inside.time_s, chain.outside.time_s) == (48, 0.75)
    assert chain.unit == "e"


def test_a_long_exchange_must_lie_outside_the_last_unit_s_computation() -> None:
    bound = bound_of(program := small("ratrain", (2,), 4), exchanging(program, 10, 5))
    chain = bound.chained
    assert chain is not None
    assert bound.busiest.time_s == 4 * 15
    assert chain.unit == "h"
    assert chain.time_s == 4 * 3 + 4 * 15


def test_what_a_stage_exchanges_cannot_hide_behind_the_stages_that_wait_for_it() -> None:
    bound = bound_of(program := small("ratrain", (1, 3), 6), exchanging(program, 10, 5))
    chain = bound.chained
    assert chain is not None
    assert (chain.stage, chain.unit) == (0, "0")
    # forward of its last unit, six micro-batches of four units, its last backward
    assert chain.inside.time_s == 1 + 6 * 4 * 3 + 2
    assert chain.outside.time_s == 2 * 15  # of both its units


def test_the_bound_says_in_words_and_in_json_which_work_makes_it() -> None:
    bound = bound_of(program := small("ratrain", (1, 3), 6), exchanging(program, 10, 5))
    sentence = bound_sentence(bound, 120.0)
    assert "no order of this work takes less than 105 s (87.5 % of this step)" in sentence
    assert "from unit 0's first forward on rank 0" in sentence
    assert "reductions and weight gathers of 2 units take a link of rank 0 30 s" in sentence
    assert "rank 1 computes for 72 s" in sentence
    body = bound_json(bound)
    assert body is not None
    assert body["step_time_s"] == body["chain"]["step_time_s"] == 105
    assert body["busiest_time_s"] == 72
