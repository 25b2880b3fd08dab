"""Ranks compare what each has read before the first step, and find out which disks they share."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_made import save
from launched import made
from runs_made import Setting, write_text

from ratrain.corpus import prepare
from ratrain.errors import RatrainError, RunFailed, RunTaken
from ratrain.objects.remote import Location
from ratrain.runtime.ownership import claim_run
from ratrain.runtime.rank import folder_lock
from ratrain.runtime.rank.beginning import Together, candidates
from ratrain.runtime.rank.folder_lock import FolderLock
from ratrain.runtime.rank.joining.agreement import agree, read_run
from ratrain.runtime.rank.joining.membership import Membership
from ratrain.runtime.rank.joining.rendezvous import Everybody
from ratrain.runtime.run_folder import RunFolder


def together(count: int, work: Callable[[int, Everybody], Any]) -> list[Any]:
    """What `work` returned or raised for each of some ranks, which are threads here."""
    barrier, texts = threading.Barrier(count, timeout=20), [""] * count
    ends: list[Any] = [None] * count

    def rank(number: int) -> None:
        def everybody(words: str) -> list[str]:
            texts[number] = words
            barrier.wait()
            heard = list(texts)
            barrier.wait()
            return heard

        try:
            ends[number] = work(number, everybody)
        except RatrainError as error:
            ends[number] = error

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What two hosts have: the same job, text, and prepared run."""
    monkeypatch.setattr(prepare, "default_cache", lambda: tmp_path / "cache")
    made(tmp_path / "first", Setting(data=2))
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    spec = tmp_path / "second" / "run" / "run.json"
    body = json.loads(spec.read_text())
    job = str(tmp_path / "second" / "job.toml")
    spec.write_text(json.dumps({**body, "job_path": job, "threads": 7}))
    return [tmp_path / "first", tmp_path / "second"]


def agreed(copies: list[Path], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """How the ranks of two hosts agree."""

    def work(rank: int, everybody: Everybody) -> Membership:
        folder = RunFolder(copies[rank] / "run")
        return agree(folder, read_run(folder).with_data(None), everybody)

    names = iter(("birch", "oak"))
    monkeypatch.setattr("socket.gethostname", lambda: next(names))
    return together(2, work)


def test_hosts_that_have_the_same_agree_whatever_their_paths_and_threads(
    copies: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = agreed(copies, monkeypatch)
    assert first == second
    assert sorted(first.names) == ["birch", "oak"] and first.hosts == [0, 1]


def job(old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "job.toml"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return change


def longer_program(folder: Path) -> None:
    program = folder / "run" / "program.txt"
    program.write_text(program.read_text() + "\n")


def other_end(folder: Path) -> None:
    spec = folder / "run" / "run.json"
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "end_step": 99}))


def other_text(folder: Path) -> None:
    write_text(folder / "text.txt", seed=3)


def no_text(folder: Path) -> None:
    (folder / "text.txt").unlink()


def no_run(folder: Path) -> None:
    shutil.rmtree(folder / "run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (job("learning_rate = 0.01", "learning_rate = 0.02"), "the job's train.learning_rate is 0"),
        (job("steps = 3", "steps = 3\nseed = 1"), "the job's train.seed is "),
        (other_end, "run.json end_step is "),
        (longer_program, "program.txt is sha256 "),
        (other_text, "the data is "),
        (no_text, "rank 1 on host "),
        (no_run, "is not a run's folder: it has no run.json"),
    ],
)
def test_what_one_host_has_otherwise_is_named_on_all_of_them(
    change: Callable[[Path], None],
    message: str,
    copies: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change(copies[1])
    first, second = agreed(copies, monkeypatch)
    assert isinstance(first, RunFailed) and first.what == second.what
    assert message in first.what and "rank 1 on host" in first.what and first.fix
    assert "birch" in first.what or "oak" in first.what


# ---- disks ----------------------------------------------------------------------------------


def settled(folders: list[Path], disks: str) -> list[Any]:
    """How ranks, each on a host of its own, settle whose their folders are."""
    count = len(folders)
    hosts = tuple(range(count))
    membership = Membership(tuple(f"host-{rank}" for rank in hosts), hosts, hosts)

    def work(rank: int, everybody: Everybody) -> tuple[Membership, FolderLock]:
        lock = FolderLock(RunFolder(folders[rank]), rank, "torchrun")
        try:
            settled = lock.settle(membership, everybody, disks=disks, say=lambda _: None)
        except RatrainError:
            lock.close()
            assert not lock.settled
            raise
        return settled, lock

    return together(count, work)


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "_APPEARS_S", 0.3)


