"""Lanes and the ledger by themselves: who waits for whom, for memory, and what stops them."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import Case, cases, replica, small

from ratrain.errors import CheckpointError, Infeasible, PeerDown
from ratrain.program.actions import Kind, Lane
from ratrain.program.families import DEVICE
from ratrain.program.program import Program
from ratrain.program.setup import Setup
from ratrain.program.strategies import STRATEGIES, Choices, apply_strategy, strategy
from ratrain.program.verify import verify
from ratrain.runtime.step.lanes import Lanes
from ratrain.runtime.step.ledger import Ledger, Ledgers, ledgers_of
from ratrain.runtime.step.schedule import HeldState, LocalOp, Schedule, schedule_of

STEPS = 3
PATIENCE_S = 30.0
SMALL = [name for name in STRATEGIES if name not in ("megatron-interleaved",)]


# ---- a rank's part of a program -------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(case=cases(max_micro_batches=4))
def test_the_ranks_ops_are_the_program_s_and_their_waits_are_among_its(case: Case) -> None:
    """That these imply all of the program's is tested in `test_deferred_runs.py`."""
    table = case.program.table
    inside, across = table.edges.inside, table.edges.across
    for rank in range(table.setup.ranks):
        schedule = schedule_of(case.program, rank)
        mine = np.flatnonzero(table.rank == rank)
        assert [op.word for op in schedule.ops] == [table.word(op) for op in mine.tolist()]
        assert [op.lane for op in schedule.ops] == [Lane(int(lane)) for lane in table.lane[mine]]
        for edges, name in ((inside, "waits"), (across, "waits_before")):
            pairs = set(zip(edges.source.tolist(), edges.target.tolist(), strict=True))
            for source, target in pairs:
                assert table.rank[source] == table.rank[target], "a wait that nobody carries"
            for op in schedule.ops:
                for other in getattr(op, name):
                    assert (int(mine[other]), int(mine[op.number])) in pairs
                    assert schedule.ops[other].lane is not op.lane


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(case=cases(max_micro_batches=4))
def test_what_a_step_brings_to_life_it_gives_back(case: Case) -> None:
    for rank in range(case.program.setup.ranks):
        held: Counter[str] = Counter()
        for op in schedule_of(case.program, rank).ops:
            held.update({state.family: 0 for state in op.births})
            for sign, states in ((1, op.births), (-1, op.deaths)):
                for state in states:
                    held[state.family] += sign * state.size_bytes
        assert not any(held.values())


# ---- whole programs with nothing to compute -------------------------------------------------


class Meetings:
    """Ops that happen together wait for each other here; a send's receive can wait beforehand."""

    def __init__(self, program: Program) -> None:
        table = program.table
        self._expected = Counter(int(g) for g in table.group.tolist() if g >= 0)
        self._came: Counter[tuple[int, int]] = Counter()
        self._changed = threading.Condition()

    def come(self, group: int, step: int) -> None:
        with self._changed:
            self._came[group, step] += 1
            self._changed.notify_all()
            everyone = self._expected[group]
            arrived = self._changed.wait_for(
                lambda: self._came[group, step] >= everyone, PATIENCE_S
            )
            assert arrived, "a partner did not come"

    def others_are_there(self, group: int, step: int) -> None:
        with self._changed:
            assert self._changed.wait_for(
                lambda: self._came[group, step] >= self._expected[group] - 1, PATIENCE_S
            )


def played(program: Program, seed: int) -> list[Ledger]:
    """All ranks' lanes with sleeps in place of work, each under exactly the verifier's bound; every
    wait of the program is checked."""
    table, meetings = program.table, Meetings(program)
    verdict = verify(program)
    bounds = {
        (bound.rank, bound.tier): bound.total_bytes
        for bound in (*verdict.bounds, *verdict.lower_bounds)
    }
    clock = itertools.count()
    began: dict[tuple[int, int], int] = {}
    ended: dict[tuple[int, int], int] = {}
    ledgers: list[Ledgers] = []
    problems: list[BaseException] = []
    threads: list[threading.Thread] = []
    for rank in range(table.setup.ranks):
        schedule = schedule_of(program, rank)
        numbers = np.flatnonzero(table.rank == rank).tolist()
        ledger = exactly(schedule, bounds)
        execute, meet = _playing(program, numbers, meetings, clock, began, ended, seed + rank)
        lanes = Lanes(schedule, execute, ledger, timeout_s=PATIENCE_S, meet=meet)
        threads.append(
            threading.Thread(target=_run, args=(lanes, problems), name=f"rank {rank}", daemon=True)
        )
        ledgers.append(ledger)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive() or problems, f"{thread.name} does not end"
    assert not problems, problems[0]
    assert len(ended) == STEPS * len(table)
    for edges, before in ((table.edges.inside, 0), (table.edges.across, 1)):
        for source, target in zip(edges.source.tolist(), edges.target.tolist(), strict=True):
            for step in range(before, STEPS):
                assert ended[source, step - before] < began[target, step], (
                    f"{table.word(target)} of step {step} began before {table.word(source)} ended"
                )
    return [ledger.device for ledger in ledgers]


