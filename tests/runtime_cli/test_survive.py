"""`ratrain launch --restarts`: a run goes on without a lost host, and with it once it is back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from cli_runs import JOB, ratrain, start, steps_done, wait_until, write_job
from hosts import ADDRESS, NETWORK, network, ranks_of

from ratrain.runtime.attempts import attempts
from ratrain.runtime.run.episodes import episodes_of
from ratrain.runtime.run.reports.goodput import goodput_of
from ratrain.runtime.run_folder import RunFolder

HOSTS = ("birch", "oak", "pine")
RSH = f"""#!/bin/sh
# As ssh: words that a shell on that host is to run; one that is down does not answer.
name=$1; shift
[ -e "$(dirname "$0")/down-$name" ] && exit 255
exec nsenter --net=/run/netns/{NETWORK} unshare --uts sh -c "hostname $name; $*"
"""
CLUSTER = """
name = "three-hosts"
source = "made by a test"

[[device]]
name = "cpu"
launch = "10us"
launch_source = "assumed"
memory_efficiency = 0.8
memory_efficiency_source = "assumed"

[[device.tiers]]
name = "RAM"
capacity = "2GB"
bandwidth = "10GB/s"
source = "assumed"

[[device.rates]]
dtype = "fp32"
peak = "100GFLOP/s"
gemm = "50GFLOP/s"
source = "assumed"

[links.world]
bandwidth = "1GB/s"
latency = "50us"
source = "assumed"
"""
HOST = """
[[host]]
name = "{name}"
device = "cpu"
devices = 1
count = 1
"""


LAYOUT = "[layout]\npipeline = 1\ndata = 3\n\n"


def lose(folder: Path, name: str, run: Path, ranks: list[int], how: signal.Signals) -> list[int]:
    """A host answers nobody any more: its processes are gone (SIGKILL), or as if its kernel hung
    (SIGSTOP); their ids."""
    (folder / f"down-{name}").touch()
    launch = subprocess.check_output(["pgrep", "-f", f"launch {run} --host {name} "], text=True)
    there = ranks_of(run)
    lost = [*map(int, launch.split()), *(there[rank] for rank in ranks)]
    for pid in lost:
        os.kill(pid, how)
    return lost


def prepared(
    folder: Path, layout: str = "", disks: str = "shared"
) -> tuple[RunFolder, tuple[str | Path, ...]]:
    """A run on three hosts, and how it is launched."""
    job, run = write_job(folder), RunFolder(folder / "run")
    (folder / "cluster.toml").write_text(CLUSTER + "".join(HOST.format(name=n) for n in HOSTS))
    before, _, after = JOB.format(steps=100_000, pipeline=1, data=1).partition("[layout]")
    text = before + layout + "[schedule]" + after.partition("[schedule]")[2]
    text = text.replace("[schedule]\n", "[schedule]\nsharding = 0\n")
    text = text.replace("[train]\n", "[train]\nclip_norm = 1.0\n")
    text = text.replace("every = 4\n", f'every = 4\ndisks = "{disks}"\n')
    text = text.replace('"cpu-lab"\ndevices = 2', '"cluster.toml"\ndevices = 3')
    job.write_text(
        text.replace("sequences = 8\nmicro_batch = 2", "sequences = 12\nmicro_batch = 1")
    )
    made = ratrain(folder, "train", job, "--run", run.path, "--prepare-only", "--no-calibrate")
    assert made.status == 0, made.err
    rsh = folder / "rsh.sh"
    rsh.write_text(RSH)
    rsh.chmod(0o755)
    at = [word for name in HOSTS for word in ("--at", f"{name}={name}")]
    meet = ("--at", f"birch={ADDRESS}")
    return run, ("launch", run.path, "--rsh", rsh, "--restarts", "3", *at, *meet)


@pytest.mark.slow
def test_ranks_that_do_not_train_end_with_the_connection_to_who_started_them(
    tmp_path: Path,
) -> None:
    """Else they would have the place of those that are started again."""
    run, _ = prepared(tmp_path)
    words = ("launch", run.path, "--host", "oak", "--follow-input", "--claim", "x", "--start", "y")
    reading, writing = os.pipe()
    launch = start(tmp_path, *words, "--at", "birch=127.0.0.1", stdin=reading)
    wait_until(lambda: 1 in ranks_of(run.path), launch)
    os.close(reading)
    os.close(writing)
    _, err = launch.communicate(timeout=15)
    assert launch.returncode == 143 and not ranks_of(run.path), err


needs_networks = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces")


@pytest.mark.slow
@pytest.mark.root
@needs_networks
def test_a_run_waits_for_a_host_that_it_cannot_be_planned_without(tmp_path: Path) -> None:
    """Its files may be on a disk of that host's own."""
    run, words = prepared(tmp_path, disks="per-host")
    told: list[str] = []
    with network():
        launch = start(tmp_path, *words, PYTHONPATH=os.pathsep.join(sys.path))
        assert launch.stderr is not None
        threading.Thread(target=told.extend, args=(launch.stderr,), daemon=True).start()
        wait_until(lambda: steps_done(run.path) > 5, launch)
        lose(tmp_path, "pine", run.path, [2], signal.SIGKILL)
        wait_until(lambda: "waiting up to 60 s for pine" in "".join(told), launch)
        done = steps_done(run.path)
        (tmp_path / "down-pine").unlink()
        wait_until(lambda: steps_done(run.path) > done + 5, launch)
        launch.send_signal(signal.SIGTERM)
        assert launch.wait(timeout=60) == 75, told
    rows = run.read_metrics()
    assert [row["step"] for row in rows] == list(range(len(rows)))


@pytest.mark.slow
@pytest.mark.root
@needs_networks
@pytest.mark.parametrize(
    ("how", "layout"),
    [(signal.SIGKILL, ""), (signal.SIGSTOP, ""), (signal.SIGKILL, LAYOUT)],
    ids=["dead", "hung", "dead, with a layout"],
)
def test_a_run_goes_on_without_a_host_that_is_lost_and_with_it_when_it_returns(
    tmp_path: Path, how: signal.Signals, layout: str
) -> None:
    run, words = prepared(tmp_path, layout)

    def trained(episode: int) -> bool:
        spec = run.read_spec()
        rows = [row for row in run.read_metrics() if row.get("episode", 0) == episode]
        return spec.episode == episode and len(rows) > 5

    with network():
        launch = start(tmp_path, *words, PYTHONPATH=os.pathsep.join(sys.path))
        wait_until(lambda: trained(0), launch)
        assert run.read_spec().seats.world_size == 3
        lost = lose(tmp_path, "pine", run.path, [2], how)
        wait_until(lambda: trained(1), launch)
        for pid in lost:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert run.read_spec().seats.world_size == 2
        (tmp_path / "down-pine").unlink()
        wait_until(lambda: trained(2), launch)
        launch.send_signal(signal.SIGTERM)
        _, err = launch.communicate(timeout=60)
    assert launch.returncode == 75, err
    assert "lost: pine" in err and "all hosts are there again" in err, err
    left = "[layout] is for 3 devices, of which 2 are left"
    assert err.count(left) == run.notes.read_text().count(left) == bool(layout), err
    assert [each["ranks"] for each in episodes_of(run, run.read_spec())] == [3, 2, 3]
    rows = run.read_metrics()
    assert [row["step"] for row in rows] == list(range(len(rows)))
    goodput = goodput_of(run.metrics_lines())
    assert goodput is not None and goodput.starts == len(attempts(run)) == 3
    assert "the run goes on from what the survivors hold" in run.notes.read_text()