def test_ranks_find_out_which_of_them_share_a_disk(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    ends = settled([a, b, a, b, b], "per-host")
    for membership, lock in ends:
        assert membership.disk == (0, 1, 0, 1, 1) and membership.disks == [0, 1]
        lock.claim.require()
    spread = ends[3][0].spread(3)
    assert spread.disks == ("host-0", "host-1") and spread.here == 1
    assert spread.host_of("rank-00002.safetensors") == "host-0"
    for _, lock in ends:
        lock.close()
    for folder in (a, b):
        claim_run(folder, "the next").release()
        assert not list((folder / "owner").glob("seen-*"))


def test_a_shared_folder_is_one_disk_and_has_one_owner(tmp_path: Path) -> None:
    ends = settled([tmp_path] * 3, "shared")
    assert all(
        membership.disk == (0, 0, 0) and membership.spread(1) is None for membership, _ in ends
    )
    assert [lock.claim.is_mine for _, lock in ends] == [True, False, False]
    refused = settled([tmp_path] * 2, "shared")
    assert all(isinstance(end, RunTaken) and "`torchrun`" in end.what for end in refused)
    for _, lock in ends:
        lock.close()


def test_disks_that_should_be_one_are_refused_by_all_ranks_alike(tmp_path: Path) -> None:
    ends = settled([tmp_path / "a", tmp_path / "a", tmp_path / "b"], "shared")
    assert all(isinstance(end, RunFailed) for end in ends)
    (message,) = {str(replace_place(end, tmp_path)) for end in ends}
    both = "rank 2 on host host-2 and rank 0 on host host-0"
    assert f"{both} each have their own folder" in message
    assert 'disks = "per-host"' in message


def replace_place(error: RunFailed, folder: Path) -> str:
    return str(error).replace(str(folder / "a"), "RUN").replace(str(folder / "b"), "RUN")


def test_a_folder_that_one_disk_s_owner_refuses_is_refused_everywhere_and_left_free(
    tmp_path: Path,
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with claim_run(b, "somebody else"):
        ends = settled([a, b], "per-host")
    for end in ends:
        assert isinstance(end, RunTaken) and end.what.startswith("on host host-1 belongs to")
    claim_run(a, "the next").release()


def test_ranks_resume_from_what_is_whole_on_every_disk(tmp_path: Path) -> None:
    """Saves that ended between two disks are passed over, and told by the host that lacks them."""
    a, b = tmp_path / "a", tmp_path / "b"
    for step in (80, 100, 110):
        save(a, step)
    shutil.copytree(a, b)
    save(a, 120)
    save(b, 110, state={"tokens": -1})
    membership = Membership(("birch", "oak", "oak"), (0, 1, 1), (0, 1, 1))

    def work(rank: int, everybody: Everybody) -> tuple[list[Location], list[str]]:
        folder = RunFolder(a if rank == 0 else b)
        return candidates(folder, Together(rank, membership, everybody))

    for rank, (paths, problems) in enumerate(together(3, work)):
        run = a if rank == 0 else b
        assert paths == [run / "checkpoints" / f"step-{step:08d}" for step in (100, 80)]
        assert problems == [
            "step-00000120: it is not on the disk of host oak",
            "step-00000110: the hosts' disks hold parts of different checkpoints of this step",
        ]
