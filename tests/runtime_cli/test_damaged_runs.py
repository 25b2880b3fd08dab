"""Files cut, lost or not writable while a run goes: named, and nothing else is lost."""

from __future__ import annotations

import os
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
