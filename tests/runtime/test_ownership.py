"""A run's folder belongs to one launch at a time, whoever races for it and however owners end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ratrain.errors import RunFailed, RunTaken, SpecError
from ratrain.runtime import ownership
from ratrain.runtime.ownership import Claim, Owner, claim_run, claimed_around
from ratrain.runtime.run.resume import fresh_run

CLAIMER = """
import sys, time
from pathlib import Path
from typing import Any
from ratrain.runtime.ownership import claim_run
claim_run(Path(sys.argv[1]), "the other launch")
print("claimed", flush=True)
time.sleep(600)
"""


OWNER = Owner("token", "ratrain train", "ann", "oak", 4242, 1.7e9)


@contextmanager
def other_process(folder: Path, *before: str) -> Generator[subprocess.Popen[str]]:
    """A process that owns the folder."""
    process = subprocess.Popen(
        [*before, sys.executable, "-c", CLAIMER, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "claimed\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def newest(folder: Path) -> Path:
    return max((folder / "owner").glob("*.json"))


def rewrite(claim: Path, **changes: Any) -> None:
    """Puts other words into a claim."""
    owner = replace(Owner(**json.loads(claim.read_text())), **changes)
    claim.write_text(json.dumps(asdict(owner)))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of the length of a test."""
    monkeypatch.setattr(ownership, "BEAT_S", 0.05)
    monkeypatch.setattr(ownership, "SILENT_S", 0.6)
    monkeypatch.setattr(ownership, "_LOOK_S", 0.02)


def test_the_second_launch_is_refused_with_the_first_one_s_name(tmp_path: Path) -> None:
    with other_process(tmp_path) as process, pytest.raises(RunTaken) as refused:
        claim_run(tmp_path, "this launch")
    assert refused.value.exit_code == 9
    message = str(refused.value)
    assert str(tmp_path) in message and f"process {process.pid}" in message
    for word in ("the other launch", "of user ", "on host ", "since 20", "--run"):
        assert word in message, message


def test_a_folder_is_free_again_when_its_owner_ends_in_any_way(tmp_path: Path) -> None:
    with claim_run(tmp_path, "first"), pytest.raises(RunTaken):
        claim_run(tmp_path, "second")
    heard: list[str] = []
    claim_run(tmp_path, "third", heard.append).release()
    assert not heard, "an owner that said goodbye is nothing to tell of"
    with other_process(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        began_s = time.monotonic()
        claim_run(tmp_path, "fifth", heard.append).release()
    assert time.monotonic() - began_s < 1
    assert len(heard) == 1 and f"process {process.pid}" in heard[0]


def test_another_process_of_the_same_number_is_not_the_owner(tmp_path: Path) -> None:
    with other_process(tmp_path) as process:
        rewrite(newest(tmp_path), started="17")
        claim_run(tmp_path, "this launch").release()
        assert process.poll() is None


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("beats", [True, False])
def test_an_owner_on_another_machine_lives_as_long_as_its_claim_is_touched(
    beats: bool, tmp_path: Path
) -> None:
    there = claim_run(tmp_path, "there")
    rewrite(newest(tmp_path), boot="another machine's", pid=1 << 22)
    if not beats:
        there._released.set()  # type: ignore[reportPrivateUsage]
    heard: list[str] = []
    began_s = time.monotonic()
    if beats:
        with pytest.raises(RunTaken):
            claim_run(tmp_path, "here", heard.append)
        assert time.monotonic() - began_s < 0.5
    else:
        claim_run(tmp_path, "here", heard.append).release()
        assert time.monotonic() - began_s >= 0.6
    assert any("watching" in line for line in heard)


@pytest.mark.usefixtures("hasty")
def test_a_claim_that_was_never_written_out_is_stale(tmp_path: Path) -> None:
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "000001.json").touch()
    claim_run(tmp_path, "here").release()
    assert newest(tmp_path).name == "000002.json"


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a process namespace")
@pytest.mark.parametrize(
    "text",
    [
        *("", "null", "[" * 3000, '{"pid": 1}', '{"token": NaN}'),
        json.dumps({**asdict(OWNER), "pid": -1}),
        json.dumps({**asdict(OWNER), "pid": 1 << 70}),
        json.dumps({**asdict(OWNER), "since_s": 1e300}),
        json.dumps({**asdict(OWNER), "user": "\x1b[2J"}),
        json.dumps({**asdict(OWNER), "more": 1}),
    ],
)
@pytest.mark.usefixtures("hasty")
def test_a_damaged_claim_is_stale_and_never_a_traceback(tmp_path: Path, text: str) -> None:
    (tmp_path / "owner").mkdir()
    claim = tmp_path / "owner" / "000001.json"
    claim.write_text(json.dumps(asdict(OWNER)))
    assert ownership._read(claim) == OWNER  # pyright: ignore[reportPrivateUsage]
    claim.write_text(text)
    lines: list[str] = []
    with claim_run(tmp_path, "a test", lines.append) as made:
        assert made.number == 2
    assert lines[0].endswith(f"an unknown launch ({claim} does not say which);")


