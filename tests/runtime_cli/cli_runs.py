"""`ratrain` as a process of its own, and a job that it trains in seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ratrain.cli.main import main

CONFIG = {
    "model_type": "llama",
    "_name_or_path": "minute",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 260,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}

JOB = """
[model]
name = "config.json"
sequence_length = 32

[cluster]
name = "cpu-lab"
devices = 2

[batch]
sequences = 8
micro_batch = 2

[layout]
pipeline = {pipeline}
data = {data}

[schedule]
dtype = "fp32"

[train]
steps = {steps}
learning_rate = 1e-2

[data]
files = ["text.txt"]

[checkpoint]
every = 4
"""


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.out)


def ratrain_arguments(*arguments: str | Path) -> list[str]:
    code = "from ratrain.cli.main import main; main()"
    return [sys.executable, "-c", code, *map(str, arguments)]


def start(
    folder: Path, *arguments: str | Path, stdin: int | None = None, **variables: str
) -> subprocess.Popen[str]:
    """Starts `ratrain` in a folder."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **variables}
    return subprocess.Popen(
        ratrain_arguments(*arguments),
        cwd=folder,
        env=environment,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ratrain(folder: Path, *arguments: str | Path, **variables: str) -> Ran:
    """Runs `ratrain` in a folder to its end."""
    process = start(folder, *arguments, stdin=None, **variables)
    out, err = process.communicate(timeout=110)
    return Ran(process.returncode, out, err)


def here(captured: pytest.CaptureFixture[str]) -> Ran:
    """Runs the command line of `sys.argv` in this process."""
    captured.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    shown = captured.readouterr()
    assert isinstance(ended.value.code, int)
    return Ran(ended.value.code, shown.out, shown.err)


def write_job(folder: Path, *, name: str = "job", steps: int = 8, pipeline: int = 2) -> Path:
    """A job of two processes with all that it needs beside it."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    lines = (f"line {n}: {n} times {n} is {n * n}.\n" for n in range(2000))
    (folder / "text.txt").write_text("".join(lines))
    path = folder / f"{name}.toml"
    path.write_text(JOB.format(steps=steps, pipeline=pipeline, data=2 // pipeline))
    return path


def wait_until(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Returns when it has happened; a process that has ended meanwhile is a failure."""
    while not happened():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def steps_done(run: Path) -> int:
    """Lines of a run's metrics."""
    path = run / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def rank_processes(run: Path) -> list[int]:
    """Process ids of a run's ranks, wherever they hang in the tree of processes."""
    pids: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"ratrain.runtime.rank" in words and str(run).encode() in words:
            pids.append(int(path.parent.name))
    return pids
