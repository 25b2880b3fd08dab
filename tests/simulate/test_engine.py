"""The event loop: laws for every program, and small cases worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from costs_made import plain_costs, random_costs, with_work
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import Case, cases, replica, small

from ratrain.compiled import library
from ratrain.errors import ProgramError
from ratrain.program.actions import Kind, Lane
from ratrain.program.edges import LANE_EDGE
from ratrain.program.program import Program
from ratrain.program.replicas import Replica, Unit, stage
from ratrain.program.setup import Setup
from ratrain.program.skeletons import build
from ratrain.program.verify import verify
from ratrain.simulate.costs import Costs, Work, costs_of_ops
from ratrain.simulate.engine import Run, run

quick = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**32 - 1)
COLUMNS = ("start_s", "end_s", "start_seq", "end_seq", "cause", "peak_bytes", "peak_seq")


def clock(program: Program, costs: Costs, steps: int = 3, *, compiled: bool = True) -> Run:
    """The run of a program."""
    table = program.table
    op_costs = costs_of_ops(table, costs)
    return run(table, op_costs, costs.link_rate_bytes_per_s, steps, compiled=compiled)


def op_of(program: Program, rank: int, lane: Lane, number: int = 0) -> int:
    """The row of a lane's op."""
    table = program.table
    return int(np.flatnonzero((table.rank == rank) & (table.lane == lane))[number])


# ---- laws -------------------------------------------------------------------------------


@quick
@given(cases(), seeds)
def test_every_program_that_verifies_finishes_whatever_its_costs(case: Case, seed: int) -> None:
    ran = clock(case.program, random_costs(case.program.table, seed))
    assert np.all(ran.end_s >= ran.start_s)
    assert np.all(np.isfinite(ran.end_s))


@quick
@given(cases(), seeds)
@pytest.mark.slow
def test_peak_memory_stays_within_the_verifiers_bound_whatever_the_costs(
    case: Case, seed: int
) -> None:
    bounds = verify(case.program).bounds
    for each in (seed, seed + 1, seed + 2):
        ran = clock(case.program, random_costs(case.program.table, each), steps=4)
        for bound in bounds:
            assert ran.peak_bytes[bound.rank] <= bound.total_bytes


@settings(quick, max_examples=60)
@given(cases(max_micro_batches=4), seeds)
def test_the_compiled_engine_equals_its_python_twin_bit_by_bit(case: Case, seed: int) -> None:
    assert library("simulate", "engine_c") is not None, "the compiled engine is not built"
    costs = random_costs(case.program.table, seed)
    compiled, other = clock(case.program, costs), clock(case.program, costs, compiled=False)
    for column in COLUMNS:
        assert np.array_equal(getattr(compiled, column), getattr(other, column)), column


@settings(quick, max_examples=20)
@given(cases(), seeds)
def test_two_runs_are_identical(case: Case, seed: int) -> None:
    costs = random_costs(case.program.table, seed)
    first, other = clock(case.program, costs), clock(case.program, costs)
    assert all(np.array_equal(getattr(first, c), getattr(other, c)) for c in COLUMNS)


@quick
@given(cases(max_micro_batches=4), seeds)
def test_nothing_begins_before_what_it_waits_for_has_ended(case: Case, seed: int) -> None:
    table, steps = case.program.table, 3
    ran, n = clock(case.program, random_costs(table, seed), steps), len(table)
    for edges, shift in ((table.edges.inside, 0), (table.edges.across, 1)):
        for step in range(steps - shift):
            source, target = edges.source + step * n, edges.target + (step + shift) * n
            assert np.all(ran.end_s[source] <= ran.start_s[target])
            assert np.all(ran.end_seq[source] < ran.start_seq[target])


