"""Files cut, lost or not writable while a run goes: named, and nothing else is lost."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from cli_runs import ratrain, start, steps_done, wait_until, write_job

from ratrain.runtime.run_folder import RunFolder

pytestmark = pytest.mark.slow


def losses(run: Path) -> list[str]:
    return [row["loss_bits"] for row in RunFolder(run).read_metrics()]


def test_tokens_that_are_cut_while_a_run_reads_them_are_named_and_it_resumes_with_the_same_bits(
    tmp_path: Path,
) -> None:
    write_job(tmp_path, steps=1000)
    process = start(tmp_path, "train", "job.toml", "--run", "cut", "--no-calibrate")
    wait_until(lambda: steps_done(tmp_path / "cut") > 8, process)
    (tokens,) = (tmp_path / "cache").glob("ratrain/corpus/*/tokens.bin")
    os.truncate(tokens, 100)
    _, said = process.communicate(timeout=110)
    assert process.returncode == 8, said
    assert f"error: {tokens}: ends after " in said
    assert "`--resume` resumes from step-" in said
    steps = str(steps_done(tmp_path / "cut") + 4)
    again = ratrain(tmp_path, "train", "job.toml", "--run", "cut", "--resume", "--steps", steps)
    assert again.status == 0, again.err
    ratrain(tmp_path, "train", "job.toml", "--run", "whole", "--no-calibrate", "--steps", steps)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


def test_a_run_resumes_beside_damaged_or_lost_metrics_and_says_which_steps_are_lost(
    tmp_path: Path,
) -> None:
    job = ("train", write_job(tmp_path, steps=4), "--run", "run", "--no-calibrate")
    run = tmp_path / "run"
    assert ratrain(tmp_path, *job).status == 0
    metrics = run / "metrics.jsonl"
    whole = metrics.read_text().splitlines(keepends=True)
    damaged = [
        whole[0],
        "\0" * 80 + "\n",
        whole[2].replace('"step_time_s": ', '"step_time_s": -'),
        whole[3],
    ]
    metrics.write_text("".join(damaged))

    resumed = ratrain(tmp_path, *job, "--resume", "--steps", "8")
    assert resumed.status == 0, resumed.err
    assert f"{metrics.relative_to(tmp_path)}:2: damaged, and 1 more line: " in resumed.err
    assert "losses and times of steps 2 to 3 are lost: metrics.jsonl has no rows" in resumed.err
    assert (run / "metrics-damaged.jsonl").read_text() == "".join(damaged)
    assert [row["step"] for row in RunFolder(run).read_metrics()] == [0, 3, 4, 5, 6, 7]

    metrics.unlink()
    again = ratrain(tmp_path, *job, "--resume", "--steps", "12")
    assert again.status == 0, again.err
    assert "the losses and times of steps 1 to 8 are lost: metrics.jsonl is missing" in again.err
    assert len(losses(run)) == 4


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk, which takes a hundred files."""
    if os.geteuid():
        pytest.skip("needs root, to mount a disk")
    place = tmp_path / "disk"
    place.mkdir()
    options = "size=8m,nr_inodes=100"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def take_all_files(disk: Path) -> None:
    for number in count():
        try:
            (disk / f"ballast-{number}").touch()
        except OSError as error:
            assert error.errno == errno.ENOSPC
            return


def take_all_space(disk: Path) -> None:
    with (disk / "ballast-0").open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(4096))


@pytest.mark.root
@pytest.mark.parametrize(
    ("take", "every", "place", "fix"),
    [
        (take_all_files, "4", r"disk/run\S*: .*its inodes are used", "remove files"),
        (take_all_space, "0", r"disk/run\S*: .*(the disk is full|No space left)", "free"),
    ],
    ids=["files", "space"],
)
def test_a_disk_that_takes_no_more_is_named_with_what_was_written_there_and_the_run_resumes(
    take: Callable[[Path], None], every: str, place: str, fix: str, disk: Path, tmp_path: Path
) -> None:
    job = ("train", write_job(tmp_path, steps=1000), "--run", "disk/run", "--no-calibrate")
    job = (*job, "--set", f"checkpoint.every={every}")
    process = start(tmp_path, *job)
    wait_until(lambda: steps_done(disk / "run") > 5, process)
    take(disk)
    _, said = process.communicate(timeout=110)
    assert process.returncode in (7, 8), said
    assert re.search(f"error: {place}", said), said
    assert f"fix: {fix}" in said
    for ballast in disk.glob("ballast-*"):
        ballast.unlink()
    steps = str(steps_done(disk / "run") + 4)
    again = ratrain(tmp_path, *job, "--resume", "--steps", steps)
    assert again.status == 0, again.err
