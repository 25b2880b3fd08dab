"""Printed manifests, run as Kubernetes would run them (`kubelet.py`)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import yaml
from engine_jobs import losses, prepared, ratrain, steps_done, write_job
from kubelet import Cluster, missing

from ratrain.runtime.run_folder import RunFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(missing()), reason=missing() or "pods can run"),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Generator[Cluster]:
    (tmp_path / "pods").mkdir()
    cluster = Cluster(tmp_path / "pods", ("new", "old"))
    yield cluster
    cluster.close()


def printed(run: RunFolder, *options: str) -> dict[str, Any]:
    """The manifest that is written for a prepared run."""
    command = ratrain("launch", "kubernetes", run.path, "--image", "an-image", *options)
    subprocess.run(command, check=True, capture_output=True)
    return yaml.safe_load((run.path / "kubernetes.yaml").read_text())


def said(folder: Path) -> str:
    logs = sorted((folder / "pods").glob("*.log"))
    return "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in logs)


def test_a_job_outlives_a_deleted_pod_and_a_killed_one_with_the_losses_of_one_machine(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = write_job(tmp_path, steps=60, sequences=16, every=5, kinds=("old",))
    whole, run = prepared(job, tmp_path / "whole"), prepared(job, tmp_path / "run")
    here = ratrain("train", job, "--run", whole.path, "--resume", "--no-calibrate")
    subprocess.run(here, check=True, capture_output=True)
    manifest = printed(run)
    assert manifest["kind"] == "Job"
    events: list[str] = []

    def disturb() -> None:
        done = steps_done(run)
        if not events and done >= 8:
            events.append("deleted")
            cluster.jobs[0].pods[1].delete()
        if events == ["deleted"] and done >= 25 and len(cluster.pods) == 4:
            events.append("killed")
            cluster.jobs[0].pods[2].signal(signal.SIGKILL)

    cluster.apply(manifest)
    assert cluster.run(disturb, 400) == "Complete", said(tmp_path)
    assert events == ["deleted", "killed"]
    assert losses(run) == losses(whole)
    assert cluster.jobs[0].failures == 1, said(
        tmp_path
    )  # the killed one; who lost a peer does not count


def test_a_set_of_two_kinds_trains_each_rank_on_its_kind_and_starts_again_together(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = write_job(tmp_path, steps=30, sequences=16, every=5)
    run = prepared(job, tmp_path / "run")
    manifest = printed(run)
    assert manifest["kind"] == "JobSet"
    events: list[str] = []

    def disturb() -> None:
        if not events and steps_done(run) >= 8:
            events.append("killed")
            cluster.jobs[1].pods[0].signal(signal.SIGKILL)

    cluster.apply(manifest)
    assert cluster.run(disturb, 400) == "Complete", said(tmp_path)
    assert cluster.restarts == 1
    assert len(losses(run)) == 30


def test_a_mistake_ends_a_job_at_once(cluster: Cluster, tmp_path: Path) -> None:
    run = prepared(write_job(tmp_path, steps=30, kinds=("old",)), tmp_path / "run")
    manifest = printed(run)
    (tmp_path / "text.txt").unlink()
    cluster.apply(manifest)
    assert cluster.run(lambda: None, 200) == "PodFailurePolicy", said(tmp_path)
    assert cluster.jobs[0].starts == 4


def test_a_manifest_for_nodes_that_are_not_there_is_not_run(
    cluster: Cluster, tmp_path: Path
) -> None:
    run = prepared(write_job(tmp_path, steps=3), tmp_path / "run")
    text = (printed(run), (run.path / "kubernetes.yaml").read_text())[1]
    cluster.apply(yaml.safe_load(text.replace('kind: "old"', 'kind: "older"')))
    with pytest.raises(AssertionError, match="no node has kind=older"):
        cluster.run(lambda: None, 100)
    assert sys.executable not in text
