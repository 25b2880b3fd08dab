"""What `ratrain train` says where something is wrong: one message, and its status."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import Ran, ratrain, write_job


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_job(tmp_path)
    return tmp_path


def refused(ran: Ran, status: int, *words: str) -> None:
    assert ran.status == status, ran.err
    assert "Traceback" not in ran.err
    for word in words:
        assert word in ran.err


@pytest.mark.slow
def test_a_job_without_data_is_refused(folder: Path) -> None:
    job = folder / "job.toml"
    job.write_text(job.read_text().replace('[data]\nfiles = ["text.txt"]', ""))
    refused(ratrain(folder, "train", "job.toml"), 2, "no [data]", "fix: add [data]")


@pytest.mark.slow
def test_a_missing_text_file_is_found_before_any_rank_starts(folder: Path) -> None:
    (folder / "text.txt").unlink()
    refused(ratrain(folder, "train", "job.toml"), 2, "text.txt", "fix:")
    assert not (folder / "runs").exists()


@pytest.mark.slow
def test_a_budget_that_is_too_small_names_the_largest_item(folder: Path) -> None:
    job = folder / "job.toml"
    job.write_text(job.read_text().replace("[schedule]", '[schedule]\nmemory_budget = "200kB"'))
    refused(ratrain(folder, "train", "job.toml"), 3, "more than the budget", "fix:")


@pytest.mark.slow
def test_resume_without_a_run_says_where_it_looked(folder: Path) -> None:
    ran = ratrain(folder, "train", "job.toml", "--resume")
    refused(ran, 2, "no run to resume", "runs/job-ratrain", "--run")


@pytest.mark.slow
def test_resume_of_another_folder_says_what_is_missing(folder: Path) -> None:
    refused(ratrain(folder, "train", "job.toml", "--resume", "--run", "."), 2, "run.json")


@pytest.mark.slow
def test_files_of_the_folder_where_it_is_typed_are_no_modules_of_its_ranks(folder: Path) -> None:
    (folder / "hmac.py").write_text("open('imported', 'a').close(); raise SystemExit(1)")
    start = [sys.executable, "-P", "-c", "from ratrain.cli.main import main; main()"]
    ran = subprocess.run(
        [*start, "train", "job.toml", "--run", "own", "--no-calibrate"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert not (folder / "imported").exists()


@pytest.mark.slow
def test_a_run_folder_is_not_written_twice_nor_resumed_with_another_job(tmp_path: Path) -> None:
    job = write_job(tmp_path, steps=2)
    assert ratrain(tmp_path, "train", job, "--run", "run", "--no-calibrate").status == 0
    refused(ratrain(tmp_path, "train", job, "--run", "run"), 2, "already holds a run", "--resume")
    resume = ("train", job, "--run", "run", "--resume")
    refused(ratrain(tmp_path, *resume, "--schedule", "baseline-1f1b"), 2, "--schedule")
    text = job.read_text()
    job.write_text(text.replace("sequences = 8", "sequences = 16"))
    refused(ratrain(tmp_path, *resume), 2, "[batch] sequences is 16, the run has 8")
    job.write_text(text.replace("learning_rate = 1e-2", "learning_rate = 2e-2"))
    ran = ratrain(tmp_path, *resume, "--steps", "3", "--no-calibrate")
    refused(ran, 0, "[train] learning_rate is 0.02, was 0.01")
    job.write_text(text)
    words = (tmp_path / "text.txt").read_text()
    (tmp_path / "text.txt").write_text(words[:-20])
    ran = ratrain(tmp_path, *resume, "--steps", "4", "--no-calibrate")
    refused(
        ran, 2, "step-00000003 was trained on different text", "job.toml [data]", "ratrain export"
    )
    (tmp_path / "text.txt").write_text(words)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "run" / "case.json").write_text("{")
    refused(ratrain(tmp_path, *resume), 2, "case.json", "case.json:1")
