"""Ranks that a real mpirun starts on two hosts, which it reaches without ssh."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from pathlib import Path

import pytest
from engine_jobs import losses, prepared, ratrain, write_job
from slurm_rig import Hosts, missing_hosts

from ratrain.runtime.attempts import attempts

WHY = missing_hosts() or (
    "" if shutil.which("mpirun") else "mpirun is not installed (apt: openmpi-bin)"
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(WHY), reason=WHY or "Open MPI is here"),
]


@pytest.fixture
def hosts(tmp_path: Path) -> Generator[Hosts]:
    (tmp_path / "hosts-rig").mkdir()
    made = Hosts(tmp_path / "hosts-rig")
    yield made
    made.close()


def test_mpirun_trains_without_a_variable(hosts: Hosts, tmp_path: Path) -> None:
    run = prepared(write_job(tmp_path, steps=3), tmp_path / "run")
    agent = tmp_path / "agent"
    lines = [f'{name}) exec {hosts.shell(name)} sh -c "$*" ;;' for name in ("n1", "n2", "n3", "n4")]
    agent.write_text("#!/bin/bash\nhost=$1; shift\ncase $host in\n" + "\n".join(lines) + "\nesac\n")
    agent.chmod(0o755)
    mca = ["--mca", "plm_rsh_agent", str(agent), "--mca", "oob_tcp_if_exclude", "lo"]
    mpirun = ["mpirun", "--allow-run-as-root", "-np", "4", "--host", "n1:2,n2:2", *mca]
    ended = hosts.run(*mpirun, "-x", "PYTHONPATH", *ratrain("rank", run.path))
    assert len(losses(run)) == 3
    assert "4 ranks on 2 hosts: 0-1 on n1, 2-3 on n2" in ended.stderr
    (start,) = attempts(run)
    assert start.first_step == 0 and start.versions["torch"]
