"""Ranks that survive the loss of another go on in the same processes, with what they hold."""

from __future__ import annotations

import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from launched import (
    assert_same_end,
    killer,
    loss_bits,
    made,
    meanwhile,
    ranks_of,
    saved_steps,
    start,
    steps_done,
    wait_until,
)
from runs_made import Setting

from ratrain.runtime.run_folder import RunFolder

STEPS = 40
REPLICAS = Setting(data=3, sequences=12, steps=STEPS, every=100, clip_norm=1.0, sharding=0)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def notes(folder: RunFolder) -> str:
    return folder.notes.read_text() if folder.notes.exists() else ""


def disturbed(folder: RunFolder, rank: int, step: int, how: int = signal.SIGKILL) -> None:
    """Runs it with one loss; the other processes stay."""
    before: dict[int, int] = {}

    def look() -> bool:
        if steps_done(folder) < step:
            return False
        before.update(ranks_of(folder))
        return True

    def work() -> None:
        killer(folder, rank, look, how)()
        wait_until(lambda: ranks_of(folder).get(rank, before[rank]) != before[rank])
        there = ranks_of(folder)
        assert {r: pid for r, pid in before.items() if r != rank}.items() <= there.items()

    with meanwhile(work):
        start(folder, restarts=1)


@pytest.mark.parametrize("rank", [0, 2])
def test_no_step_is_lost_where_replicas_hold_the_same(rank: int, tmp_path: Path) -> None:
    whole = made(tmp_path / "whole", REPLICAS)
    start(whole)
    folder = made(tmp_path / "disturbed", REPLICAS)
    disturbed(folder, rank, step=random.Random(rank).randrange(5, 30))
    assert "from what the survivors hold" in notes(folder)
    assert saved_steps(folder) == [STEPS]
    assert loss_bits(folder) == loss_bits(whole)
    assert_same_end(folder, whole)
    # A step is told of before its updates have ended: one may be done again, no more.
    assert STEPS <= len(folder.metrics.read_text().splitlines()) <= STEPS + 1


@pytest.mark.parametrize("sharding", [1, 2, 3])
@pytest.mark.parametrize("rank", [0, 2])
def test_no_step_is_lost_where_each_part_has_a_mirror(
    sharding: int, rank: int, tmp_path: Path
) -> None:
    setting = replace(REPLICAS, sharding=sharding, mirror=True)
    whole = made(tmp_path / "whole", replace(setting, mirror=None))
    start(whole)
    folder = made(tmp_path / "disturbed", setting)
    disturbed(folder, rank, step=random.Random(rank * 3 + sharding).randrange(5, 30))
    assert "from what the survivors hold" in notes(folder)
    assert saved_steps(folder) == [STEPS]
    assert loss_bits(folder) == loss_bits(whole)
    assert_same_end(folder, whole)
    assert STEPS <= len(folder.metrics.read_text().splitlines()) <= STEPS + 1


def test_sharded_states_are_read_from_the_checkpoint_by_the_same_processes(tmp_path: Path) -> None:
    setting = replace(REPLICAS, sharding=1, every=4)
    whole = made(tmp_path / "whole", setting)
    start(whole)
    folder = made(tmp_path / "disturbed", setting)
    disturbed(folder, 1, step=14)
    assert "from the latest checkpoint" in notes(folder)
    assert loss_bits(folder) == loss_bits(whole)
    assert_same_end(folder, whole)


def test_a_rank_that_stalls_is_replaced(tmp_path: Path) -> None:
    setting = replace(REPLICAS, timeout_s=3)
    folder = made(tmp_path, setting)
    disturbed(folder, 1, step=6, how=signal.SIGSTOP)
    assert "from what the survivors hold" in notes(folder)
    assert saved_steps(folder) == [STEPS] and len(loss_bits(folder)) == STEPS
