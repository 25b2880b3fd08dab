"""A run goes on with another program in its own folder: `--resume --replan`."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from cli_runs import ratrain, write_job

from ratrain.runtime.run.episodes import finish_episode
from ratrain.runtime.run_folder import RunFolder

QUICK = ("--no-calibrate", "--json", "--threads", "1")
ALONE = ("--set", "layout.pipeline=1", "--set", "layout.data=1", "--set", "cluster.devices=1")
TWO_REPLICAS = ("--set", "layout.pipeline=1", "--set", "layout.data=2")
RESUME = ("train", "job.toml", "--resume", *QUICK)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two stages over 10 steps, saved after steps 4, 8 and 10."""
    folder = tmp_path_factory.mktemp("replan")
    job = write_job(folder, steps=10)
    job.write_text(job.read_text().replace("every = 4", "every = 4\nkeep = 5"))
    ran = ratrain(folder, "train", job, "--run", "whole", *QUICK)
    assert ran.status == 0, ran.err
    return folder


def cut(whole: Path, name: str, *steps: int) -> RunFolder:
    """A copy of that run which has saved after these steps alone."""
    run = RunFolder(whole / name)
    shutil.copytree(whole / "whole", run.path, ignore=shutil.ignore_patterns("owner"))
    for path in run.checkpoints.iterdir():
        if path.name not in {f"step-{step:08d}" for step in steps}:
            shutil.rmtree(path)
    return run


def bits(run: RunFolder) -> list[str]:
    return [row["loss_bits"] for row in run.read_metrics()]


@pytest.mark.slow
def test_a_run_goes_on_as_one_rank_and_then_as_two_replicas(whole: Path) -> None:
    run = cut(whole, "moved", 4)
    first = ratrain(
        whole, *RESUME, "--replan", "--run", run.path, "--schedule", "gpipe", *ALONE, "--steps", "8"
    )
    assert first.status == 0, first.err
    assert "another program from step 4 on: 2 to 1 ranks" in first.err
    assert bits(run)[:8] == bits(RunFolder(whole / "whole"))[:8]
    options = (*TWO_REPLICAS, "--set", "cluster.devices=2", "--steps", "10")
    second = ratrain(whole, *RESUME, "--replan", "--run", run.path, *options)
    assert second.status == 0, second.err
    assert [
        (each["number"], each["first_step"], each["ranks"], each["data"])
        for each in second.body["episodes"]
    ] == [(0, 0, 2, 1), (1, 4, 1, 1), (2, 8, 2, 2)]
    expected = [float.fromhex(each) for each in bits(RunFolder(whole / "whole"))]
    assert [float.fromhex(each) for each in bits(run)] == pytest.approx(expected, rel=1e-5)
    assert [row.get("episode", 0) for row in run.read_metrics()] == [0] * 4 + [1] * 4 + [2] * 2
    assert (run.path / "report.html").exists()


@pytest.mark.slow
def test_what_is_refused_leaves_the_run_with_the_program_that_it_has(whole: Path) -> None:
    run = cut(whole, "refused", 4)
    before = run.program.read_text(), (run.path / "run.json").read_text()
    for options, words in (
        (("--plan", "none.json"), "add --replan to go on with another program"),
        (("--replan", "--set", "layout.pipeline=9"), "but the job has"),
        (("--replan", *ALONE, "--steps", "4"), "there is nothing to plan for"),
        (("--replan", *ALONE, "--set", "batch.sequences=16"), "sequences is 16"),
    ):
        ran = ratrain(whole, *RESUME, "--run", run.path, *options)
        assert ran.status == 2 and words in ran.err, ran.err
        assert (run.program.read_text(), (run.path / "run.json").read_text()) == before
        assert not run.episodes.exists()
    without = ratrain(whole, "train", "job.toml", "--replan")
    assert without.status == 2 and "--replan goes with --resume" in without.err


@pytest.mark.slow
def test_a_launch_that_dies_while_it_changes_the_program_leaves_one_or_the_other(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = cut(whole, "staged", 4)
    ran = ratrain(whole, *RESUME, "--replan", "--run", staged.path, *ALONE, "--prepare-only")
    assert ran.status == 0, ran.err
    for moves in range(9):
        die_after(moves, cut(whole, f"died-{moves}", 4), staged, monkeypatch)


def die_after(
    moves: int, run: RunFolder, staged: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moves some files of a new program, dies, and has the next launch find the rest."""
    original = run.program.read_text()
    run.episodes.mkdir()
    pending = run.episodes / "next"
    pending.mkdir()
    for name in ("program.txt", "case.json", "job.toml", "run.json"):
        shutil.copyfile(staged.path / name, pending / name)
    left, move = [moves], Path.replace

    def dying(source: Path, target: Path) -> Path:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return move(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dying)
        patch.setattr(Path, "replace", dying)
        with suppress(KeyboardInterrupt):
            finish_episode(run)
    finish_episode(run)
    assert run.kept_program() and run.read_spec().episode == 1
    assert run.program.read_text() == staged.program.read_text() != original
    assert (run.episodes / "0" / "program.txt").read_text() == original
    assert RunFolder(run.episodes / "0").read_spec().episode == 0
    assert not pending.exists()
