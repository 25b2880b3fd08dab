"""Faults on a run's hosts while it trains, and an audit of what was lost.

The hosts are a lab's, the run is started as `ratrain launch --restarts` starts it on real ones: the
faults reach it as they would there, and nothing in it knows of them.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from ratrain.describe.job import JobSpec
from ratrain.errors import SAVED_NOT_FINISHED, Infeasible, RunFailed
from ratrain.lab import Lab
from ratrain.lab.faults import FAULTS, Fault, Victim, drawn_faults
from ratrain.lab.shell import down_mark, write_hosts
from ratrain.runtime.rank.rows import Row, is_added
from ratrain.runtime.run.reports.goodput import Goodput, goodput_of
from ratrain.runtime.run.watch import Follower
from ratrain.runtime.run_folder import RunFolder

RANKS = "ratrain.runtime.rank"
"""A word on the command line of every rank."""
LAUNCH_LOG = "launch.txt"
_LOOK_EVERY_S = 0.1
_RESTARTS = 100_000
_RECOVERY_S = 180.0
"""How long a run may take until its next step, after a fault is over."""
_SAVING_S = 60.0
"""How long a run may take to save and stop once it is asked to."""


@dataclass(frozen=True)
class Chaos:
    """What is to happen: faults of these kinds, by this seed, until the run or the time ends."""

    seed: int
    kinds: tuple[str, ...]
    every_s: float
    lasts_s: float
    most_s: float


@dataclass(frozen=True)
class Happened:
    """A fault that happened, and what it cost until the next one. `hit`: whether ranks ran on that
    host: one that was left out has none until it is taken in again. `step`: steps that had been
    done before it; `restarted`: whether the run was started again; `steps_again`: those that had to
    be done again then; `longest_wait_s`: between the ends of two steps."""

    kind: str
    host: str
    hit: bool
    at_s: float
    lasted_s: float
    step: int
    restarted: bool
    steps_again: int
    longest_wait_s: float


@dataclass(frozen=True)
class Audit:
    """How a run came through. `wrong_steps`: those that are missing, or came twice within a start;
    `again_loss_difference`: of steps that were done again, the largest difference between the
    losses of both times, as a part of the loss."""

    status: int
    steps: int
    wanted_steps: int
    wrong_steps: tuple[int, ...]
    again_loss_difference: float
    median_step_s: float
    faults: tuple[Happened, ...]
    goodput: Goodput | None
    log: Path

    @property
    def is_clean(self) -> bool:
        return self.status in (0, SAVED_NOT_FINISHED) and not self.wrong_steps


def host_ranks(job: JobSpec) -> dict[str, int]:
    """The device of each host, by the host's name; an error where hosts cannot be lost one by
    one."""
    cluster = job.cluster.spec
    names = cluster.host_names()
    if cluster.size is None or len(names) != job.cluster.devices or cluster.size != len(names):
        raise Infeasible(
            f"chaos loses whole hosts, of one device each; the cluster has {len(names)} named "
            f"hosts, and the job {job.cluster.devices} devices",
            place=f"cluster {cluster.name}",
            fix="describe hosts with devices = 1 and a count, and use all of them",
        )
    return dict(zip(names, range(len(names)), strict=True))


def run_chaos(folder: RunFolder, job: JobSpec, chaos: Chaos, watch: Callable[[int], None]) -> Audit:
    """Trains a prepared run in a lab under faults. `watch` is told how many steps count."""
    ranks = host_ranks(job)
    log = folder.logs / LAUNCH_LOG
    log.parent.mkdir(exist_ok=True)
    with (
        Lab(job.cluster.spec, job.cluster.devices) as lab,
        tempfile.TemporaryDirectory(prefix="ratrain-chaos-") as kept,
        log.open("wb") as output,
    ):
        hosts = Path(kept) / "hosts.json"
        places = {name: lab.places[rank] for name, rank in ranks.items()}
        write_hosts(hosts, places)
        victims = {
            name: Victim(name, place, down_mark(hosts, name), RANKS)
            for name, place in places.items()
        }
        addresses = [f"{name}={place.address}" for name, place in places.items()]
        launch = subprocess.Popen(
            _launch_words(folder, hosts, addresses),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us, who end it politely
        )
        try:
            struck = _Striking(folder, launch, victims, watch).strike(chaos)
            status = _ended(launch, signal.SIGTERM)
        finally:
            _ended(launch, signal.SIGKILL)
    return audit(folder, status, struck, log)


def _launch_words(folder: RunFolder, hosts: Path, addresses: Sequence[str]) -> list[str]:
    python = (sys.executable, "-P", "-m")
    rsh = shlex.join([*python, "ratrain.lab.shell", str(hosts)])
    at = [word for address in addresses for word in ("--at", address)]
    words = ("launch", str(folder.path), "--rsh", rsh, "--restarts", str(_RESTARTS))
    return [*python, "ratrain", *words, *at]


def _ended(launch: subprocess.Popen[bytes], number: signal.Signals) -> int:
    """Its exit status, once it has been asked to end where it still runs."""
    if launch.poll() is None:
        launch.send_signal(number)
    try:
        status = launch.wait(_SAVING_S)
    except subprocess.TimeoutExpired:
        launch.kill()
        status = launch.wait()
    return status if status >= 0 else 128 - status


@dataclass(frozen=True)
class _Struck:
    """A fault, when it began by the wall clock, and how long it really lasted."""

    fault: Fault
    hit: bool
    began_s: float
    lasted_s: float


class _Striking:
    """Faults, one after another, on a run that trains."""

    def __init__(
        self,
        folder: RunFolder,
        launch: subprocess.Popen[bytes],
        victims: dict[str, Victim],
        watch: Callable[[int], None],
    ) -> None:
        self._launch, self._victims, self._watch = launch, victims, watch
        self._rows, self._last_step_s = Follower(folder), 0.0

    def strike(self, chaos: Chaos) -> list[_Struck]:
        """Until the run has ended, or the time is over."""
        struck: list[_Struck] = []
        end_s = time.monotonic() + chaos.most_s
        self._wait_for_a_step(after_s=0.0)
        faults = drawn_faults(
            chaos.seed, chaos.kinds, list(self._victims), chaos.every_s, chaos.lasts_s
        )
        for fault in faults:
            if not self._trains_for(fault.after_s, end_s):
                return struck
            kind, victim = FAULTS[fault.kind], self._victims[fault.host]
            hit = bool(victim.workers())
            began_s, clock_s = time.time(), time.monotonic()
            kind.begin(victim)
            try:
                self._trains_for(fault.lasts_s, end_s)
            finally:
                kind.end(victim)
            struck.append(_Struck(fault, hit, began_s, time.monotonic() - clock_s))
            self._wait_for_a_step(after_s=time.time())
        raise AssertionError("faults are drawn without end")

    def _wait_for_a_step(self, after_s: float) -> None:
        """For one that ends after this time of the wall clock: until then a further fault, or a
        request to stop, would find nothing that trains."""
        until_s = time.monotonic() + _RECOVERY_S
        while self._last_step_s <= after_s:
            if not self._trains_for(_LOOK_EVERY_S, until_s):
                return

    def _trains_for(self, seconds: float, end_s: float) -> bool:
        """Waits; whether it trained all that time, and the time is not over."""
        until_s = time.monotonic() + seconds
        while (now_s := time.monotonic()) < min(until_s, end_s):
            if self._launch.poll() is not None:
                return False
            self._look()
            time.sleep(min(_LOOK_EVERY_S, max(0.0, until_s - now_s)))
        return now_s < end_s and self._launch.poll() is None

    def _look(self) -> None:
        for row in self._rows.new_rows():
            if not is_added(row):
                self._last_step_s = row["time_s"]
                self._watch(row["step"] + 1)


def audit(folder: RunFolder, status: int, struck: Sequence[_Struck], log: Path) -> Audit:
    """What became of a run that went through these faults."""
    counted = [row for row in folder.read_metrics() if not is_added(row)]
    if not counted:
        raise RunFailed(
            f"the run ended with status {status} before its first step",
            place=str(log),
            fix="see its last lines; `ratrain train JOB --lab` trains without faults",
        )
    rows = [row for row in folder.metrics_lines() if not is_added(row)]
    first_s = rows[0]["time_s"]
    ends_s = next_after([each.began_s for each in struck])
    return Audit(
        status,
        len(counted),
        folder.read_spec().end_step,
        wrong_steps(rows),
        _difference(rows),
        median(row["step_time_s"] for row in counted),
        tuple(
            _happened(each, rows, first_s, until_s)
            for each, until_s in zip(struck, ends_s, strict=True)
        ),
        goodput_of(folder.metrics_lines()),
        log,
    )


def next_after(began_s: Sequence[float]) -> list[float]:
    """When the next fault after each begins; there may be none at all."""
    return [*began_s[1:], float("inf")][: len(began_s)]


def wrong_steps(rows: Sequence[Row]) -> tuple[int, ...]:
    """Steps that a start left out, or did more than once. `rows`: in the order in which they were
    written. A start may go back, to a checkpoint, and never ahead."""
    wrong: set[int] = set()
    due = 0
    for row in rows:
        step: int = row["step"]
        if step > due:
            wrong |= set(range(due, step))
        elif step < due and "started_s" not in row:
            wrong.add(step)
        due = step + 1
    return tuple(sorted(wrong))


def _difference(rows: Sequence[Row]) -> float:
    """Between the losses of steps that were done again."""
    largest, seen = 0.0, dict[int, float]()
    for row in rows:
        loss: float = row["loss"]
        before = seen.setdefault(row["step"], loss)
        largest = max(largest, abs(loss - before) / max(abs(before), 1e-30))
    return largest


def _happened(each: _Struck, rows: Sequence[Row], first_s: float, until_s: float) -> Happened:
    """What a fault cost, as the rows that came before the next one show it."""
    before = [row for row in rows if row["time_s"] <= each.began_s]
    after = [row for row in rows if each.began_s < row["time_s"] <= until_s]
    reached = 1 + max((row["step"] for row in before), default=-1)
    again = next((row for row in after if row.get("started_s", 0.0) > each.began_s), None)
    ends_s = [each.began_s, *(row["time_s"] for row in after)]
    return Happened(
        each.fault.kind,
        each.fault.host,
        each.hit,
        each.began_s - first_s,
        each.lasted_s,
        reached,
        again is not None,
        max(0, reached - again["step"]) if again else 0,
        max((late - early for early, late in pairwise(ends_s)), default=0.0),
    )
