"""Runs in processes of their own: killed, stopped, resumed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ratrain.graph.plan import lay_out, planned
from ratrain.graph.run import open_run
from ratrain.graph.spec import read_graph_file
from ratrain.graph.stopped import STOPPED_S
from ratrain.graph.train import Training

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
processes = {processes}
"""


def written(folder: Path, kind: str, epochs: int, processes: int = 1) -> None:
    """Writes a graph.toml."""
    text = GRAPH.format(kind=kind, epochs=epochs, processes=processes)
    (folder / "graph.toml").write_text(text)


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
@pytest.mark.parametrize(("kind", "processes"), [("gcn", 1), ("gat", 1), ("sage", 2)])
def test_a_run_killed_again_and_again_ends_with_the_very_same_weights(
    kind: str, processes: int, tmp_path: Path
) -> None:
    written(tmp_path, kind, 60, processes)
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
    page = (tmp_path / "whole" / "report.html").read_text()
    assert "Trained 60 epochs" in page and "as planned" in page


def test_an_epoch_is_in_the_metrics_before_its_checkpoint_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one that was killed between both would miss it for ever."""
    written(tmp_path, "gcn", 3)
    spec = read_graph_file(tmp_path / "graph.toml")
    plan = planned(lay_out(spec, tmp_path), spec.memory, tmp_path)
    folder, known, real = tmp_path / "run", list[int](), Training.save

    def save(training: Training, to: Path) -> Path:
        known.append(len((folder / "metrics.jsonl").read_text().splitlines()))
        return real(training, to)

    monkeypatch.setattr(Training, "save", save)
    run, close = open_run(spec, plan, tmp_path, folder)
    try:
        run.begin(resume=False)
        assert len(list(run.epochs())) == 3
    finally:
        close()
    assert known == [1, 2, 3]


@pytest.mark.slow
def test_a_run_that_is_asked_to_stop_saves_and_goes_on(tmp_path: Path) -> None:
    written(tmp_path, "sage", 100_000)
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
    written(tmp_path, "gcn", 1)
    assert ended(started(tmp_path, "--run", "run"))[0] == 0
    status, _, err = ended(started(tmp_path, "--run", "run"))
    assert (status, "there is a run already" in err) == (2, True)
    written(tmp_path, "gin", 2)
    status, _, err = ended(started(tmp_path, "--run", "run", "--resume"))
    assert (status, "another graph, network or training" in err) == (7, True)
    for path in (tmp_path / "run").glob("checkpoints/*"):
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    written(tmp_path, "gcn", 2)
    status, _, err = ended(started(tmp_path, "--run", "run", "--resume"))
    assert (status, "not those that were saved" in err) == (7, True)


def beside(process: subprocess.Popen[str]) -> list[int]:
    """The processes that a run has started and that train."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [
        pid
        for pid in map(int, children)
        if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


@pytest.mark.slow
def test_a_run_whose_other_process_is_killed_says_so_and_resumes_with_another_number(
    tmp_path: Path,
) -> None:
    written(tmp_path, "gin", 100_000, 2)
    process = started(tmp_path, "--run", "run")
    while not checkpoints(tmp_path / "run") and process.poll() is None:
        time.sleep(0.05)
    (other,) = beside(process)
    os.kill(other, signal.SIGKILL)
    status, _, err = ended(process)
    assert (status, "process 1 of 2: was ended by signal 9" in err) == (8, True), err
    assert "Traceback" not in err
    assert not list((tmp_path / "run").glob("tier/*/rank-0"))
    number = int(checkpoints(tmp_path / "run")[-1].split("-")[1])
    written(tmp_path, "gin", number + 1, 3)
    status, out, err = ended(started(tmp_path, "--run", "run", "--resume"))
    assert (status, f"resumed after epoch {number}" in out) == (0, True), err


@pytest.mark.slow
def test_a_run_whose_other_process_is_stopped_names_it_within_seconds_and_resumes(
    tmp_path: Path,
) -> None:
    written(tmp_path, "gin", 100_000, 3)
    process = started(tmp_path, "--run", "run")
    while not checkpoints(tmp_path / "run") and process.poll() is None:
        time.sleep(0.05)
    stopped = beside(process)[1]
    os.kill(stopped, signal.SIGSTOP)
    began_s = time.monotonic()
    status, _, err = ended(process)
    assert (status, "process 2 of 3: was stopped (SIGSTOP), and did not go on for 10 s" in err) == (
        8,
        True,
    ), err
    assert "Traceback" not in err
    assert time.monotonic() - began_s < 60  # ten, where processors are free
    assert not Path(f"/proc/{stopped}").exists()
    number = int(checkpoints(tmp_path / "run")[-1].split("-")[1])
    written(tmp_path, "gin", number + 1, 3)
    status, out, err = ended(started(tmp_path, "--run", "run", "--resume"))
    assert (status, f"resumed after epoch {number}" in out) == (0, True), err


@pytest.mark.slow
def test_a_run_that_was_stopped_whole_goes_on(tmp_path: Path) -> None:
    """As by Ctrl-Z and fg: nobody is taken for stopped."""
    written(tmp_path, "gin", 100_000, 2)
    process = started(tmp_path, "--run", "run")
    while not checkpoints(tmp_path / "run") and process.poll() is None:
        time.sleep(0.05)
    everybody = process.pid, *beside(process)
    for pid in everybody:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(STOPPED_S + 3)
    before = checkpoints(tmp_path / "run")
    for pid in everybody:
        os.kill(pid, signal.SIGCONT)
    while checkpoints(tmp_path / "run") == before and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    status, _, err = ended(process)
    assert status == 75, err


@pytest.mark.slow
def test_what_is_wrong_in_another_process_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    nodes = 200
    path = np.arange(nodes)
    np.save(tmp_path / "edges.npy", np.stack([path[:-1], path[1:]]))
    np.save(tmp_path / "labels.npy", path % 3)
    names = "\n".join(f'{name} = "{name}.npy"' for name in ("edges", "features", "labels"))
    text = f'[graph]\n{names}\n[memory]\nbudget = "400MB"\nparts = 2\nprocesses = 2\n'
    (tmp_path / "graph.toml").write_text(text)
    of_another: list[bool] = []
    for node in (0, nodes - 1):  # either end of the path is in a process of its own
        features = np.ones((nodes, 4), np.float32)
        features[node, 0] = np.nan
        np.save(tmp_path / "features.npy", features)
        status, _, err = ended(started(tmp_path))
        assert (status, f"features of node {node} are not all finite" in err) == (2, True), err
        assert "Traceback" not in err
        of_another.append("process 1: " in err)
    assert sorted(of_another) == [False, True]


@pytest.mark.slow
def test_a_run_of_several_processes_that_is_asked_to_stop_saves_and_reports(tmp_path: Path) -> None:
    written(tmp_path, "gcn", 100_000, 2)
    process = started(tmp_path, "--run", "run")
    while not checkpoints(tmp_path / "run") and process.poll() is None:
        time.sleep(0.05)
    for each in (*beside(process), process.pid):  # as a batch system does to all of a group
        os.kill(each, signal.SIGTERM)
    status, out, err = ended(process)
    assert status == 75, err
    report = json.loads((tmp_path / "run/report.json").read_text())
    moved = "read_bytes", "written_bytes", "sent_bytes"
    planned, measured = ([report[of][name] for name in moved] for of in ("plan", "measured"))
    assert measured == planned
    assert report["plan"]["processes"] == 2
    assert "sent" in out
    assert not list((tmp_path / "run").glob("tier/*"))
