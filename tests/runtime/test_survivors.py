"""Ranks that survive the loss of another go on in the same processes, with what they hold."""

from __future__ import annotations

import os
import random
import signal
import sys
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

from ratrain.errors import RatrainError
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


@pytest.mark.matrix
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


SEALED = """
from ratrain.runtime.rank.joining import rendezvous
from ratrain.runtime.step.network import connection
from ratrain.runtime.step.network.sealed_socket import SealedSocket

rendezvous.listen_near = lambda address: None
begun = connection.Connection.__init__

def sealed_alone(self, sock, *others, **named):
    rails = [*(others[4] if len(others) > 4 else named.get("rails", ()))]
    assert all(isinstance(each, SealedSocket) for each in (sock, *rails)), "in the clear"
    begun(self, sock, *others, **named)

connection.Connection.__init__ = sealed_alone
"""
"""What an extension tells ranks: to meet over TCP alone, and to take no socket in the clear."""


def test_ranks_that_lose_one_meet_again_under_tls_and_no_socket_is_in_the_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sealed_alone.py").write_text(SEALED)
    whole = made(tmp_path / "whole", REPLICAS)
    start(whole)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("RATRAIN_EXTENSIONS", "sealed_alone")
    keys = (("tls", "secret"),)
    folder = made(tmp_path / "sealed", replace(REPLICAS, sharding=2, mirror=True, train=keys))
    disturbed(folder, 2, step=12)
    assert "from what the survivors hold" in notes(folder)
    assert loss_bits(folder) == loss_bits(whole)
    clear = made(tmp_path / "clear", replace(REPLICAS, steps=2))
    with pytest.raises(RatrainError, match="in the clear"):  # the extension would have told
        start(clear)


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


# ---- several losses ----------------------------------------------------------------------------

MIRRORED = replace(REPLICAS, data=4, sequences=8, sharding=2, every=10, mirror=True)


def kill(folder: RunFolder, *ranks: int) -> None:
    there = ranks_of(folder)
    for rank in ranks:
        os.kill(there[rank], signal.SIGKILL)


def assert_as_undisturbed(folder: RunFolder, tmp_path: Path, setting: Setting) -> None:
    whole = made(tmp_path / "whole", replace(setting, mirror=None))
    start(whole)
    assert loss_bits(folder) == loss_bits(whole)
    assert_same_end(folder, whole)


@pytest.mark.parametrize("ranks", [(0, 2), (1, 2)])
def test_two_ranks_lost_at_once_cost_no_step_where_neither_mirrors_the_other(
    ranks: tuple[int, int], tmp_path: Path
) -> None:
    folder = made(tmp_path / "disturbed", MIRRORED)

    def work() -> None:
        wait_until(lambda: steps_done(folder) >= 7)
        kill(folder, *ranks)

    with meanwhile(work):
        start(folder, restarts=2)
    buddies = 1 in ranks  # of rank 1 rank 2 is
    assert ("from the latest checkpoint" if buddies else "the survivors hold") in notes(folder)
    assert_as_undisturbed(folder, tmp_path, MIRRORED)


def test_a_rank_lost_while_another_is_replaced_costs_nothing_but_time(tmp_path: Path) -> None:
    folder = made(tmp_path / "disturbed", MIRRORED)

    def work() -> None:
        wait_until(lambda: steps_done(folder) >= 7)
        before = ranks_of(folder)
        kill(folder, 1)
        wait_until(lambda: ranks_of(folder).get(1, before[1]) != before[1])
        kill(folder, 3)

    with meanwhile(work):
        start(folder, restarts=3)
    assert_as_undisturbed(folder, tmp_path, MIRRORED)


@pytest.mark.parametrize("moment", ["it begins", "ranks have met"])
def test_a_new_rank_lost_before_it_trains_costs_no_step(moment: str, tmp_path: Path) -> None:
    setting = replace(MIRRORED, every=100)  # there is no checkpoint to go on from
    folder = made(tmp_path / "disturbed", setting)
    met = folder.path / "owner" / "met"

    def work() -> None:
        wait_until(lambda: steps_done(folder) >= 7)
        before, attempt = ranks_of(folder), met.stat().st_ino
        kill(folder, 1)
        wait_until(lambda: ranks_of(folder).get(1, before[1]) != before[1])
        if moment == "ranks have met":
            wait_until(lambda: met.stat().st_ino != attempt)
        again = ranks_of(folder)
        kill(folder, 1)
        wait_until(lambda: ranks_of(folder).get(1, again[1]) != again[1])
        del before[1]
        assert before.items() <= ranks_of(folder).items()

    with meanwhile(work):
        start(folder, restarts=2)
    assert "from the latest checkpoint" not in notes(folder)
    assert_as_undisturbed(folder, tmp_path, setting)
    assert STEPS <= len(folder.metrics.read_text().splitlines()) <= STEPS + 1


def test_a_rank_lost_while_a_checkpoint_is_saved_leaves_it_whole_or_absent(tmp_path: Path) -> None:
    setting = replace(MIRRORED, every=1)
    folder = made(tmp_path / "disturbed", setting)

    def work() -> None:
        for rank in (2, 0):
            done = steps_done(folder)
            wait_until(lambda done=done: steps_done(folder) >= done + 4)
            wait_until(lambda: any(folder.checkpoints.glob("*partial*")))
            kill(folder, rank)

    with meanwhile(work):
        start(folder, restarts=4)
    assert saved_steps(folder)[-1] == STEPS
    assert_as_undisturbed(folder, tmp_path, setting)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_lost_while_the_last_checkpoint_is_saved_does_not_leave_the_run_without_it(
    rank: int, tmp_path: Path
) -> None:
    setting = replace(MIRRORED, steps=6, every=4)
    folder = made(tmp_path / "disturbed", setting)

    def work() -> None:
        wait_until(lambda: saved_steps(folder) == [4])
        wait_until(lambda: any(folder.checkpoints.glob("*6*")))
        kill(folder, rank)

    with meanwhile(work):
        start(folder, restarts=4)
    assert saved_steps(folder)[-1] == 6
