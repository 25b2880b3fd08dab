"""Ranks that die, stop or cannot write: the run ends soon, with one message, and can go on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launched import (
    GRACE_S,
    assert_same_end,
    killer,
    loss_bits,
    made,
    meanwhile,
    ranks_of,
    saved_steps,
    start,
    steps_done,
    wait_until,
)
from runs_made import Setting

from ratrain.errors import CheckpointError, RunFailed
from ratrain.runtime.run.reports.goodput import goodput_of
from ratrain.runtime.run_folder import RunFolder

STEPS, EVERY = 30, 4
SETTING = Setting(pipeline=2, data=2, steps=STEPS, every=EVERY, keep=3)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = made(tmp_path_factory.mktemp("undisturbed"), SETTING)
    start(folder)
    assert saved_steps(folder) == [24, 28, 30] and not ranks_of(folder)
    return folder


def at_once(folder: RunFolder) -> Callable[[], bool]:
    """As soon as all processes are there."""
    return lambda: len(ranks_of(folder)) == 4


def before_the_first_step(folder: RunFolder) -> Callable[[], bool]:
    return folder.metrics.exists


def between_steps(folder: RunFolder) -> Callable[[], bool]:
    return lambda: steps_done(folder) >= 7


def while_saving(folder: RunFolder) -> Callable[[], bool]:
    return lambda: any(folder.checkpoints.glob(f"step-{2 * EVERY:08d}.partial"))


def at_the_end(folder: RunFolder) -> Callable[[], bool]:
    return lambda: steps_done(folder) >= STEPS - 1


MOMENTS = [at_once, before_the_first_step, between_steps, while_saving, at_the_end]


@pytest.mark.matrix
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_rank_is_named_and_the_run_goes_on_with_the_same_bits(
    moment: Callable[[RunFolder], Callable[[], bool]], undisturbed: RunFolder, tmp_path: Path
) -> None:
    folder = made(tmp_path, SETTING)
    rank = random.Random(moment.__name__).randrange(4)
    killed: list[float] = []
    try:
        with meanwhile(killer(folder, rank, moment(folder)), killed):
            start(folder)
    except RunFailed as error:
        assert time.monotonic() - killed[0] < GRACE_S
        assert error.what.startswith(f"rank {rank} was killed by SIGKILL"), error
        assert error.place == str(folder.path)
    else:
        assert moment is at_the_end, "the run did not notice"
    assert not ranks_of(folder)
    saved_steps(folder)
    start(folder)
    assert loss_bits(folder) == loss_bits(undisturbed)
    assert_same_end(folder, undisturbed)


@pytest.mark.parametrize("collective", ["ring", "hierarchical"])
def test_a_killed_rank_is_named_whoever_waits_for_whom(collective: str, tmp_path: Path) -> None:
    """Most ranks have no word with the one that is gone: their peers go because of it."""
    setting = Setting(data=4, devices_per_host=2, steps=STEPS, every=EVERY, collective=collective)
    folder = made(tmp_path, setting)
    killed: list[float] = []
    with (
        pytest.raises(RunFailed) as failed,
        meanwhile(killer(folder, 3, between_steps(folder)), killed),
    ):
        start(folder)
    assert failed.value.what.startswith("rank 3 was killed by SIGKILL"), failed.value
    assert time.monotonic() - killed[0] < GRACE_S
    start(folder)
    assert saved_steps(folder)[-1] == STEPS


def test_a_run_with_restarts_goes_on_by_itself(undisturbed: RunFolder, tmp_path: Path) -> None:
    folder = made(tmp_path, SETTING)

    def kill_twice() -> None:
        killer(folder, 1, lambda: steps_done(folder) >= 6)()
        wait_until(lambda: 1 not in ranks_of(folder))
        killer(folder, 2, lambda: steps_done(folder) >= 20)()

    with meanwhile(kill_twice):
        start(folder, restarts=2)
    assert loss_bits(folder) == loss_bits(undisturbed)
    assert_same_end(folder, undisturbed)
    assert not list((folder.path / "ranks").glob("failure-*.json")), (
        "an old failure would be told again"
    )
    goodput = goodput_of(folder.metrics_lines())
    assert goodput is not None and goodput.starts == 3
    assert 0 < goodput.fraction < 1 and goodput.starting_s > 0 and goodput.not_running_s > 0


def test_restarts_run_out(tmp_path: Path) -> None:
    folder = made(tmp_path, Setting(pipeline=2, steps=200, every=2))

    def kill_twice() -> None:
        killer(folder, 0, lambda: steps_done(folder) >= 4)()
        wait_until(lambda: 0 not in ranks_of(folder))
        killer(folder, 1, lambda: steps_done(folder) >= 30)()

    with meanwhile(kill_twice), pytest.raises(RunFailed) as error:
        start(folder, restarts=1)
    assert error.value.what.startswith("rank 1 was killed by SIGKILL"), error.value
    assert "`--resume` resumes from step-" in error.value.fix
    assert not ranks_of(folder)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_stops_without_dying_ends_the_run_after_the_timeout(
    rank: int, tmp_path: Path
) -> None:
    folder = made(tmp_path, Setting(pipeline=2, steps=10_000, timeout_s=12))
    stop = killer(folder, rank, lambda: steps_done(folder) >= 2, signal.SIGSTOP)
    stopped: list[float] = []
    with meanwhile(stop, stopped), pytest.raises(RunFailed) as error:
        start(folder)
    assert time.monotonic() - stopped[0] < 12 + GRACE_S
    assert error.value.what.startswith(f"rank {rank} stalled"), error.value
    assert f"rank {1 - rank} ended too" in error.value.what, error.value
    assert not ranks_of(folder)


def test_ranks_do_not_outlive_their_launcher(tmp_path: Path) -> None:
    folder = made(tmp_path, Setting(pipeline=2, steps=100_000))
    program = (
        "import sys; from pathlib import Path; from launched import RunFolder, start\n"
        "start(RunFolder(Path(sys.argv[1])))"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", program, str(folder.path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        wait_until(lambda: steps_done(folder) >= 3)
    finally:
        launcher.kill()
        launcher.wait()
    wait_until(lambda: not ranks_of(folder), GRACE_S)


# ---- disks ----------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A file system of 3 MB: room for a few checkpoints."""
    if os.geteuid():
        pytest.skip("needs root to mount a small file system")
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place], check=True)
    return place