def exactly(schedule: Schedule, bounds: dict[tuple[int, str], int]) -> Ledgers:
    """A rank's ledgers, each of which holds no more than was proved."""

    def ledger(tier: str) -> Ledger:
        held = [state for state in schedule.persistent if state.tier == tier]
        return Ledger(held, bounds[schedule.rank, tier], tier or "RAM")

    lower = {tier for rank, tier in bounds if rank == schedule.rank} - {DEVICE}
    return Ledgers(ledger(DEVICE), **{tier: ledger(tier) for tier in lower})


def _playing(
    program: Program,
    numbers: list[int],
    meetings: Meetings,
    clock: Iterator[int],
    began: dict[tuple[int, int], int],
    ended: dict[tuple[int, int], int],
    seed: int,
) -> tuple[Callable[[LocalOp, int], None], Callable[[LocalOp], None]]:
    chance, table = random.Random(seed), program.table
    steps: dict[int, int] = defaultdict(int)

    def execute(op: LocalOp, step: int) -> None:
        number = numbers[op.number]
        began[number, step] = next(clock)
        if table.group[number] >= 0:
            meetings.come(int(table.group[number]), step)
        if chance.random() < 0.3:
            time.sleep(chance.random() / 1000)
        ended[number, step] = next(clock)

    def meet(op: LocalOp) -> None:
        number = numbers[op.number]
        step, steps[number] = steps[number], steps[number] + 1
        has_place = program.setup.split_backward or program.setup.arrival_places
        if op.kind is Kind.RECV_F or (op.kind is Kind.RECV_B and has_place):
            meetings.others_are_there(int(table.group[number]), step)

    return execute, meet


def _run(lanes: Lanes, problems: list[BaseException]) -> None:
    try:
        lanes.run(0, lambda _lane, step: step < STEPS)
    except BaseException as error:
        problems.append(error)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(case=cases(max_micro_batches=3), seed=st.integers(0, 1000))
def test_any_program_ends_in_its_order_and_never_waits_for_memory(case: Case, seed: int) -> None:
    for ledger in played(case.program, seed):
        assert ledger.waits == 0


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("clip", [False, True])
def test_every_strategy_ends_within_its_bound(name: str, clip: bool) -> None:
    cut = (1, 1, 1, 1) if name == "interleaved" else (2, 2)
    program = small(name, cut, clip=clip, save=True)
    held = [
        sum(s.size_bytes for s in schedule_of(program, r).persistent)
        for r in range(program.setup.ranks)
    ]
    for ledger, standing in zip(played(program, seed=7), held, strict=True):
        assert ledger.waits == 0 and ledger.total_bytes == standing


# ---- waiting for memory ---------------------------------------------------------------------


def test_an_op_that_would_exceed_the_budget_waits_until_memory_is_given_back() -> None:
    ledger = Ledger([HeldState("view", 60)], 100, "RAM")
    first, second = (HeldState("saved", 30),), (HeldState("input", 20),)
    ledger.take(first, "0F0", 1.0)
    taken = threading.Event()

    def take() -> None:
        ledger.take(second, "0F1", PATIENCE_S)
        taken.set()

    threading.Thread(target=take, daemon=True).start()
    while not ledger.waits:
        time.sleep(0.001)
    assert ledger.total_bytes == 90 and not taken.is_set()
    ledger.give(first)
    assert taken.wait(PATIENCE_S)
    assert ledger.items() == {"view": 60, "input": 20} and ledger.peak.size_bytes == 90


def test_an_op_that_waits_for_memory_for_ever_ends_with_what_is_held() -> None:
    ledger = Ledger([HeldState("view", 60)], 100, "RAM")
    with pytest.raises(Infeasible, match=r"0F1 waited 0.01 s for 50 bytes of RAM.*'view': 60"):
        ledger.take((HeldState("saved", 50),), "0F1", 0.01)


