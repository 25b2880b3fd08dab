"""A lane that somebody else declares carries collectives: proved, and on real ranks."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from crew import Crew
from registered import declared_inside
from runs_made import Setting, write_job, write_plan
from training import RankResult, train, train_rank

from ratrain.program.kind import Lane
from ratrain.program.program import Program
from ratrain.program.unfolded import unfolded
from ratrain.program.verify import Rule, verify
from ratrain.runtime.run.prepare import RunRequest, prepare_run

OWN = Path(__file__).parent / "own"
PLAIN = Setting("1f1b", 2, 2, sharding=0, sequences=16)
COMPARED = replace(PLAIN, passes=("compared",))


@contextmanager
def comparing() -> Generator[Any]:
    """What is declared in own/compared.py, as long as it lasts."""
    with declared_inside(OWN):
        yield import_module("compared")


def program_of(folder: Path) -> Program:
    job = write_job(folder, replace(COMPARED, files=("none.txt",)))
    plan = write_plan(folder, COMPARED)
    prepared = prepare_run(RunRequest(job, threads=1, calibrate=False, plan_path=plan))
    return unfolded(prepared.case.program).program  # replicas that are alike are one in a proof


def changed(program: Program, rank: int, change: Any) -> Program:
    """The program with the comparisons of one rank changed."""
    key = rank, Lane.named("COMPARING")
    return replace(program, lanes={**program.lanes, key: tuple(change(list(program.lane(*key))))})


def test_all_ranks_must_agree_on_the_order_of_collectives_on_a_declared_lane(
    tmp_path: Path,
) -> None:
    with comparing():
        program = program_of(tmp_path)
        assert verify(program).sound
        turned = changed(program, 2, lambda ops: [ops[1], ops[0], *ops[2:]])
        assert {each.rule for each in verify(turned).findings} == {Rule.DEADLOCK}
        both = changed(turned, 0, lambda ops: [ops[1], ops[0], *ops[2:]])
        assert verify(both).sound, "the other order is as good, where all have it"


def test_a_collective_that_one_rank_leaves_out_is_found(tmp_path: Path) -> None:
    with comparing():
        program = program_of(tmp_path)
        dropped = changed(program, 3, lambda ops: ops[:-1])
        findings = verify(dropped).findings
        assert {each.rule for each in findings} == {Rule.MISSING_PARTNER}
        assert "is missing on another rank that holds the unit" in findings[0].message


def with_comparisons(
    rank: int, world_size: int, setting: Setting, folder: Path, *more: Any
) -> RankResult:
    """One rank of `train` that compares; it must have done so behind every update."""
    with comparing() as module:
        result = train_rank(rank, world_size, setting, folder, *more)
        expected = {(step, unit) for step in range(setting.steps) for unit in result.parts}
        assert sorted(module.compared) == sorted(expected)
        return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "delays"),
    [(COMPARED, None), (COMPARED, 3), (COMPARED.at((1, 4)), 5)],
    ids=["at once", "with delays", "four replicas"],
)
def test_collectives_on_a_declared_lane_run_beside_all_others(
    setting: Setting,
    delays: int | None,
    crew: Crew,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = train(crew, replace(setting, passes=None), tmp_path / "plain")
    monkeypatch.setattr("training.train_rank", with_comparisons)
    with comparing():
        mine = train(crew, setting, tmp_path / "mine", delays)
    assert not mine.differences(usual)
    assert all(a > b for a, b in zip(mine.sent_bytes, usual.sent_bytes, strict=True))
