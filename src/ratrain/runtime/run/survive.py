"""A run on several hosts that goes on without those that are lost, and with those that return.

After a failure each host of the cluster is asked whether it is there. Where those that answer are
not those that the run was planned for, it is planned anew for them; then all ranks resume from the
latest checkpoint. Where all were training, the ranks of hosts that are left go on in the same
processes, with what they hold. Hosts share the run's folder: what one of them alone has is lost
with it.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ratrain.describe.job import JobSpec
from ratrain.errors import SAVED_NOT_FINISHED, CheckpointError, PeerDown, RatrainError, RunFailed
from ratrain.plan import load_job
from ratrain.runtime.run.host_ranks import worst_status
from ratrain.runtime.run.hosts import as_asked, without
from ratrain.runtime.run.prepare import RunRequest
from ratrain.runtime.run.ready import Launcher
from ratrain.runtime.run.remote import LOST, Connect, Everywhere, HostCommand, Hosts
from ratrain.runtime.run.world import HERE, World
from ratrain.runtime.run_folder import RunFolder, RunSpec

ANSWER_S, LOOK_S = 10.0, 2.0
"""A host that takes longer to answer is taken for lost: when nothing runs; while others do."""
_TRIES = 10
RETURN_S = 60.0
"""How long a run waits for hosts that it cannot be planned without."""
LOOK_EVERY_S = 5.0
"""How often hosts that the run does without are asked whether they are back."""


class Planning(Protocol):
    """What program a run has, for which hosts."""

    @property
    def left_out(self) -> set[str]:
        """The hosts that the program does without."""
        ...

    @property
    def is_fixed(self) -> bool:
        """Whether the job says how it is laid out where all of its hosts are there."""
        ...

    def plan(self, lost: tuple[str, ...]) -> None:
        """Gives the run another program, for other hosts than it has one for."""
        ...


Ask = Callable[[Collection[str], float], set[str]]
"""Which of some hosts answer, within some seconds."""


@dataclass(frozen=True)
class Surviving:
    """How a run is started, and told of. `commands`: what each host that has ranks runs, as its
    program is now; `hosts`: all of the cluster, by name; `goes_on`: the commands are ones whose
    ranks can go on after a loss."""

    planning: Planning
    commands: Callable[[], Sequence[HostCommand]]
    hosts: Sequence[str]
    connect: Connect
    ask: Ask
    tell: Callable[[str], None]
    goes_on: bool = False
    world: World = HERE

    def run(self, restarts: int) -> int:
        """Runs to the end, or until it was asked to stop, or has failed once more than it may be
        restarted; the exit status."""
        hosts: Hosts | None = None
        left, looks = restarts, True
        try:
            while True:
                hosts = hosts or Hosts(self.commands(), self.connect, self.tell, self.world)
                with self._looking(looks=looks) as returned:
                    ended = hosts.wait(returned, goes_on=self.goes_on and left > 0)
                if ended.joined:
                    looks = self._take_in(hosts)
                    continue
                status = worst_status(ended.statuses.values())
                if not ended.can_go_on:
                    hosts = None
                    if status in (0, SAVED_NOT_FINISHED) or ended.asked:
                        return status
                    if not left:
                        _require_reached(ended)
                        return status
                left, looks = left - 1, True
                self.tell(f"{_words(ended)}; start {restarts - left + 1} of {restarts + 1}")
                if hosts is None:
                    self._plan_or_wait(self._lost(), ())
                else:
                    self._go_on(hosts)
        finally:
            if hosts is not None:
                hosts.close()

    def _go_on(self, hosts: Hosts, prepared: Sequence[HostCommand] = ()) -> None:
        """Without the hosts that are lost, which may be taken in later. `prepared`: what there is
        to go on with as long as none of its hosts is."""
        wanted = {command.host for command in prepared} or set(hosts.names)
        there = hosts.call_back()
        missing = wanted - {*there, *hosts.joining}
        if missing or not prepared:
            gone = self.planning.left_out | missing
            lost = tuple(name for name in self.hosts if name in gone)
            if lost and self.planning.is_fixed:
                lost = self._lost(there, LOOK_S)
            self._plan_or_wait(lost, there)
            prepared = self.commands()
        hosts.go_on(prepared)

    def _plan_or_wait(self, lost: tuple[str, ...], there: Collection[str]) -> None:
        """Plans for those that are there; where they cannot take the run over, waits a while for
        the others to come back. `there`: known to be there."""
        end_s, refused = self.world.now_s() + RETURN_S, set[tuple[str, ...]]()
        while True:
            try:
                return self.planning.plan(lost)
            except RatrainError as error:
                if self.world.now_s() > end_s or not lost:
                    raise
                self.tell(f"waiting up to {RETURN_S:g} s for {', '.join(lost)}: {error.what}")
            refused.add(lost)
            while lost in refused and self.world.now_s() < end_s:  # it would be refused again
                self.world.sleep(LOOK_S)
                lost = self._lost(there, LOOK_S)

    def _take_in(self, hosts: Hosts) -> bool:
        """Hosts that are back: the run is planned anew and their processes begin while the others
        train; these are called back when all can meet. Whether that was possible."""
        lost = self._lost(hosts.names, LOOK_S)
        for _ in range(_TRIES):
            try:
                self.planning.plan(lost)
                break
            except CheckpointError:  # ranks remove some meanwhile: there are newer ones
                continue
            except RatrainError as error:
                self.tell(f"hosts that are back are not taken in: {error.what}")
                return False
        else:
            return True  # they are asked again
        commands = self.commands()
        hosts.prepare(commands)
        self._go_on(hosts, commands)
        return True

    @contextmanager
    def _looking(self, *, looks: bool) -> Generator[threading.Event]:
        """An event that comes when a host answers that the run does without."""
        returned, over = threading.Event(), threading.Event()
        left_out = self.planning.left_out & set(self.hosts)

        def look() -> None:
            there = set(self.hosts) - left_out
            while not over.is_set():
                self.world.sleep(LOOK_EVERY_S)
                if not over.is_set() and set(self._lost(there, LOOK_S)) != left_out:
                    returned.set()
                    return

        if looks and left_out and self.goes_on:
            self.world.begin(look, "looks for hosts")
        yield returned
        over.set()

    def _lost(self, there: Collection[str] = (), patience_s: float = ANSWER_S) -> tuple[str, ...]:
        """The hosts that do not answer, in the cluster's order. `there`: known to be there."""
        answer = self.ask([name for name in self.hosts if name not in there], patience_s)
        lost = tuple(name for name in self.hosts if name not in there and name not in answer)
        if len(lost) == len(self.hosts):
            raise RunFailed(
                "no host of the cluster answers",
                place="ratrain launch",
                fix="launch again when they do: it resumes from the latest checkpoint",
            )
        return lost


