"""Training on the device that runs operators later, in a random order: the CPU's bits, and no order
that is missing. `soak_deferred.py` runs many more orders."""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from crew import Crew
from deferred_runs import (
    OFFLOADING,
    PAGE,
    RANKS,
    SETTINGS,
    SHORT,
    Wait,
    make_first,
    run_put_off,
    train_with_page,
    train_without,
    waits_of,
    without,
)
from extending_page import write_files
from hypothesis import given, settings
from hypothesis import strategies as st
from made import Case, cases, small
from registered import declared_inside
from runs_made import Setting, write_job
from training import Result, train

from ratrain.devices.deferred import Deferred
from ratrain.errors import MissingOrder
from ratrain.program.program import Program
from ratrain.program.strategies import STRATEGIES
from ratrain.runtime.run.prepare import RunRequest, prepare_run, write_run
from ratrain.runtime.run_folder import RunFolder
from ratrain.runtime.step.lanes import Lanes
from ratrain.runtime.step.ledger import ledgers_of
from ratrain.runtime.step.schedule import LocalOp, Schedule, schedule_of

slow = pytest.mark.slow
STEPS = 3


# ---- which waits are made -------------------------------------------------------------------


def implied(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Whether one op is behind another by lanes and waits alone: of the same period, and of an op
    for one of the period before. Found by brute force."""
    count = len(schedule.ops)
    behind = np.zeros((2 * count, 2 * count), dtype=bool)
    for period in range(2):
        last: dict[object, int] = {}
        for op in schedule.ops:
            at = period * count + op.number
            if op.lane in last:
                behind[at, last[op.lane]] = True
            elif period:
                behind[at, max(o.number for o in schedule.ops if o.lane is op.lane)] = True
            last[op.lane] = at
            behind[at, [period * count + other for other in op.waits]] = True
            if period:
                behind[at, list(op.waits_before)] = True
    while True:
        further = behind | (behind.astype(np.uint8) @ behind.astype(np.uint8) > 0)
        if (further == behind).all():
            return behind[:count, :count], behind[count:, :count]
        behind = further


@slow
@settings(max_examples=40, deadline=None)
@given(case=cases(max_micro_batches=3))
def test_the_waits_that_are_made_imply_all_of_the_program_s_and_none_implies_another(
    case: Case,
) -> None:
    table = case.program.table
    for rank in range(table.setup.ranks):
        schedule = schedule_of(case.program, rank)
        inside, across = implied(schedule)
        number = {op: n for n, op in enumerate(np.flatnonzero(table.rank == rank).tolist())}
        for edges, behind in ((table.edges.inside, inside), (table.edges.across, across)):
            for source, target in zip(edges.source.tolist(), edges.target.tolist(), strict=True):
                if target in number and source in number:
                    assert behind[number[target], number[source]]
        for wait in random.Random(0).sample(waits_of(schedule), min(3, len(waits_of(schedule)))):
            less = implied(without(schedule, wait))[wait.before]
            assert not less[wait.op, wait.awaited]


# ---- programs with nothing to compute: all that finds an order is what ops declare --------------


def play(schedule: Schedule, seed: int) -> None:
    """A rank's lanes, each op of which only declares what it uses."""

    def execute(op: LocalOp, step: int) -> None:
        pass

    lanes = Lanes(
        schedule,
        execute,
        ledgers_of(schedule, limited=False),
        timeout_s=30,
        device=Deferred(schedule.rank, seed),
    )
    lanes.run(0, lambda _lane, step: step < STEPS * schedule.period)


def all_waits(program: Program) -> list[Wait]:
    return [w for rank in range(program.setup.ranks) for w in waits_of(schedule_of(program, rank))]


def assert_found(program: Program, wait: Wait, seed: int) -> None:
    """Without a wait, two ops are named that it kept apart: its own two, or others behind them."""
    schedule = schedule_of(program, wait.rank)
    with pytest.raises(MissingOrder):
        play(without(schedule, wait), seed)


@pytest.mark.parametrize("name", ["ratrain", "zb-h1"])
def test_a_wait_that_is_left_out_is_found(name: str) -> None:
    program = small(name, (1, 1), 2, clip=True)
    for rank in range(program.setup.ranks):
        play(schedule_of(program, rank), 0)
    for seed, wait in enumerate(random.Random(1).sample(all_waits(program), 6)):
        assert_found(program, wait, seed)


@slow
@pytest.mark.matrix
@pytest.mark.parametrize("name", list(STRATEGIES))
def test_every_wait_that_is_left_out_is_found(name: str) -> None:
    program = small(name, (1, 1, 1, 1) if "interleaved" in name else (2, 2), clip=True, save=True)
    for seed, wait in enumerate(all_waits(program)):
        assert_found(program, wait, seed)


@slow
@settings(max_examples=25, deadline=None)
@given(case=cases(max_micro_batches=3), seed=st.integers(0, 1000))
def test_a_random_program_is_in_order_and_any_wait_less_is_found(case: Case, seed: int) -> None:
    for rank in range(case.program.setup.ranks):
        play(schedule_of(case.program, rank), seed)
    waits = all_waits(case.program)
    for wait in random.Random(seed).sample(waits, min(4, len(waits))):
        assert_found(case.program, wait, seed)


# ---- whole runs -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def putting_off() -> Generator[Crew]:
    with Crew(RANKS) as made:
        made.ask(RANKS, make_first)
        yield made


def assert_same(result: Result, usual: Result) -> None:
    assert not result.differences(usual)
    assert result.norms == usual.norms and result.validated == usual.validated
    for peak, bound in zip(result.ledger_peaks, result.bounds, strict=True):
        assert peak <= bound


@slow
@pytest.mark.matrix
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", list(SETTINGS))
def test_every_order_gives_the_bits_of_the_cpu(
    name: str, putting_off: Crew, tmp_path: Path
) -> None:
    setting = SETTINGS[name]
    usual = train(putting_off, setting, tmp_path / "cpu")
    for seed in range(2):
        result = run_put_off(putting_off, setting, tmp_path / str(seed), seed)
        assert_same(result, usual)


@slow
@pytest.mark.matrix
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(6))
def test_a_run_that_lacks_a_wait_says_which_ops_lack_it(
    seed: int, putting_off: Crew, tmp_path: Path
) -> None:
    setting: Setting = random.Random(seed).choice(
        [SETTINGS[name] for name in ("ratrain", "zb-h1", "buckets", "level 3, local", "1f1b")]
    )
    job = write_job(tmp_path, replace(setting, files=("none.txt",)))
    prepared = prepare_run(RunRequest(job, threads=1, calibrate=False))
    write_run(prepared, RunFolder(tmp_path / "run"))
    program = RunFolder(tmp_path / "run").read_program()
    wait = random.Random(seed).choice(waits_of(schedule_of(program, 0)))
    answers = putting_off.ask(setting.world_size, train_without, setting, tmp_path, wait, seed)
    ops = schedule_of(program, 0).ops
    assert "MissingOrder" in answers[0], (ops[wait.awaited].word, ops[wait.op].word, answers[0])