@pytest.fixture(autouse=True)
def _unmounted(tmp_path: Path, request: pytest.FixtureRequest) -> object:
    yield
    if "small_disk" in request.fixturenames:
        subprocess.run(["umount", "-l", tmp_path / "disk"], check=True)


@pytest.mark.root
@pytest.mark.parametrize("left_bytes", [300_000, 40_000])
def test_a_disk_that_fills_up_while_saving_is_named_and_what_was_saved_is_whole(
    small_disk: Path, tmp_path: Path, left_bytes: int
) -> None:
    folder = made(tmp_path, Setting(pipeline=2, steps=30, every=3, keep=2), run="disk/run")
    reference = made(tmp_path / "reference", Setting(pipeline=2, steps=30, every=3, keep=2))
    ballast = small_disk / "ballast"

    def fill() -> None:
        wait_until(lambda: steps_done(folder) >= 8)
        room = os.statvfs(small_disk)
        ballast.write_bytes(b"\0" * max(room.f_bavail * room.f_frsize - left_bytes, 0))

    with meanwhile(fill), pytest.raises((CheckpointError, RunFailed)) as error:
        start(folder)
    assert "the disk is full" in error.value.what, error.value
    assert "`--resume` resumes from step-" in error.value.fix
    assert not ranks_of(folder)
    assert saved_steps(folder)
    ballast.unlink()
    start(folder)
    start(reference)
    assert loss_bits(folder) == loss_bits(reference)
    assert_same_end(folder, reference)