def test_a_budget_below_what_always_exists_is_refused_at_once() -> None:
    with pytest.raises(Infeasible, match="101 bytes of RAM, the budget is 100"):
        Ledger([HeldState("view", 60), HeldState("optimizer", 41)], 100, "RAM")


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=12), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_takers_never_hold_more_than_the_budget_together(sizes: list[int], seed: int) -> None:
    ledger, chance = Ledger([], 60, "RAM"), random.Random(seed)

    def hold(size: int) -> None:
        ledger.take((HeldState("saved", size),), "op", PATIENCE_S)
        assert ledger.total_bytes <= 60
        time.sleep(chance.random() / 5000)
        ledger.give((HeldState("saved", size),))

    threads = [threading.Thread(target=hold, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert ledger.total_bytes == 0 and max(sizes) <= ledger.peak.size_bytes <= 60


# ---- failures -------------------------------------------------------------------------------


def lanes_that(
    execute: Callable[[LocalOp, int], None], budget_bytes: int | None = None
) -> tuple[Lanes, Schedule, Ledgers]:
    schedule = schedule_of(small("ratrain"), 0)
    ledger = Ledgers(Ledger(schedule.persistent, budget_bytes, "RAM"))
    return Lanes(schedule, execute, ledger, timeout_s=10 * PATIENCE_S), schedule, ledger


@pytest.mark.parametrize("kind", [Kind.F, Kind.SEND_F, Kind.GradSync, Kind.UpdateShard])
def test_a_lane_s_error_stops_every_lane_and_is_raised(kind: Kind) -> None:
    ran: list[tuple[Lane, int]] = []

    def execute(op: LocalOp, step: int) -> None:
        if op.kind is kind and step == 1:
            raise OSError("the disk is full")
        ran.append((op.lane, step))

    lanes, _, _ = lanes_that(execute)
    with pytest.raises(OSError, match="the disk is full"):
        lanes.run(0, lambda _lane, step: step < 50)
    count = len(ran)
    time.sleep(0.05)
    assert len(ran) <= count + len(Lane) and max(step for _, step in ran) <= 2


def test_a_failure_ends_a_wait_for_memory_at_once() -> None:
    """Memory that a failed lane would have given back never comes."""
    lanes: Lanes

    def execute(op: LocalOp, _step: int) -> None:
        if op.kind is Kind.F:
            threading.Timer(0.05, lanes.fail, [OSError("the disk is full")]).start()

    bare, schedule, _ = lanes_that(execute)
    first = next(op for op in schedule.lanes[Lane.COMPUTE] if op.births)
    budget = sum(held.size_bytes for held in (*schedule.persistent, *first.births))
    lanes, _, ledger = lanes_that(execute, budget)
    began_s = time.monotonic()
    with pytest.raises(OSError, match="the disk is full"):
        lanes.run(0, lambda _lane, step: step < 2)
    assert ledger.device.waits and time.monotonic() - began_s < PATIENCE_S
    assert bare.records() == []


def test_a_rank_s_own_error_counts_where_others_left_because_of_it_and_were_missed_first() -> None:
    """A lane that removes what it has written tells of it a moment later."""
    sending, gone = threading.Event(), threading.Event()
    forwards: list[LocalOp] = []

    def execute(op: LocalOp, _step: int) -> None:
        if op.kind is Kind.F:
            forwards.append(op)
            if len({each.micro_batch for each in forwards}) > 1:
                assert sending.wait(PATIENCE_S)
                gone.set()
                raise PeerDown("rank 0 lost its connection to rank 1")
        if op.kind is Kind.SEND_F:
            sending.set()
            assert gone.wait(PATIENCE_S)
            time.sleep(0.05)
            raise CheckpointError("the disk is full")

    lanes, _, _ = lanes_that(execute)
    with pytest.raises((PeerDown, CheckpointError)):
        lanes.run(0, lambda _lane, step: step < 50)
    assert lanes.are_back(PATIENCE_S)
    assert isinstance(lanes.failure, CheckpointError)


def test_a_failure_wakes_a_lane_that_waits_in_the_gate() -> None:
    woken = threading.Event()

    def gate(lane: Lane, step: int) -> bool:
        if lane is Lane.COMPUTE and step == 1:
            assert woken.wait(PATIENCE_S)
            return False
        return step < 2

    def execute(op: LocalOp, _step: int) -> None:
        if op.kind is Kind.UpdateShard:
            raise OSError("the disk is full")

    lanes, _, _ = lanes_that(execute)
    with pytest.raises(OSError, match="the disk is full"):
        lanes.run(0, gate, failed=woken.set)


def test_the_last_steps_are_recorded_and_no_others() -> None:
    lanes, schedule, _ = lanes_that(lambda _op, _step: None)
    lanes.record_last(2)
    lanes.run(0, lambda _lane, step: step < 5)
    assert Counter(ran.step for ran in lanes.records()) == dict.fromkeys((3, 4), len(schedule.ops))
    for ran in lanes.records():
        assert ran.reached_s <= ran.start_s <= ran.end_s


def test_a_period_begun_in_its_middle_runs_the_rest_of_it_and_then_whole_ones() -> None:
    setup = Setup((replica((1, 1), 2, 2, ends=True),))
    chosen = replace(strategy("1f1b"), sharding=0)
    schedule = schedule_of(apply_strategy(chosen, setup, Choices(average_steps=3)), 0)
    ran: list[tuple[int, int]] = []
    lanes = Lanes(
        schedule,
        lambda op, step: ran.append((step, op.step)),
        ledgers_of(schedule, limited=False),
        timeout_s=10 * PATIENCE_S,
    )
    lanes.run(7, lambda _lane, step: step < 12)
    assert {(7, 1), (8, 2), (9, 0), (10, 1), (11, 2)} == set(ran)
    ran.clear()
    lanes.run(12, lambda _lane, step: step < 14, ahead=1)  # two steps, the last of which averages
    assert {(12, 1), (13, 2)} == set(ran)
    counts = Counter(op.step for op in schedule.ops)
    assert Counter(step for _, step in ran) == {1: counts[1], 2: counts[2]}
