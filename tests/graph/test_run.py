"""Runs in processes of their own: killed, stopped, resumed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

GRAPH = """
[graph]
generate = "planted"
nodes = 1500
features_width = 16
classes = 4
[model]
kind = "{kind}"
hidden = 12
[train]
epochs = {epochs}
[memory]
budget = "290MB"
parts = 6
mode = "bypass"
partitioner = "own"
"""


def started(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ratrain", "graph", "train", "graph.toml", *more]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, **pipes)  # type: ignore[call-overload]


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def checkpoints(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.glob("checkpoints/*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gcn", "gat"])
def test_a_run_killed_again_and_again_ends_with_the_very_same_weights(
    kind: str, tmp_path: Path
) -> None:
    (tmp_path / "graph.toml").write_text(GRAPH.format(kind=kind, epochs=60))
    assert ended(started(tmp_path, "--run", "whole"))[0] == 0
    draw = random.Random(kind)
    for _ in range(3):
        before = checkpoints(tmp_path / "killed")
        process = started(tmp_path, "--run", "killed", "--resume")
        while checkpoints(tmp_path / "killed") == before and process.poll() is None:
            time.sleep(0.02)
        time.sleep(draw.uniform(0, 0.3))
        process.kill()
        ended(process)
    status, out, err = ended(started(tmp_path, "--run", "killed", "--resume"))
    assert status == 0, err
    assert "resumed after epoch" in out
    # a name ends in the hash of its bytes, the optimizer's states among them
    assert checkpoints(tmp_path / "killed") == checkpoints(tmp_path / "whole")
    metrics = [tmp_path / run / "metrics.jsonl" for run in ("whole", "killed")]
    whole, killed = ([json.loads(row)["loss"] for row in m.open()] for m in metrics)
    assert killed == whole
    assert not list((tmp_path / "killed").glob("tier/*"))


@pytest.mark.slow
def test_a_run_that_is_asked_to_stop_saves_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "graph.toml").write_text(GRAPH.format(kind="sage", epochs=100_000))
    process = started(tmp_path, "--run", "run")
    while not checkpoints(tmp_path / "run") and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    status, _, err = ended(process)
    assert status == 75, err
    assert "resume with --resume" in err
    number = int(checkpoints(tmp_path / "run")[-1].split("-")[1])
    status, out, _ = ended(
        started(tmp_path, "--run", "run", "--resume", "--epochs", str(number + 1))
    )
    assert status == 0
    assert f"resumed after epoch {number}" in out


@pytest.mark.slow
def test_a_folder_with_a_run_is_not_begun_anew_nor_by_another_graph(tmp_path: Path) -> None:
    (tmp_path / "graph.toml").write_text(GRAPH.format(kind="gcn", epochs=1))
    assert ended(started(tmp_path, "--run", "run"))[0] == 0
    status, _, err = ended(started(tmp_path, "--run", "run"))
    assert (status, "there is a run already" in err) == (2, True)
    (tmp_path / "graph.toml").write_text(GRAPH.format(kind="gin", epochs=2))
    status, _, err = ended(started(tmp_path, "--run", "run", "--resume"))
    assert (status, "another graph, network or training" in err) == (7, True)
    for path in (tmp_path / "run").glob("checkpoints/*"):
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    (tmp_path / "graph.toml").write_text(GRAPH.format(kind="gcn", epochs=2))
    status, _, err = ended(started(tmp_path, "--run", "run", "--resume"))
    assert (status, "not those that were saved" in err) == (7, True)
