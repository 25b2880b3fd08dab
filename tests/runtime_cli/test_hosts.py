"""Several hosts under a user's own torchrun: what each says, shares, saves, and is refused for."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from cli_runs import ratrain, steps_done, wait_until, write_job
from hosts import Host, end, made_hosts, network, ranks_of, torchrun

from ratrain.checkpoint.manifest import parse
from ratrain.runtime.run_folder import RunFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for mount and host name namespaces"),
]

STEPS = 12


@pytest.fixture(autouse=True)
def _one_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[list[Host]]:
    count, shared = request.param
    made = made_hosts(tmp_path, count, shared=shared)
    with network():
        yield made
        end(made)


def prepared(
    place: Path, *, data: int, pipeline: int = 1, steps: int = STEPS, checkpoint: str = ""
) -> Path:
    """A job and its folder, ready for torchrun."""
    job = write_job(place, steps=steps)
    text = job.read_text().replace("devices = 2", f"devices = {data * pipeline}")
    text = text.replace("sequences = 8", "sequences = 24")
    text = text.replace("pipeline = 2\ndata = 1", f"pipeline = {pipeline}\ndata = {data}")
    job.write_text(text.replace("every = 4", f"every = 4\n{checkpoint}"))
    run = place / "run"
    prepared = ratrain(place, "train", job, "--run", run, "--prepare-only", "--no-calibrate")
    assert prepared.status == 0, prepared.err
    return run


def give_each(hosts: list[Host], place: Path) -> None:
    """Copies what was prepared to every host's own disk."""
    for host in hosts:
        assert host.disk is not None
        shutil.copytree(place, host.disk, dirs_exist_ok=True)


def bits(run: Path) -> list[str]:
    return [row["loss_bits"] for row in RunFolder(run).read_metrics()]


@pytest.mark.parametrize("hosts", [(3, True)], indirect=True)
def test_three_hosts_tell_how_far_they_are_and_own_the_folder_together(hosts: list[Host]) -> None:
    place = hosts[0].place
    run = prepared(place, data=3, steps=100_000)
    torchrun(hosts, 1, run)
    assert hosts[0].process is not None
    wait_until(lambda: steps_done(run) > 5, hosts[0].process)
    refused = ratrain(place, "train", place / "job.toml", "--run", run, "--resume", "--json")
    assert refused.status == 9, refused
    assert "belongs to `torchrun`" in refused.body["what"] and "birch" in refused.body["what"]
    other = made_hosts(place.parent, 1, shared=True)
    torchrun(other, 3, run)
    status, err = other[0].ended()
    assert status != 0 and "belongs to `torchrun`" in err and "Traceback" not in err.split("E1")[0]
    (run / "stop-requested").touch()
    for number, host in enumerate(hosts):
        status, err = host.ended()
        assert status == 1 and "exitcode  : 75" in err, err
        assert f"3 ranks on 3 hosts; {host.name} has rank {number}" in err
        assert "step 1/100000  loss " in err and " tok/s " in err and " left " in err
        assert "saved step-00000004" in err and "stopped and saved: step " in err
    assert not list((run / "ranks").glob("failure-*")), "the refused launch left its trace"
    resumed = ratrain(place, "train", place / "job.toml", "--run", run, "--resume", "--steps", "5")
    assert resumed.status == 0 and "finished at step" in resumed.err, resumed.err


@pytest.mark.parametrize("hosts", [(2, False)], indirect=True)
def test_what_hosts_must_share_and_have_alike_is_refused_before_the_first_step(
    hosts: list[Host],
) -> None:
    birch, oak = hosts
    run = prepared(birch.place, data=2)
    give_each(hosts, birch.place)
    assert birch.disk is not None and oak.disk is not None

    def refused(*words: str) -> None:
        torchrun(hosts, 1, run)
        for host in hosts:
            status, err = host.ended()
            assert status != 0
            message = err[err.index("error: ") :].split("Traceback")[0]
            for word in (*words, "fix: "):
                assert word in message, message
        for host in hosts:
            assert host.disk is not None
            assert not (host.disk / "run" / "metrics.jsonl").exists()
            assert not list((host.disk / "run" / "checkpoints").iterdir())

    both = "rank 1 on host oak and rank 0 on host birch"
    refused(f"{both} each have their own folder", "per-host", "share")
    job = oak.disk / "job.toml"
    kept = job.read_text()
    job.write_text(kept.replace("learning_rate = 1e-2", "learning_rate = 2e-2"))
    refused("the job's train.learning_rate is 0.01 for rank 0 on host birch and 0.02 for rank 1")
    job.write_text(kept)
    (oak.disk / "run" / "run.json").unlink()  # not the secret: it is heard by all
    torchrun(hosts, 1, run)
    for host in hosts:
        status, err = host.ended()
        assert status != 0
        assert "rank 1 on host oak: is not a run's folder: it has no run.json" in err, err


@pytest.mark.parametrize("hosts", [(2, False)], indirect=True)
def test_hosts_with_disks_of_their_own_save_and_resume_each_its_part(
    hosts: list[Host], tmp_path: Path
) -> None:
    place = hosts[0].place
    run = prepared(place, data=2, pipeline=2, checkpoint='disks = "per-host"')
    give_each(hosts, place)
    alone = ratrain(place, "train", "job.toml", "--run", tmp_path / "alone", "--no-calibrate")
    assert alone.status == 0, alone.err
    birch, oak = (host.disk / "run" for host in hosts if host.disk is not None)

    torchrun(hosts, 2, run)
    assert hosts[0].process is not None
    wait_until((birch / "checkpoints" / "step-00000008").exists, hosts[0].process)
    os.kill(ranks_of(run)[3], signal.SIGKILL)
    ends = [host.ended() for host in hosts]
    assert all(
        status != 0 and "run is a separate folder on each of 2 disks" in err for status, err in ends
    )
    assert "error: " in ends[0][1] and "lost its connection to rank " in ends[0][1], ends[0][1]
    torchrun(hosts, 2, run)
    for host in hosts:
        status, err = host.ended()
        assert status == 0, err
        assert "training from step 8 to step 12" in err and "done: step 12 of 12" in err
    assert bits(birch) == bits(tmp_path / "alone")
    for number, disk in enumerate((birch, oak)):
        manifest = parse((disk / "checkpoints" / "step-00000012" / "manifest.json").read_bytes())
        assert manifest.spread is not None
        assert manifest.spread.disks == ("birch", "oak") and manifest.spread.here == number
        files = {path.name for path in (disk / "checkpoints" / "step-00000012").glob("rank-*")}
        assert files == {file.file for file in manifest.local_files} and len(files) == 2

    listed = ratrain(tmp_path, "checkpoints", oak, "--verify")
    assert listed.status == 0 and "2 of its 4 files are here, the rest on: birch" in listed.out
    apart = ratrain(tmp_path, "export", birch, "out")
    assert apart.status == 7 and "saved to the disk of host oak" in apart.err
    torchrun(hosts[::-1], 2, run)  # ranks take the seats whose files lie on their disk
    for host in hosts:
        status, err = host.ended()
        assert status == 0 and "done: step 12 of 12" in err, err
    for path in (oak / "checkpoints" / "step-00000012").glob("rank-*"):
        shutil.copyfile(path, birch / "checkpoints" / "step-00000012" / path.name)
    assert ratrain(tmp_path, "export", birch, "out").status == 0
    assert ratrain(tmp_path, "compare", birch, "alone").status == 0
    body = json.loads(ratrain(tmp_path, "checkpoints", birch, "--json").out)
    assert body["checkpoints"][-1]["elsewhere"] == {}