@slow
@pytest.mark.parametrize("forgets", [False, True], ids=["as written", "forgets a read"])
def test_a_kind_of_your_own_that_forgets_what_it_reads_is_named(
    forgets: bool, putting_off: Crew, tmp_path: Path
) -> None:
    """The weight average of docs/how-to/extending.md, without its first line of reading."""
    page = write_files(tmp_path / "page")
    read = '    b.reads(ops, b.at_step_end("optimizer", ops))\n'
    text = (page / "weight_average.py").read_text()
    assert read in text
    (page / "weight_average.py").write_text(text.replace(read, "") if forgets else text)
    setting = replace(SHORT, pipeline=2, steps=4, passes=(*OFFLOADING[:3], "weight-average"))
    with declared_inside(page):
        for name in PAGE:
            import_module(name)
        job = write_job(tmp_path, replace(setting, files=("none.txt",)))
        prepared = prepare_run(RunRequest(job, threads=1, calibrate=False))
        write_run(prepared, RunFolder(tmp_path / "run"))
    told = putting_off.ask(2, train_with_page, setting, tmp_path, 3)
    if not forgets:
        assert not [each for each in told if isinstance(each, str)]
        return
    (found, *_) = [each for each in told if str(each).startswith("MissingOrder")]
    assert "AddToAverage" in found and "UpdateShard" in found
    assert "on lane averaging" in found and "on lane update" in found
