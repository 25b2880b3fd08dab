"""`ratrain launch`: which host runs what, and all of them started, stopped and ended from one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runs import rank_processes, ratrain, start, steps_done, wait_until, write_job
from hosts import ADDRESS, NETWORK, network
from test_stops import saved_behind_the_last_step

from ratrain.checkpoint.listing import listed
from ratrain.errors import SAVED_NOT_FINISHED
from ratrain.runtime.attempts import attempts
from ratrain.runtime.run.host_ranks import worst_status
from ratrain.runtime.run_folder import RunFolder

RSH = f"""#!/bin/sh
# As ssh: words that a shell on the host of that name is to run, in a network of the hosts' own.
name=$1; shift
exec nsenter --net=/run/netns/{NETWORK} unshare --uts sh -c "hostname $name; $*"
"""


@pytest.mark.slow
def test_a_prepared_run_says_what_each_host_of_its_cluster_runs_and_reads(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    job.write_text(job.read_text().replace('"cpu-lab"', '"lab-mixed"'))
    options = ("train", job, "--prepare-only", "--run")
    said = ratrain(tmp_path, *options, tmp_path / "run")
    assert said.status == 0, said.err
    prepared = ratrain(tmp_path, *options, tmp_path / "again", "--json").body
    used = {host["name"]: host["ranks"] for host in prepared["hosts"] if host["ranks"]}
    assert sorted(rank for ranks in used.values() for rank in ranks) == [0, 1]
    idle = [host["name"] for host in prepared["hosts"] if not host["ranks"]]
    assert idle and f"idle: {', '.join(idle)}" in said.out
    for name in used:
        assert f"--host {name}" in said.out
    names = {Path(file).name for file in prepared["files"]}
    assert names == {"job.toml", "config.json", "text.txt"}
    assert all(file in said.out for file in prepared["files"])


def test_of_several_statuses_the_one_that_says_most_is_the_launchs() -> None:
    assert worst_status([0, 75, 5, 8]) == 8
    assert worst_status([5, -signal.SIGKILL]) == 137
    assert worst_status([0, 75, 0]) == 75
    assert worst_status([75, 5]) == 5
    assert worst_status([0, 0]) == 0


@pytest.mark.slow
def test_hosts_that_cannot_be_reached_end_the_launch_with_their_names(tmp_path: Path) -> None:
    job, run = write_job(tmp_path), tmp_path / "run"
    made = ratrain(tmp_path, "train", job, "--run", run, "--prepare-only", "--no-calibrate")
    assert made.status == 0, made.err
    ended = ratrain(tmp_path, "launch", run, "--rsh", "sh -c 'exit 255'")
    assert ended.status == 5, ended.err
    assert "laptop-1, laptop-2 cannot be reached, or were lost" in ended.err
    assert "fix: give addresses with --at NAME=ADDRESS" in ended.err


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces")
def test_hosts_are_started_from_one_asked_to_stop_and_stop_by_themselves_without_it(
    tmp_path: Path,
) -> None:
    job, run = write_job(tmp_path, steps=100_000), tmp_path / "run"
    made = ratrain(tmp_path, "train", job, "--run", run, "--prepare-only", "--no-calibrate")
    assert made.status == 0, made.err
    rsh = tmp_path / "rsh.sh"
    rsh.write_text(RSH)
    rsh.chmod(0o755)
    words = ("launch", run, "--rsh", rsh, "--at", f"laptop-1={ADDRESS}")
    path = os.pathsep.join(sys.path)
    with network():
        launch = start(tmp_path, *words, PYTHONPATH=path)
        wait_until(lambda: steps_done(run) > 5, launch)
        launch.send_signal(signal.SIGTERM)
        _, err = launch.communicate(timeout=60)
        assert launch.returncode == SAVED_NOT_FINISHED, err
        step = saved_behind_the_last_step(run)
        assert f"laptop-1: stopped and saved: step {step} of 100000" in err
        assert "2 ranks on 2 hosts: 0 on" in err and err.count("stopped and saved") == 1

        launch = start(tmp_path, *words, PYTHONPATH=path)
        wait_until(lambda: steps_done(run) > step + 5, launch)
        launch.kill()
        launch.communicate(timeout=60)
        end_s = time.monotonic() + 60
        while rank_processes(run) and time.monotonic() < end_s:
            time.sleep(0.1)
        assert saved_behind_the_last_step(run) > step + 5

        launch = start(tmp_path, *words, PYTHONPATH=path)
        wait_until(lambda: len(rank_processes(run)) >= 2, launch)
        before = steps_done(run)
        wait_until(lambda: steps_done(run) > before + 2, launch)
        victim = subprocess.check_output(["pgrep", "-n", "-f", f"runtime.rank {run}"], text=True)
        os.kill(int(victim), signal.SIGKILL)
        _, err = launch.communicate(timeout=110)
        assert launch.returncode == 137 and "lost its connection" in err, err
        assert rank_processes(run) == []
    folder = RunFolder(run)
    newest = max(checkpoint.step for checkpoint in listed(folder.checkpoints))
    folder.write_spec(replace(folder.read_spec(), end_step=newest + 3), folder.kept_program())
    with network():
        done = ratrain(tmp_path, *words, PYTHONPATH=path)
    assert done.status == 0, done.err
    assert "verdict: a step took" in done.out and (run / "report.html").exists()
    assert [each.first_step for each in attempts(folder)][-1] == newest