@pytest.mark.slow
def test_an_owner_in_another_container_is_seen_by_its_beat(tmp_path: Path) -> None:
    apart = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    with other_process(tmp_path, *apart), pytest.raises(RunTaken, match=r"process 1, since"):
        claim_run(tmp_path, "here")


# ---- an owner that lost its folder --------------------------------------------------------


@pytest.mark.usefixtures("hasty")
def test_an_owner_that_was_taken_for_dead_learns_who_took_over(tmp_path: Path) -> None:
    paused = claim_run(tmp_path, "paused")
    rewrite(newest(tmp_path), boot="another machine's")
    paused._released.set()  # type: ignore[reportPrivateUsage]
    with claim_run(tmp_path, "the heir"):
        with pytest.raises(RunFailed, match=r"taken over by `the heir` of user"):
            paused.require()
        paused.release()
        with pytest.raises(RunTaken):  # giving up what is lost frees nothing
            claim_run(tmp_path, "a third")


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("how", [shutil.rmtree, lambda path: path.rename(f"{path}-moved")])
def test_an_owner_whose_folder_is_gone_says_so(how: Callable[[Path], None], tmp_path: Path) -> None:
    run = tmp_path / "run"
    with claim_run(run, "here") as held:
        held.require()
        how(run)
        with pytest.raises(RunFailed, match="removed, renamed or replaced"):
            held.require()
        waited_s = time.monotonic() + 5
        with pytest.raises(RunFailed, match="removed, renamed or replaced"):
            while time.monotonic() < waited_s:
                held.require_seen()
    assert not run.exists()


# ---- races --------------------------------------------------------------------------------


def racing(count: int, work: Callable[[], None]) -> None:
    """Many threads at the same instant."""
    barrier = threading.Barrier(count)

    def racer() -> None:
        barrier.wait()
        work()

    threads = [threading.Thread(target=racer) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("stale", [False, True])
def test_of_many_that_race_for_a_folder_one_owns_it(stale: bool, tmp_path: Path) -> None:
    for turn in range(15):
        folder = tmp_path / str(turn)
        if stale:  # all of them find the same dead owner
            claim_run(folder, "dead").release()
            (folder / "owner" / "000001.ended").unlink()
            rewrite(newest(folder), started="17")
        owners: list[Claim] = []
        refused: list[RunTaken] = []

        def contend(
            folder: Path = folder,
            owners: list[Claim] = owners,
            refused: list[RunTaken] = refused,
        ) -> None:
            try:
                owners.append(claim_run(folder, "racer"))
            except RunTaken as error:
                refused.append(error)

        racing(8, contend)
        assert (len(owners), len(refused)) == (1, 7)
        owners[0].require()
        owners[0].release()


def test_folders_chosen_at_the_same_instant_never_collide(tmp_path: Path) -> None:
    chosen: list[Path] = []
    for _ in range(20):
        racing(8, lambda: chosen.append(fresh_run(tmp_path / "runs", "job")))
    assert len(set(chosen)) == len(chosen) == 160
    assert {path.name for path in chosen} == {"job", *(f"job-{n}" for n in range(2, 161))}


def test_old_claims_are_forgotten(tmp_path: Path) -> None:
    for _ in range(30):
        claim_run(tmp_path, "again").release()
    assert len(list((tmp_path / "owner").iterdir())) <= 20
    assert newest(tmp_path).name == "000030.json"


# ---- what else writes into a run ----------------------------------------------------------


def test_a_verb_owns_the_run_that_it_writes_into_and_no_other_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    with claimed_around(run / "out", "export"):
        assert not (run / "owner").exists(), "this is no run's folder"
    for name in ("run.json", "program.txt"):
        (run / name).touch()
    with claimed_around(run / "checkpoints", "prune"), pytest.raises(RunTaken, match="`prune`"):
        claim_run(run, "train")
    claim_run(run, "train").release()
    assert not (tmp_path / "owner").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match=r"file/run: cannot be created: Not a directory"):
        claim_run(tmp_path / "file" / "run", "here")
    with pytest.raises(SpecError, match=r"file/job: cannot be created: "):
        fresh_run(tmp_path / "file", "job")
