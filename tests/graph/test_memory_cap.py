"""A control group that kills what takes more memory than was planned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

GROUPS = Path("/sys/fs/cgroup/memory")
GRAPH = """
[graph]
generate = "planted"
nodes = 60000
features_width = 128
[model]
hidden = 128
[train]
epochs = 2
[memory]
budget = "{budget}"
mode = "{mode}"
parts = 32
partitioner = "own"
"""

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(name="group")
def memory_group() -> Iterator[Path]:
    group = GROUPS / f"ratrain-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no control groups for memory (version 1), or no root")
    yield group
    group.rmdir()


def graph(folder: Path, group: Path | None, *words: str) -> subprocess.CompletedProcess[str]:
    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    command = [sys.executable, "-m", "ratrain", "graph", *words, "--json"]
    pipes = {"capture_output": True, "text": True, "check": False, "timeout": 300}
    return subprocess.run(command, cwd=folder, preexec_fn=enter, **pipes)  # type: ignore[call-overload]


@pytest.mark.parametrize("mode", ["auto", "packed"])
def test_training_lives_in_a_tenth_more_than_its_planned_peak(
    mode: str, group: Path, tmp_path: Path
) -> None:
    (tmp_path / "graph.toml").write_text(GRAPH.format(budget="340MB", mode=mode))
    planned = json.loads(graph(tmp_path, None, "plan", "graph.toml").stdout)["plan"]
    assert planned["in_memory_bytes"] > 1.2 * planned["peak_bytes"]
    most = str(int(1.1 * planned["peak_bytes"]))
    (group / "memory.limit_in_bytes").write_text(most)
    done = graph(tmp_path, group, "train", "graph.toml")
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)["measured"]
    for name in ("read_bytes", "written_bytes"):
        assert measured[name] == planned[name] > 0