@quick
@given(cases(max_micro_batches=4), seeds)
def test_every_op_begins_at_once_when_its_cause_ends(case: Case, seed: int) -> None:
    table = case.program.table
    ran, n = clock(case.program, random_costs(table, seed)), len(table)
    caused = np.flatnonzero(ran.cause >= 0)
    cause = ran.cause[caused]
    together = (table.group[caused % n] >= 0) & (table.group[caused % n] == table.group[cause % n])
    waited_until = np.where(together, ran.start_s[cause], ran.end_s[cause])
    assert np.array_equal(ran.start_s[caused], waited_until)
    assert np.all(ran.start_s[ran.cause < 0] == 0)


@quick
@given(cases(), seeds)
def test_ops_of_a_group_begin_and_end_together(case: Case, seed: int) -> None:
    table = case.program.table
    ran, n = clock(case.program, random_costs(table, seed), steps=2), len(table)
    for number in np.unique(table.group[table.group >= 0]):
        members = np.flatnonzero(table.group == number)
        for step in range(2):
            assert len(set(ran.start_s[members + step * n])) == 1
            assert len(set(ran.end_s[members + step * n])) == 1


@quick
@given(cases(), seeds)
def test_with_clipping_no_update_begins_before_every_gradient_of_every_rank_is_reduced(
    case: Case, seed: int
) -> None:
    clipped = replace(case, choices=replace(case.choices, clip=True)).program
    table, steps = clipped.table, 2
    ran, n = clock(clipped, random_costs(table, seed), steps), len(table)
    made = np.isin(table.kind, [Kind.B, Kind.W, Kind.GradSync])
    update = table.kind == Kind.UpdateShard
    for step in range(steps):
        nodes = slice(step * n, (step + 1) * n)
        assert ran.start_s[nodes][update].min() >= ran.end_s[nodes][made].max()


@quick
@given(cases(), seeds)
def test_the_next_step_overwrites_nothing_that_a_save_still_reads(case: Case, seed: int) -> None:
    saved = replace(case, choices=replace(case.choices, save=True)).program
    table, steps = saved.table, 3
    ran, n = clock(saved, random_costs(table, seed), steps), len(table)
    saves = np.flatnonzero(table.kind == Kind.Save)
    ends = np.zeros((steps, len(table.states.units.rank)))
    for step in range(steps):
        ends[step, table.unit[saves]] = ran.end_s[saves + step * n]
    for writer in (Kind.UpdateShard, Kind.PrefetchW):
        ops = np.flatnonzero(table.kind == writer)
        for step in range(1, steps):
            assert np.all(ran.start_s[ops + step * n] >= ends[step - 1, table.unit[ops]])


@settings(quick, max_examples=60)
@given(cases(), seeds, st.floats(1.0, 5.0))
def test_a_slower_op_makes_nothing_end_earlier_where_no_link_is_shared(
    case: Case, seed: int, factor: float
) -> None:
    """With shared links this is not true: a late transfer may let another one by."""
    table = case.program.table
    costs = random_costs(table, seed, interrupts=False)
    alone = {
        kind: replace(work, volume_bytes=np.zeros_like(work.volume_bytes))
        for kind, work in costs.work.items()
    }
    costs = Costs(alone, costs.link_rate_bytes_per_s)
    rng = np.random.default_rng(seed)
    kind = Kind(int(rng.choice(np.unique(table.kind))))
    slower = with_work(costs, kind, replace(alone[kind], fixed_s=alone[kind].fixed_s * factor))
    before, after = clock(case.program, costs), clock(case.program, slower)
    assert np.all(after.end_s >= before.end_s - 1e-9 * np.abs(before.end_s))


