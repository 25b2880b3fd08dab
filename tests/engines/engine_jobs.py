"""A job that trains in seconds on a cluster of two kinds, prepared for an engine."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ratrain.runtime.run_folder import RunFolder

CONFIG = {
    "model_type": "llama",
    "_name_or_path": "minute",
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 260,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
KIND = """
[[device]]
name = "{name}"
launch = "10us"
launch_source = "a test"
memory_efficiency = 0.8
memory_efficiency_source = "a test"
[[device.tiers]]
name = "RAM"
capacity = "1GB"
bandwidth = "10GB/s"
source = "a test"
[[device.rates]]
dtype = "fp32"
peak = "50GFLOP/s"
gemm = "25GFLOP/s"
source = "a test"
[[host]]
name = "{name}"
device = "{name}"
devices = 1
count = {count}
"""
CLUSTER = """
name = "two-kinds"
source = "a test"
{kinds}
[links.room]
latency = "200us"
bandwidth = "1Gbit/s"
shared_by = "host"
source = "a test"
"""
JOB = """
[model]
name = "config.json"
sequence_length = 32
[cluster]
name = "two-kinds.toml"
devices = 4
[batch]
sequences = {sequences}
micro_batch = 1
{layout}
[schedule]
dtype = "fp32"
[train]
steps = {steps}
learning_rate = 1e-2
[data]
files = ["text.txt"]
[checkpoint]
every = {every}
disks = "{disks}"
"""
LAYOUT = """[layout]
pipeline = 2
data = 2"""
"""Ranks 0 and 1 are on the first kind, 2 and 3 on the second."""


def write_job(
    folder: Path,
    *,
    steps: int,
    kinds: tuple[str, ...] = ("new", "old"),
    sequences: int = 8,
    every: int = 0,
    disks: str = "shared",
    layout: str = LAYOUT,
) -> Path:
    """A job and all that it names; the job's file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    words = random.Random(7)
    text = " ".join(words.choice(("one", "two", "three", "four")) for _ in range(20_000))
    (folder / "text.txt").write_text(text)
    tables = "".join(KIND.format(name=kind, count=4 // len(kinds)) for kind in kinds)
    (folder / "two-kinds.toml").write_text(CLUSTER.format(kinds=tables))
    job = folder / "job.toml"
    body = JOB.format(steps=steps, sequences=sequences, every=every, disks=disks, layout=layout)
    job.write_text(body)
    return job


def ratrain(*arguments: str | Path) -> list[str]:
    """`ratrain` as a command, of the source under test."""
    return [sys.executable, "-P", "-m", "ratrain", *map(str, arguments)]


def prepared(job: Path, run: Path) -> RunFolder:
    """The job's run, ready for any launcher."""
    command = ratrain("train", job, "--run", run, "--prepare-only", "--threads", "1")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, check=True, capture_output=True, env=environment, timeout=120)
    return RunFolder(run)


def losses(folder: RunFolder) -> list[str]:
    """The losses of all steps, each of which was done."""
    rows = folder.read_metrics()
    assert [row["step"] for row in rows] == list(range(len(rows)))
    return [row["loss_bits"] for row in rows]


def steps_done(folder: RunFolder) -> int:
    """Lines of metrics: a step that was done again counts again."""
    if not folder.metrics.exists():
        return 0
    return folder.metrics.read_text().count("\n")


def rank_processes(run: RunFolder) -> list[int]:
    """The ranks of a run, on all nodes, that have not ended."""
    told = subprocess.run(
        ["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, check=True
    )
    mark = f"ratrain.runtime.rank {run.path}"
    return [int(line.split()[0]) for line in told.stdout.splitlines() if line.endswith(mark)]


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.05)
