"""Runs under a real Slurm: placed, seated, preempted, queued again, cancelled, restarted."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from engine_jobs import (
    LAYOUT,
    losses,
    prepared,
    rank_processes,
    ratrain,
    steps_done,
    wait_until,
    write_job,
)
from slurm_rig import NODES, Slurm, missing

from ratrain.checkpoint.listing import listed
from ratrain.runtime.run_folder import RunFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(missing()), reason=missing() or "Slurm is here"),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Generator[Slurm]:
    started = Slurm(tmp_path_factory.mktemp("slurm"))
    yield started
    started.close()


@pytest.fixture(autouse=True)
def nothing_is_left(slurm: Slurm) -> Generator[None]:
    yield
    slurm.clear()


def submitted(slurm: Slurm, run: Path, *options: str, restarts: int = 3) -> str:
    """The number of the job that runs a prepared run."""
    command = ratrain("launch", "slurm", run, "--restarts", str(restarts))
    slurm.run(*command, "--submit", "--", "--partition=low", *options)
    told = slurm.run("squeue", "-h", "-o", "%i", "--sort=-i", "-n", run.name).stdout
    return told.split()[0].partition("+")[0]


def text_of(run: RunFolder) -> str:
    return "".join(path.read_text() for path in sorted(run.logs.glob("slurm-*.txt")))


def long_run(tmp_path: Path, name: str, steps: int = 60) -> RunFolder:
    """Some seconds of steps."""
    return prepared(write_job(tmp_path, steps=steps, sequences=16), tmp_path / name)


def test_srun_alone_trains_in_any_order_of_hosts(slurm: Slurm, tmp_path: Path) -> None:
    run = prepared(write_job(tmp_path, steps=3, kinds=("one", "other")), tmp_path / "run")
    (tmp_path / "hosts").write_text("n3\nn1\nn4\nn2\n")
    arbitrary = ["env", f"SLURM_HOSTFILE={tmp_path}/hosts", "srun", "-n4", "-m", "arbitrary"]
    ended = slurm.run(*arbitrary, *ratrain("rank", run.path))
    assert len(losses(run)) == 3
    assert "4 ranks on 4 hosts: 0 on n3, 1 on n1, 2 on n4, 3 on n2" in ended.stderr
    assert ended.stderr.count("done: step 3 of 3") == 1  # and not once a host


def test_a_het_job_whose_groups_were_swapped_has_every_rank_on_its_kind(
    slurm: Slurm, tmp_path: Path
) -> None:
    run = prepared(write_job(tmp_path, steps=3), tmp_path / "run")
    slurm.run(*ratrain("launch", "slurm", run.path))
    script = run.path / "slurm.sbatch"
    assert script.read_text().index("=new") < script.read_text().index("=old")
    swapped = script.read_text().replace("=new", "=x").replace("=old", "=new").replace("=x", "=old")
    script.write_text(swapped)
    slurm.submit("--wait", str(script))
    assert len(losses(run)) == 3
    assert "0 on n1, 1 on n2, 2 on n3, 3 on n4" in text_of(run)


def test_hosts_of_other_kinds_than_the_plan_s_are_refused_by_name(
    slurm: Slurm, tmp_path: Path
) -> None:
    run = prepared(write_job(tmp_path, steps=3), tmp_path / "run")
    ended = slurm.run("srun", "-N2", "-n4", "-C", "new", *ratrain("rank", run.path), check=False)
    assert ended.returncode == 3
    assert "2 on new, 2 on old; started were 4 on new (n1, n2)" in ended.stderr


def test_a_preempted_run_is_queued_again_and_goes_on_with_the_same_losses(
    slurm: Slurm, tmp_path: Path
) -> None:
    run, undisturbed = long_run(tmp_path, "run"), long_run(tmp_path, "undisturbed")
    job = submitted(slurm, run.path)
    wait_until(lambda: steps_done(run) > 3, "the first steps")
    slurm.run("sbatch", "-p", "high", "-N4", "-n8", "-o", "/dev/null", "--wrap", "sleep 2")
    slurm.wait_state(job, "PENDING")
    saved = max(checkpoint.step for checkpoint in listed(run.checkpoints))
    assert saved == steps_done(run) < 60
    slurm.start_now(job)
    slurm.wait_state(job, "COMPLETED")
    slurm.run("srun", "-n4", "-N4", *ratrain("rank", undisturbed.path))
    assert steps_done(run) == 60  # none was done twice
    assert losses(run) == losses(undisturbed)


@pytest.mark.matrix
@pytest.mark.parametrize("how", ["USR1", "scancel", "a file"])
def test_a_job_that_is_stopped_has_saved_and_is_queued_again_for_the_time_limit_alone(
    slurm: Slurm, tmp_path: Path, how: str
) -> None:
    run = long_run(tmp_path, "run", steps=2000)
    job = submitted(slurm, run.path)
    wait_until(lambda: steps_done(run) > 3, "the first steps")
    if how == "USR1":  # what --signal sends before the limit
        slurm.run("scancel", "--signal=USR1", job)
        slurm.wait_state(job, "PENDING")
    elif how == "scancel":
        slurm.run("scancel", job)
        slurm.wait_state(job, "CANCELLED")
    else:
        run.stop_request.touch()
        slurm.wait_state(job, "FAILED")
        assert slurm.job(job)["ExitCode"] == "75:0"
    assert slurm.job(job)["Restarts"] == ("1" if how == "USR1" else "0")
    wait_until(lambda: not rank_processes(run), "the end of the ranks")
    assert max(checkpoint.step for checkpoint in listed(run.checkpoints)) == steps_done(run)


@pytest.mark.parametrize(
    ("disks", "said"),
    [("shared", "start 2 of 4"), ("per-host", "starting them again (1 of 3)")],
    ids=["a step for each node", "one step"],
)
def test_a_killed_rank_comes_back_inside_the_job(
    slurm: Slurm, tmp_path: Path, disks: str, said: str
) -> None:
    job_file = write_job(tmp_path, steps=5000, sequences=16, every=5, disks=disks)
    run = prepared(job_file, tmp_path / "run")
    submitted(slurm, run.path)
    wait_until(lambda: steps_done(run) > 8, "a checkpoint")
    os.kill(rank_processes(run)[2], signal.SIGKILL)
    wait_until(lambda: said in text_of(run), "the ranks' end")
    done = steps_done(run)
    wait_until(lambda: steps_done(run) > done, "a new step")


@pytest.fixture(scope="module")
def losing(tmp_path_factory: pytest.TempPathFactory) -> Generator[Slurm]:
    """One that soon takes a silent node for lost."""
    started = Slurm(tmp_path_factory.mktemp("losing"), node_timeout_s=10)
    yield started
    started.close()


@pytest.mark.parametrize(
    ("kinds", "layout"),
    [(("any",), ""), (("new", "old"), ""), (("any",), LAYOUT)],
    ids=["nodes", "a het job", "a layout"],
)
def test_a_run_goes_on_without_a_node_that_is_lost_and_saves_when_it_is_preempted(
    losing: Slurm, tmp_path: Path, kinds: tuple[str, ...], layout: str
) -> None:
    """Before Slurm misses the node; and in the same job after that."""
    job_file = write_job(tmp_path, steps=5000, sequences=16, every=10, kinds=kinds, layout=layout)
    run = prepared(job_file, tmp_path / "run")
    job = submitted(losing, run.path)
    wait_until(lambda: steps_done(run) > 12, "a checkpoint")
    done = steps_done(run)
    losing.lose("n4")
    try:
        wait_until(lambda: steps_done(run) > done + 2, "steps without the node")
        assert run.read_spec().seats.world_size == 3
        wait_until(lambda: "n4" not in losing.nodes_of(job), "Slurm to miss the node")
        done = steps_done(run)
        wait_until(lambda: steps_done(run) > done + 2, "steps after that")
        assert losing.state(job) == "RUNNING" and losing.job(job)["Restarts"] == "0"
        assert ("[layout] is for 4 devices, of which 3 are left" in text_of(run)) == bool(layout)
    finally:
        losing.bring_back("n4")
    losing.run("scancel", "--signal=TERM", job)  # what preemption sends
    losing.wait_state(job, "PENDING")
    assert max(checkpoint.step for checkpoint in listed(run.checkpoints)) == steps_counted(run)
    losing.clear()


def steps_counted(run: RunFolder) -> int:
    """Steps that were done, each once."""
    return 1 + max(row["step"] for row in run.read_metrics())


def test_a_job_whose_batch_host_is_lost_is_queued_again(losing: Slurm, tmp_path: Path) -> None:
    """With --no-kill it would keep its nodes, and nothing would run there."""
    job_file = write_job(tmp_path, steps=5000, every=10, kinds=("any",), layout="")
    run = prepared(job_file, tmp_path / "run")
    job = submitted(losing, run.path)
    wait_until(lambda: steps_done(run) > 2, "steps")
    losing.lose("n1")
    try:
        losing.wait_state(job, "PENDING", timeout_s=120)
        assert losing.job(job)["Restarts"] == "1"
    finally:
        losing.bring_back("n1")
    losing.clear()


def test_hosts_with_disks_of_their_own_may_come_back_in_any_order(
    slurm: Slurm, tmp_path: Path
) -> None:
    job = write_job(tmp_path, steps=400, kinds=("one", "other"), disks="per-host", sequences=16)
    prepared(job, tmp_path / "run")
    for host in NODES:
        subprocess.run(
            ["cp", "-a", tmp_path / "run", f"{slurm.folder}/disk-{host}/run"], check=True
        )
    on_disk = RunFolder(Path("/mnt/run"))

    def ranks(hosts: tuple[str, ...]) -> str:
        (tmp_path / "hosts").write_text("\n".join(hosts) + "\n")
        where = [f"MASTER_ADDR={hosts[0]}", "MASTER_PORT=29500"]  # no folder says it to all
        placed = [f"SLURM_HOSTFILE={tmp_path}/hosts", *where]
        arbitrary = ["env", *placed, "srun", "-n4", "-m", "arbitrary"]
        seen = [RunFolder(slurm.folder / f"disk-{host}" / "run") for host in NODES]
        done = max(map(steps_done, seen))
        step = slurm.start(*arbitrary, *ratrain("rank", on_disk.path))
        wait_until(lambda: max(map(steps_done, seen)) > done + 3, "steps")
        slurm.run("scancel", "--signal=TERM", "--user=root")
        output, _ = step.communicate(timeout=60)
        return output

    first = ranks(NODES)
    assert "4 disks" in first and "stopped and saved" in first
    again = ranks(("n4", "n2", "n1", "n3"))
    assert "0 on n1, 1 on n2, 2 on n3, 3 on n4" in again and "training from step" in again


def test_train_inside_an_allocation_of_several_nodes_says_what_to_type(
    slurm: Slurm, tmp_path: Path
) -> None:
    job = write_job(tmp_path, steps=3)
    several = slurm.run("salloc", "-N2", *ratrain("train", job), check=False)
    assert several.returncode == 2 and "srun -n RANKS ratrain rank RUN" in several.stderr
    each = slurm.run("srun", "-n2", *ratrain("train", job), check=False)
    assert each.returncode == 2 and "has started this command 2 times" in each.stderr
    assert not (tmp_path / "runs").exists()


def test_an_array_continues_one_run(slurm: Slurm, tmp_path: Path) -> None:
    run = prepared(write_job(tmp_path, steps=3, kinds=("any",)), tmp_path / "run")
    slurm.run(*ratrain("launch", "slurm", run.path, "--", "--array=1-2%1"))
    slurm.submit("--wait", str(run.path / "slurm.sbatch"))
    assert steps_done(run) == 3 and text_of(run).count("done: step 3 of 3") == 2