@settings(quick, max_examples=40)
@given(st.sampled_from(["ratrain", "tuned", "zero3-heavy", "gpipe", "zb-h1"]), seeds)
def test_a_folded_replica_takes_the_time_of_four_written_out(name: str, seed: int) -> None:
    folded = small(name)
    single = replace(folded.setup.replicas[0], count=1)
    # `small` folds two replicas; states shared by four are made from four in both programs
    four = replace(folded.setup, replicas=(replace(single, count=4),))
    written = replace(folded.setup, replicas=(single,) * 4)
    lanes = dict(folded.lanes)
    every = {
        (rank + number * single.ranks, lane): actions
        for (rank, lane), actions in lanes.items()
        for number in range(4)
    }
    small_program = Program(four, lanes)
    large_program = Program(written, every)
    assert verify(large_program).sound
    # Without driving: where a transfer begins at the very moment at which a compute op of no length
    # ends, who pays for the driving is still a matter of sequence.
    costs = random_costs(small_program.table, seed, interrupts=False)
    links = len(costs.link_rate_bytes_per_s)
    offset = np.repeat(np.arange(4), len(small_program.table.states.units.rank)) * links

    def repeated(work: Work) -> Work:
        link, peer = np.tile(work.link, 4), np.tile(work.peer_link, 4)
        return Work(
            *(np.tile(column, 4) for column in (work.fixed_s, work.volume_bytes, work.interrupt_s)),
            link=np.where(link >= 0, link + offset, link),
            peer_link=np.where(peer >= 0, peer + offset, peer),
        )

    large_costs = Costs(
        {kind: repeated(work) for kind, work in costs.work.items()},
        np.tile(costs.link_rate_bytes_per_s, 4),
    )
    alone, apart = clock(small_program, costs), clock(large_program, large_costs)
    n = len(small_program.table)
    for number in range(4):
        mine = (large_program.table.rank // single.ranks) == number
        ends = apart.end_s.reshape(3, 4 * n)[:, mine].ravel()
        assert np.allclose(ends, alone.end_s, rtol=1e-9)
    assert np.array_equal(apart.peak_bytes, np.tile(alone.peak_bytes, 4))


# ---- by hand ----------------------------------------------------------------------------


def two_senders() -> Program:
    """Two pipelines of two stages and one micro-batch; nothing else happens."""
    stages = tuple(stage(number, (Unit(str(number)),), 1) for number in range(2))
    return build("1f1b", Setup((Replica(stages, 1), Replica(stages, 1))))


def sends_over_one_link(program: Program, forward_s: tuple[float, float]) -> Run:
    """Both first stages send one byte over one link of 1 B/s, after their forwards."""
    table = program.table
    costs = plain_costs(table, {})
    first, second = forward_s
    forward = replace(costs.work[Kind.F], fixed_s=np.array([first, 0.0, second, 0.0]))
    ones, zeros = np.ones(4), np.zeros(4)
    link, none = np.zeros(4, dtype=np.int64), np.full(4, -1, dtype=np.int64)
    costs = with_work(costs, Kind.F, forward)
    costs = with_work(costs, Kind.SEND_F, Work(zeros, ones, zeros, link, none))
    return clock(program, Costs(costs.work, np.ones(1)), steps=1)


def test_two_transfers_on_one_link_take_twice_as_long() -> None:
    program = two_senders()
    ran = sends_over_one_link(program, (1.0, 1.0))
    for rank in (0, 2):
        send = op_of(program, rank, Lane.SEND_F)
        assert ran.start_s[send] == 1.0
        assert ran.end_s[send] == 3.0


def test_a_transfer_slows_down_when_another_joins_and_speeds_up_when_it_leaves() -> None:
    program = two_senders()
    ran = sends_over_one_link(program, (1.0, 1.5))
    first, second = (op_of(program, rank, Lane.SEND_F) for rank in (0, 2))
    # The first is alone for 0.5 s, then both have half the link for 1 s, then the second is alone.
    assert (ran.start_s[first], ran.end_s[first]) == (1.0, 2.5)
    assert (ran.start_s[second], ran.end_s[second]) == (1.5, 3.0)


def test_the_narrower_end_of_a_transfer_counts() -> None:
    program = build(
        "1f1b", Setup((Replica(tuple(stage(n, (Unit(str(n)),), 1) for n in range(2)), 1),))
    )
    ones, zeros = np.ones(2), np.zeros(2)
    link = np.zeros(2, dtype=np.int64)
    costs = with_work(
        plain_costs(program.table, {}), Kind.SEND_F, Work(zeros, ones * 6, zeros, link, link + 1)
    )
    ran = clock(program, Costs(costs.work, np.array([3.0, 2.0])), steps=1)
    assert ran.end_s[op_of(program, 0, Lane.SEND_F)] == 3.0


def test_driving_a_transfer_prolongs_the_op_that_runs_and_a_rank_that_waits_works_it_off() -> None:
    program = build("1f1b", Setup((replica((1, 1), 3),)))
    table = program.table
    costs = plain_costs(table, {Kind.F: 1.0, Kind.B: 1.0})
    none = np.full(2, -1, dtype=np.int64)
    driven = Work(np.zeros(2), np.zeros(2), np.full(2, 0.25), none, none)
    ran = clock(program, with_work(costs, Kind.SEND_F, driven), steps=1)
    lane = np.flatnonzero((table.rank == 0) & (table.lane == Lane.COMPUTE))
    lengths = {table.word(int(op)): ran.end_s[op] - ran.start_s[op] for op in lane}
    # 0F0's message begins as 0F1 does; 0F1's while rank 0 waits for 0B0; 0F2's as 0B1 begins.
    expected = {"0F0": 1.0, "0F1": 1.25, "0B0": 1.0, "0F2": 1.0, "0B1": 1.25, "0B2": 1.0}
    assert lengths == {**expected, "0AllReady": 0.0}


def test_a_program_that_cannot_finish_says_so() -> None:
    program = small("1f1b")
    lanes = dict(program.lanes)
    key = (0, Lane.COMPUTE)
    lanes[key] = tuple(reversed(lanes[key]))
    stuck = replace(program, lanes=lanes)
    for compiled in (True, False):
        with pytest.raises(ProgramError, match="deadlocks after"):
            clock(stuck, plain_costs(stuck.table, {}), compiled=compiled)


def test_a_kind_without_a_cost_is_named() -> None:
    program = small("1f1b")
    costs = plain_costs(program.table, {})
    less = {kind: work for kind, work in costs.work.items() if kind is not Kind.SEND_F}
    with pytest.raises(ProgramError, match="no time for SEND_F"):
        clock(program, Costs(less, costs.link_rate_bytes_per_s))


def test_bytes_without_a_link_are_refused() -> None:
    program = small("1f1b")
    costs = plain_costs(program.table, {})
    units = len(program.table.states.units.rank)
    for link in (-1, 7):
        work = replace(
            costs.work[Kind.SEND_F], volume_bytes=np.ones(units), link=np.full(units, link)
        )
        with pytest.raises(ProgramError, match="SEND_F"):
            clock(program, with_work(costs, Kind.SEND_F, work))


@pytest.mark.parametrize("compiled", [True, False])
def test_progress_ends_below_the_number_of_ops(compiled: bool) -> None:
    program = build("1f1b", Setup((replica((1,) * 8, 64),)))
    costs = plain_costs(program.table, {Kind.F: 1.0, Kind.B: 2.0})
    seen: list[tuple[int, int]] = []
    op_costs = costs_of_ops(program.table, costs)
    run(
        program.table, op_costs, costs.link_rate_bytes_per_s, 3,
        compiled=compiled, progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert seen
    assert all(0 <= done <= total == 3 * len(program.table) for done, total in seen)
    assert seen == sorted(seen)


def test_lane_order_is_kept_on_every_lane() -> None:
    program = small("ratrain")
    table = program.table
    ran = clock(program, random_costs(table, 1), steps=1)
    inside = table.edges.inside
    lanes = inside.kind == LANE_EDGE
    assert np.all(ran.end_s[inside.source[lanes]] <= ran.start_s[inside.target[lanes]])
