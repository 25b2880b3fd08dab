"""Pairs of `ratrain train` that race for a run's folder: is any job lost?

    .venv/bin/python benchmarks/runtime/races.py --pairs 100

Two launches of jobs that differ in their seeds begin at the same instant, up to 30 ms apart: in
every other pair both name one folder, in the rest both choose one. A launch that ends with
status 0 must find its own seed and the very losses of an undisturbed run in its folder; one that
is refused must have been told why. Anything else is a lost job, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ratrain.corpus.sample_text import write_sample_text

JOB = """
[model]
name = "tiny-llama"
sequence_length = 32

[cluster]
name = "cpu-lab"
devices = 1

[batch]
sequences = 2

[layout]
pipeline = 1

[schedule]
dtype = "fp32"

[train]
steps = 2
seed = {seed}

[data]
files = ["text.jsonl"]
"""
SEEDS = (0, 7)


@dataclass(frozen=True)
class Launch:
    """How one launch ended."""

    seed: int
    status: int
    said: str

    @property
    def refused(self) -> bool:
        told = "belongs to `ratrain train`" in self.said or "already holds a run" in self.said
        return self.status in (2, 9) and told


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--pairs", type=int, default=100)
    options.add_argument("--seed", type=int, default=0)
    asked = options.parse_args()
    import torch.distributed.launcher.api  # noqa: F401  once, so that both launches begin at once

    import ratrain.runtime.run.session  # noqa: F401

    chance = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        write_sample_text(folder / "text.jsonl")
        for seed in SEEDS:
            (folder / f"seed-{seed}").mkdir()
            (folder / f"seed-{seed}" / "job.toml").write_text(
                JOB.format(seed=seed).replace("text.jsonl", "../text.jsonl")
            )
        alone = {seed: trained_alone(folder, seed) for seed in SEEDS}
        began_s, lost, both = time.monotonic(), 0, 0
        for number in range(asked.pairs):
            named = number % 2 == 0
            launches = race(folder, named, chance)
            problem = problem_of(folder, launches, named, alone)
            lost += bool(problem)
            both += all(launch.status == 0 for launch in launches)
            print(f"pair {number + 1}/{asked.pairs}: {problem or 'nothing lost'}", flush=True)
            shutil.rmtree(folder / "runs", ignore_errors=True)
        took_s = time.monotonic() - began_s
        print(f"{asked.pairs} pairs in {took_s:.0f} s: {lost} lost a job; in {both} both trained")
    sys.exit(1 if lost else 0)


def trained_alone(folder: Path, seed: int) -> list[str]:
    """The losses of an undisturbed run, bit by bit."""
    launch = ended(folder, seed, started(folder, seed, ["--run", "runs/alone"], 0.0))
    assert launch.status == 0, launch.said
    losses = losses_of(folder / "runs" / "alone")
    shutil.rmtree(folder / "runs")
    return losses


def race(folder: Path, named: bool, chance: random.Random) -> list[Launch]:
    arguments = ["--run", "runs/job-ratrain"] if named else []
    pids = [started(folder, seed, arguments, chance.uniform(0, 0.03)) for seed in SEEDS]
    return [ended(folder, seed, pid) for seed, pid in zip(SEEDS, pids, strict=True)]


def started(folder: Path, seed: int, arguments: list[str], after_s: float) -> int:
    """A process that has imported everything already, and launches a job."""
    pid = os.fork()
    if pid:
        return pid
    os.chdir(folder)
    said = os.open(f"said-{seed}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    job = f"seed-{seed}/job.toml"
    sys.argv = ["ratrain", "train", job, *arguments, "--no-calibrate", "--threads", "1"]
    from ratrain.cli.main import main as ratrain

    time.sleep(after_s)
    status = 1
    try:
        ratrain()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ended(folder: Path, seed: int, pid: int) -> Launch:
    _, status = os.waitpid(pid, 0)
    said = (folder / f"said-{seed}.txt").read_text()
    return Launch(seed, os.waitstatus_to_exitcode(status), said)


def problem_of(
    folder: Path, launches: list[Launch], named: bool, alone: dict[int, list[str]]
) -> str:
    """What was lost, in words; "" where nothing was."""
    runs = {seed_of(run): run for run in (folder / "runs").iterdir()}
    for launch in launches:
        if launch.status == 0:
            run = runs.get(launch.seed)
            if run is None:
                return f"seed {launch.seed} ended with status 0, and no folder has it"
            if losses_of(run) != alone[launch.seed]:
                return f"seed {launch.seed} has other losses than alone"
        elif not launch.refused:
            return f"seed {launch.seed}: status {launch.status}: {launch.said}"
    trained = sum(launch.status == 0 for launch in launches)
    if trained < (1 if named else 2):
        return f"{trained} of 2 launches trained"
    return ""


def seed_of(run: Path) -> int:
    return json.loads((run / "case.json").read_text())["settings"]["train"]["seed"]


def losses_of(run: Path) -> list[str]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss_bits"] for line in lines]


if __name__ == "__main__":
    main()
