"""Killed at any moment, a run keeps its last checkpoint, and no folder opens that is not whole."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import saver
from checkpoint_made import holds, save

from ratrain.checkpoint.folder import PARTIAL, REMOVING, begin, leftovers, step_name
from ratrain.checkpoint.listing import latest, listed, prune
from ratrain.checkpoint.reader import open_checkpoint


def steps_that_hold(run: Path) -> list[int]:
    """The steps under final names, each proved whole and right."""
    checkpoints = listed(run)
    for checkpoint in checkpoints:
        assert checkpoint.manifest is not None, checkpoint.problem
        assert holds(open_checkpoint(checkpoint.path))
    return [checkpoint.step for checkpoint in checkpoints]


@pytest.mark.slow
def test_killed_before_any_change_of_the_file_system_it_keeps_what_it_had(tmp_path: Path) -> None:
    call, died = 0, True
    while died:
        call += 1
        run = tmp_path / str(call)
        save(run, 1, units={"e": 64, "0": 100})
        died = saver.killed_before(call, run, 2)
        steps = steps_that_hold(run)
        assert steps == list(range(steps[0], steps[-1] + 1))
        assert 1 <= len(steps) <= saver.KEEP + 1
        assert steps_that_hold(run)[-1] == 4 or died
        save(run, 9, units={"e": 64, "0": 100})
        prune(run, saver.KEEP)
        assert steps_that_hold(run) == [steps[-1], 9]
        assert leftovers(run / "checkpoints") == ()
    assert call > 50  # three checkpoints with two files and a manifest, and two removals


@pytest.mark.slow
def test_killed_while_it_replaces_a_step_it_keeps_one_of_the_two(tmp_path: Path) -> None:
    call, died = 0, True
    while died:
        call += 1
        run = tmp_path / str(call)
        for step in (1, 2):
            save(run, step, units={"e": 64, "0": 100})
        died = saver.killed_before(call, run, 2)
        steps = steps_that_hold(run)
        assert 2 in steps or steps == [3, 4]
    assert call > 50


@pytest.mark.slow
def test_killed_at_random_moments_many_times_it_never_loses_what_it_committed(
    tmp_path: Path,
) -> None:
    committed = 0
    chance = random.Random(os.urandom(8))
    for _ in range(40):
        writer = subprocess.Popen(
            [sys.executable, str(Path(saver.__file__)), str(tmp_path), str(committed + 1)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        lines = [writer.stdout.readline()]  # it has begun to save
        time.sleep(chance.uniform(0, 0.2))
        writer.kill()
        lines += writer.stdout.read().splitlines(keepends=True)
        writer.wait()
        steps_told = [int(line) for line in lines if line.endswith("\n")]
        newest = latest(tmp_path)
        assert newest is not None and not newest.skipped
        steps = steps_that_hold(tmp_path)
        assert steps[-1] - steps_told[-1] in (0, 1)
        committed = steps[-1]
    assert committed >= 40


def test_pruning_keeps_the_newest_and_removes_what_died(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        save(tmp_path, step)
    folder = tmp_path / "checkpoints"
    (folder / (step_name(5) + PARTIAL)).mkdir()
    (folder / (step_name(50) + PARTIAL)).mkdir()  # being written
    (folder / (step_name(7) + REMOVING)).mkdir()
    removed = prune(folder, 2)
    assert sorted(path.name for path in folder.iterdir()) == [
        "step-00000030",
        "step-00000040",
        "step-00000050.partial",
    ]
    names = [path.name for path in removed]
    assert names.index("step-00000010") < names.index("step-00000020")


def test_pruning_never_counts_a_damaged_one_as_kept(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step)
    folder = tmp_path / "checkpoints"
    (folder / "step-00000030" / "manifest.json").write_text("{}")
    prune(folder, 0)  # none asked for: the newest whole one stays all the same
    assert [
        (checkpoint.step, checkpoint.manifest is not None) for checkpoint in listed(folder)
    ] == [
        (20, True),
        (30, False),
    ]


def test_pruning_leaves_other_files_alone(tmp_path: Path) -> None:
    save(tmp_path, 1)
    folder = tmp_path / "checkpoints"
    for name in ("notes.partial", "step-one.removing", "best"):
        (folder / name).mkdir()
    begin(tmp_path, 2)
    prune(folder, 1)
    assert {"notes.partial", "step-one.removing", "best"} < {path.name for path in folder.iterdir()}