@dataclass(frozen=True)
class FolderPlanning:
    """That of a run's folder. `launcher`: one that resumes it."""

    folder: RunFolder
    launcher: Callable[[], Launcher]
    tell: Callable[[str], None]

    @property
    def left_out(self) -> set[str]:
        spec = self.folder.read_spec()
        return _left_out(as_asked(spec), spec)

    @property
    def is_fixed(self) -> bool:
        return as_asked(self.folder.read_spec()).layout is not None

    def plan(self, lost: tuple[str, ...]) -> None:
        spec = self.folder.read_spec()
        asked = as_asked(spec)
        if set(lost) == _left_out(asked, spec):
            return
        if asked.checkpoint.disks == "per-host":
            raise RunFailed(
                f"{', '.join(lost) or 'a host'} cannot be left out or taken in: every host has a "
                "run folder of its own, and what it had of the checkpoint is there alone",
                place="[checkpoint] disks",
                fix="launch again when all are there, or put the folder on a disk that they share",
            )
        self.tell(f"lost: {', '.join(lost)}" if lost else "all hosts are there again")
        request = RunRequest(
            Path(spec.job_path),
            threads=spec.threads,
            calibrate=spec.calibrate,
            overrides=(without(lost),),
            replans=True,
        )
        launcher = self.launcher()
        with launcher.owning:
            try:
                launcher.resumed(request, self.folder.path)
            except RatrainError as error:
                if not lost:
                    raise
                raise RunFailed(
                    f"the hosts that are left cannot take the run over: {error.what}",
                    place=error.place,
                    fix="bring the others back and launch again",
                ) from error


def asked_over(reached: Callable[[str], Sequence[str]]) -> Ask:
    """Asks all at once. `reached`: of a host's name what runs a command line there."""

    def ask(names: Collection[str], patience_s: float) -> set[str]:
        answer: set[str] = set()

        def ask_one(name: str) -> None:
            words = [*reached(name), "true"]
            with suppress(OSError, subprocess.TimeoutExpired):
                done = subprocess.run(
                    words, stdin=subprocess.DEVNULL, capture_output=True, timeout=patience_s
                )
                if done.returncode == 0:
                    answer.add(name)

        threads = [threading.Thread(target=ask_one, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answer

    return ask


def _require_reached(ended: Everywhere) -> None:
    """Raises PeerDown where hosts could not be reached, or were lost."""
    lost = [host for host, status in ended.statuses.items() if status == LOST]
    if lost:
        raise PeerDown(
            f"{', '.join(lost)} cannot be reached, or {'was' if len(lost) == 1 else 'were'} lost",
            place="ratrain launch",
            fix="give addresses with --at NAME=ADDRESS, or another command than ssh with --rsh; "
            "with --restarts a run goes on without hosts that are lost",
        )


def _left_out(asked: JobSpec, spec: RunSpec) -> set[str]:
    """The hosts that the run's program does without."""
    there = load_job(Path(spec.job_path), spec.overrides).cluster.spec.host_names()
    return set(asked.cluster.spec.host_names()) - set(there)


def _words(ended: Everywhere) -> str:
    failed = [f"{host} ended with {status}" for host, status in ended.statuses.items() if status]
    return ", ".join(failed)
