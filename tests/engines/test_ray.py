"""A run on a real Ray: two nodes of two kinds on this machine."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from engine_jobs import losses, prepared, rank_processes, ratrain, steps_done, wait_until, write_job
from ray_rig import ENVIRONMENT, RAY, ray_of_two

import ratrain as ratrain_package
from ratrain.errors import SpecError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="Ray is not installed (pip install 'ratrain[ray]': 70 MB, not in the lock)",
    ),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with ray_of_two(tmp_path_factory.mktemp("ray")) as address:
        yield address


def test_a_run_has_its_kinds_is_stopped_resumes_and_outlives_a_killed_rank(
    address: str, tmp_path: Path
) -> None:
    job = write_job(tmp_path, steps=40, sequences=16, every=5, kinds=("old", "new"))
    run = prepared(job, tmp_path / "run")
    command = ratrain("launch", "ray", run.path, "--address", address)

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    first = start()
    wait_until(lambda: steps_done(run) > 6, "steps", 500)
    first.send_signal(signal.SIGTERM)
    told, _ = first.communicate(timeout=120)
    assert first.returncode == 75 and "stopped and saved" in told, told
    saved = steps_done(run)
    again = start()
    wait_until(lambda: steps_done(run) > saved + 1, "steps after a resume", 500)
    os.kill(rank_processes(run)[1], signal.SIGKILL)
    told, _ = again.communicate(timeout=300)
    assert again.returncode == 0 and "starting them again (1 of 3)" in told, told
    assert len(losses(run)) == 40 and not rank_processes(run)


@pytest.fixture
def spare(address: str) -> Generator[str]:
    """The node's id of a third node, `spare`, which ends with the test."""
    words = ["start", "--address", address, "--num-cpus", "2", "--labels", "kind=spare"]
    node = subprocess.Popen(
        [*RAY, *words, "--object-store-memory", "80000000", "--block"],
        env=ENVIRONMENT | dict(os.environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    told: list[str] = []

    def is_there() -> bool:
        listed = ("import ray, sys; ray.init(sys.argv[1], log_to_driver=False, logging_level=40); "
                  "print(*[n['NodeID'] for n in ray.nodes() if n['Alive'] "
                  "and n['Labels'].get('kind') == 'spare'])")  # fmt: skip
        asked = subprocess.run(
            [sys.executable, "-c", listed, address], capture_output=True, text=True
        )
        told[:] = asked.stdout.split()
        return bool(told)

    try:
        wait_until(is_there, "the node", 200)
        yield told[0]
    finally:
        node.terminate()
        node.wait(60)


def test_a_run_saves_and_goes_on_elsewhere_when_a_node_announces_its_end(
    address: str, spare: str, tmp_path: Path
) -> None:
    """Planned anew for those that are left; no step is lost."""
    job = write_job(tmp_path, steps=60, sequences=16, kinds=("new", "old", "spare"), layout="")
    text = job.read_text().replace("devices = 4", "devices = 3")
    job.write_text(text)
    run = prepared(job, tmp_path / "run")
    assert run.read_spec().seats.world_size == 3
    command = ratrain("launch", "ray", run.path, "--address", address)
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until(lambda: steps_done(run) > 4 or started.poll() is not None, "steps", 500)
    drain = ["drain-node", "--address", address, "--node-id", spare]
    reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a test"]
    subprocess.run(
        [*RAY, *drain, *reason, "--deadline-remaining-seconds", "200"],
        env=ENVIRONMENT | dict(os.environ),
        check=True,
        timeout=120,
    )
    told, _ = started.communicate(timeout=500)
    assert started.returncode == 0 and "a node of Ray is drained" in told, told
    assert run.read_spec().seats.world_size == 2 and len(losses(run)) == 60


PATIENT = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300"}
FITS = """
import sys, ray, ratrain
from ray.train import FailureConfig, RunConfig

ray.init(address=sys.argv[1], log_to_driver=False)
keeps = RunConfig(
    name="run", storage_path=sys.argv[3], failure_config=FailureConfig(max_failures=2)
)
ratrain.ray_trainer(sys.argv[2], run_config=keeps).fit()
"""


def test_ray_train_starts_the_ranks_and_starts_them_again_after_one_was_killed(
    address: str, tmp_path: Path
) -> None:
    job = write_job(tmp_path, steps=40, sequences=16, every=5, kinds=("one",))
    run = prepared(job, tmp_path / "run")
    fitting = subprocess.Popen(
        [sys.executable, "-c", FITS, address, str(run.path), str(tmp_path / "kept")],
        env={**os.environ, **PATIENT, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until(lambda: steps_done(run) > 6 or fitting.poll() is not None, "steps", 500)
    if fitting.poll() is None:
        os.kill(rank_processes(run)[1], signal.SIGKILL)
    told, _ = fitting.communicate(timeout=500)
    assert fitting.returncode == 0, told
    assert len(losses(run)) == 40 and not rank_processes(run)
    ranks = [rank for row in run.read_metrics() for rank in row["ranks"]]
    assert all(rank["allocated_peak_bytes"] for rank in ranks), "counted, as under our launcher"


def test_ray_train_is_refused_unequal_devices(tmp_path: Path) -> None:
    run = prepared(write_job(tmp_path, steps=2, kinds=("old", "new")), tmp_path / "run")
    with pytest.raises(SpecError, match="ratrain launch ray"):
        ratrain_package.ray_trainer(run.path)
