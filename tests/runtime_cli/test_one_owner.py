"""Two `ratrain` at once in one run's folder, or choosing one: no run is lost or overwritten."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from cli_runs import rank_processes, ratrain, start, steps_done, wait_until, write_job

from ratrain.checkpoint.listing import listed

pytestmark = pytest.mark.slow

QUICK = ("--no-calibrate", "--threads", "1")


def write_pair(folder: Path, **changes: int) -> list[Path]:
    """Two jobs that differ in their seeds."""
    first = write_job(folder, name="job-1", **changes)
    second = folder / "job-2.toml"
    second.write_text(first.read_text().replace("[train]", "[train]\nseed = 7"))
    return [first, second]


def seed_of(run: Path) -> int:
    return json.loads((run / "case.json").read_text())["settings"]["train"]["seed"]


def test_of_two_launches_into_one_folder_one_trains_and_the_other_is_refused(
    tmp_path: Path,
) -> None:
    jobs = write_pair(tmp_path, steps=2)
    both = [start(tmp_path, "train", job, "--run", "run", *QUICK) for job in jobs]
    ends = [(*process.communicate(timeout=110), process.returncode) for process in both]
    statuses = [status for _, _, status in ends]
    assert sorted(statuses) in ([0, 9], [0, 2]), ends
    won = statuses.index(0)
    refused = ends[1 - won][1]
    assert "belongs to `ratrain train`" in refused or "already holds a run" in refused, refused
    assert seed_of(tmp_path / "run") == (0, 7)[won]
    assert steps_done(tmp_path / "run") == 2


def test_two_launches_that_name_no_folder_get_one_each(tmp_path: Path) -> None:
    job = write_job(tmp_path, steps=2)
    both = [start(tmp_path, "train", job, *QUICK) for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=110)
        assert process.returncode == 0, err
    runs = sorted((tmp_path / "runs").iterdir())
    assert [run.name for run in runs] == ["job-ratrain", "job-ratrain-2"]
    assert [steps_done(run) for run in runs] == [2, 2]


def test_a_live_run_is_left_alone_by_every_verb_that_writes_and_read_by_all_others(
    tmp_path: Path,
) -> None:
    job = write_job(tmp_path, steps=100_000)
    run = tmp_path / "run"
    process = start(tmp_path, "train", job, "--run", "run", *QUICK)
    wait_until(lambda: len(list(run.glob("checkpoints/step-*[0-9]"))) == 2, process)
    for verb in (
        ("train", job, "--run", "run", "--resume"),
        ("train", job, "--run", "run"),
        ("train", job, "--run", "run", "--prepare-only"),
        ("checkpoints", "run", "--prune", "1"),
        ("checkpoints", "run/checkpoints", "--prune", "1"),
        ("export", "run", "run/exported"),
    ):
        ran = ratrain(tmp_path, *verb, "--json")
        assert ran.status == 9, (verb, ran)
        assert ran.body["error"] == "RunTaken"
        assert f"process {process.pid}" in ran.body["what"] and ran.body["fix"]
    assert not (run / "exported").exists()
    before = steps_done(run)
    assert ratrain(tmp_path, "checkpoints", "run").status == 0
    wait_until(lambda: steps_done(run) > before, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert ratrain(tmp_path, "export", "run", "run/exported").status == 0
    pruned = ratrain(tmp_path, "checkpoints", "run", "--prune", "1", "--json")
    assert pruned.status == 0 and len(pruned.body["removed"]) == 1
    assert len(listed(run / "checkpoints")) == 1
    assert ratrain(tmp_path, "compare", "run", "run").status == 0


def test_a_prepared_run_is_not_overwritten_by_another_launch(tmp_path: Path) -> None:
    first, second = write_pair(tmp_path, steps=2)
    assert ratrain(tmp_path, "train", first, "--run", "run", "--prepare-only").status == 0
    ran = ratrain(tmp_path, "train", second, "--run", "run", *QUICK)
    assert ran.status == 2 and "has not started yet" in ran.err and "--resume" in ran.err
    assert seed_of(tmp_path / "run") == 0
    assert ratrain(tmp_path, "train", first, "--run", "run", "--resume", *QUICK).status == 0


@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_a_folder_that_is_gone_while_its_run_trains_is_the_reason_that_is_named(
    how: str, tmp_path: Path
) -> None:
    job, run = write_job(tmp_path, steps=100_000), tmp_path / "run"
    process = start(tmp_path, "train", job, "--run", "run", *QUICK)
    wait_until(lambda: steps_done(run) > 3, process)
    if how == "removed":
        shutil.rmtree(run, ignore_errors=True)
        shutil.rmtree(run, ignore_errors=True)  # what was written meanwhile
    else:
        run.rename(tmp_path / "elsewhere")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 8, err
    assert "Traceback" not in err
    assert "the run's folder was removed, renamed or replaced during the run" in err
    assert rank_processes(run) == []
    assert how == "renamed" or not run.exists()
