"""All hosts' ranks started from one of them, over ssh or another command that runs words there.

What a host prints appears here behind its name. A request to stop goes to every host on the
standard input of its command, since ssh passes no signals; where the connection breaks, the ranks
beyond it save and stop. A host says twice a second that it is alive. One that is silent is asked
over a connection of its own: where that is silent too, it is lost two seconds after its last word,
since its power, cable or kernel may have failed, which other ranks' connections show much later. A
host that answers has much to do, and is given time.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, Protocol

from ratrain.describe.strict import load
from ratrain.errors import SAVED_NOT_FINISHED, RunFailed, TransportError
from ratrain.readers.json import as_table, parse_json
from ratrain.runtime.rank.orders import BACK
from ratrain.runtime.rank.stop import passed_on
from ratrain.runtime.run.host_ranks import BEAT, END, STOP, HostEpisode, HostState
from ratrain.runtime.run.launch import BACK_S
from ratrain.runtime.run.world import HERE, World

_LOOK_EVERY_S, _LOOK_S = 0.1, 0.02
_LAST_WORDS_S = 20.0
"""How long other hosts may go on after one has failed; their ranks find out and end by
themselves."""
_GRACE_S = 10.0
_JOIN_S = 60.0
"""How long hosts that are taken in may take until their ranks look for the others."""
ASK_S, ANSWER_S, BUSY_S = 1.0, 1.0, 20.0
"""A host that is silent for so long is asked; is lost, if it has not answered in such a time; a
host is lost anyway that has been silent for so long."""
BEGIN_S, STARTS_S = 10.0, 60.0
"""One whose command has said nothing yet is asked after so long, has as long to answer, and is lost
anyway when other ranks look for its own no longer."""
LOST = 255
"""The status of a host that is lost, as ssh has it."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class HostCommand:
    """What to run on a host. `target`: its address; `episode`: what the command begins
    with, which a host whose command runs already is told instead."""

    host: str
    target: str
    words: Sequence[str]
    episode: HostEpisode


@dataclass(frozen=True)
class Everywhere:
    """How the commands of hosts ended: each one's exit status; whether they were asked to stop;
    whether those that run still can go on in a further episode; whether they train, and others are
    to be taken in."""

    statuses: dict[str, int]
    asked: bool
    can_go_on: bool = False
    joined: bool = False


class Hosts:
    """The hosts of a run, each with its command, over one episode or several. To be closed."""

    def __init__(
        self, commands: Sequence[HostCommand], connect: Connect, tell: Tell, world: World = HERE
    ) -> None:
        self._connect, self._tell, self._world = connect, tell, world
        self._shells: dict[str, _Host] = {}
        self._joining: dict[str, _Host] = {}  # of the next episode
        self._asked, self._further = threading.Event(), False
        try:
            for command in commands:
                self._shells[command.host] = self._host(command)
        except BaseException:
            self.close()
            raise

    def _host(self, command: HostCommand) -> _Host:
        return _Host(command, self._connect, self._tell, self._world)

    @property
    def names(self) -> list[str]:
        return list(self._shells)

    @property
    def joining(self) -> list[str]:
        """Those that were prepared, and run."""
        return [host for host, shell in self._joining.items() if shell.running]

    def wait(self, others: threading.Event, *, goes_on: bool = False) -> Everywhere:
        """Until all have ended, or some time after one has failed; with `goes_on` at once where all
        were training by then, or in an episode before; and where `others` are to be taken in while
        all train."""
        with passed_on(self._stop):
            can_go_on = self._wait(others, goes_on=goes_on)
        if not can_go_on:
            self.close()
        statuses = {
            host: shell.status if not shell.running else TransportError.exit_code
            for host, shell in self._shells.items()
        }
        joined = can_go_on and not any(shell.failed for shell in self._shells.values())
        return Everywhere(statuses, self._asked.is_set(), can_go_on, joined)

    def prepare(self, commands: Sequence[HostCommand]) -> None:
        """Starts those of the next episode's hosts that have no ranks yet, while the others train;
        returns when theirs look for the others, or something has failed."""
        for command in commands:
            if command.host not in self._shells:
                self._joining[command.host] = self._host(command)
        end_s = self._world.now_s() + _JOIN_S
        joining, shells = self._joining.values(), self._shells.values()
        while not all(shell.meets for shell in joining) and self._world.now_s() < end_s:
            if any(shell.failed for shell in (*joining, *shells)):
                return
            self._world.sleep(_LOOK_S)

    def call_back(self) -> list[str]:
        """Ends the episode; the hosts whose ranks wait for the next one. Others are given up."""
        end_s = self._world.now_s() + BACK_S
        for shell in self._shells.values():
            shell.order(BACK)
        while any(shell.running and not shell.back for shell in self._shells.values()):
            for shell in self._shells.values():
                shell.look()
            if self._world.now_s() > end_s:
                break
            self._world.sleep(_LOOK_S)
        for host, shell in list(self._shells.items()):
            if not (shell.running and shell.back):
                shell.kill()
                del self._shells[host]
        return list(self._shells)

    def go_on(self, commands: Sequence[HostCommand]) -> None:
        """The next episode, on these hosts."""
        self._further = True
        wanted = {command.host: command for command in commands}
        joining = {host: shell for host, shell in self._joining.items() if shell.running}
        self._joining.clear()
        for host in [host for host in self._shells if host not in wanted]:
            self._shells.pop(host).end()
        for host, command in wanted.items():
            if host in self._shells:
                self._shells[host].begin(command.episode)
            elif host in joining:
                self._shells[host] = joining.pop(host)
                if self._shells[host].episode != command.episode:  # others were lost meanwhile
                    self._shells[host].begin(command.episode)
            else:
                self._shells[host] = self._host(command)
        for shell in joining.values():
            shell.end()

    def close(self) -> None:
        """Ends what still runs."""
        for shell in (*self._shells.values(), *self._joining.values()):
            shell.end()

    def _stop(self) -> None:
        self._asked.set()
        for shell in self._shells.values():
            shell.order(STOP)

    def _wait(self, others: threading.Event, *, goes_on: bool) -> bool:
        """For all to end; not for long once one has failed. Whether others can go on."""
        failed_s: float | None = None
        shells = self._shells.values()
        while any(shell.running for shell in shells):
            for shell in shells:
                shell.look()
            failed = any(shell.failed for shell in shells)
            trains = _train(shells)
            worth = trains or self._further
            if failed and goes_on and worth and not self._asked.is_set():
                return any(shell.running for shell in shells)
            if others.is_set() and trains and not failed and not self._asked.is_set():
                return all(shell.running for shell in shells)
            if any(shell.lost for shell in shells):
                return False  # others wait for it, in connections that are whole
            if failed_s is None and failed:
                failed_s = self._world.now_s()
            for shell in shells:
                shell.end_waiting()
            if failed_s is not None and self._world.now_s() - failed_s > _LAST_WORDS_S:
                return False
            self._world.sleep(_LOOK_S if goes_on else _LOOK_EVERY_S)
        return False


def _train(hosts: Collection[_Host]) -> bool:
    """Whether those that are left can be called back: one that is lost may not have said so any
    more."""
    there = [host for host in hosts if host.running and not host.lost]
    return bool(there) and all(host.trained for host in there)


class Line(Protocol):
    """To the command that runs on a host."""

    @property
    def status(self) -> int | None:
        """Its exit status; None: it runs, as far as is known here."""
        ...

    def send(self, word: str) -> None:
        """Nothing happens where it has ended."""
        ...

    @property
    def answer_s(self) -> float:
        """How long a host that is alive may take to answer."""
        ...

    def ask(self) -> Callable[[], bool]:
        """Asks the host over another connection; what is returned says whether it has answered."""
        ...

    def wait(self, time_s: float) -> None:
        """For its end, and its last words."""
        ...

    def kill(self) -> None:
        """Ends it at once, here at least: its host may not answer any more."""
        ...


Connect = Callable[[HostCommand, Callable[[str], None]], Line]
"""Runs a command on its host; each line that it prints is heard, from any thread."""


class _Host:
    """One host's command, seen from here."""

    def __init__(self, command: HostCommand, connect: Connect, tell: Tell, world: World) -> None:
        self.host, self._tell, self._world = command.host, tell, world
        self.episode = command.episode
        self._heard_s: float | None = None  # it has begun, and was alive then
        self._began_s = world.now_s()
        self._answered: Callable[[], bool] | None = None  # where it was asked since
        self._asked_s = 0.0
        self._state, self._told = HostState(), 0
        self.lost = self.trained = self._ending = False
        self._line = connect(command, self._hear)

    @property
    def running(self) -> bool:
        return self._line.status is None

    @property
    def failed(self) -> bool:
        ended_badly = self._line.status not in (None, 0, SAVED_NOT_FINISHED)
        return self.lost or ended_badly or (self._is_news and self._state.failed)

    @property
    def back(self) -> bool:
        """Whether its ranks wait for the next episode, those that are not lost."""
        return self._is_news and self._state.back

    @property
    def meets(self) -> bool:
        """Whether its ranks look for the others."""
        return self._is_news and self._state.meet

    @property
    def _is_news(self) -> bool:
        """Whether what it said last is of the episode that it was told of last."""
        return self._state.episode == self._told

    def begin(self, episode: HostEpisode) -> None:
        """The next episode, with its ranks in it."""
        self._told += 1
        self.episode, self.trained = episode, False
        self.order(json.dumps(asdict(episode)))

    @property
    def status(self) -> int:
        """Once it has ended."""
        return LOST if self.lost or self._line.status is None else self._line.status

    def look(self) -> None:
        """Gives it up where it has been silent for too long."""
        if self.lost or not self.running:
            return
        now_s, heard_s = self._world.now_s(), self._heard_s
        ask_s, answer_s, busy_s = ASK_S, self._line.answer_s, BUSY_S
        if heard_s is None:
            heard_s, ask_s, answer_s, busy_s = self._began_s, BEGIN_S, BEGIN_S, STARTS_S
        silent_s = now_s - heard_s
        if silent_s <= ask_s:
            self._answered = None
        elif self._answered is None:
            self._answered, self._asked_s = self._line.ask(), now_s
        elif silent_s > busy_s or (now_s - self._asked_s > answer_s and not self._answered()):
            self.lost = True
            self._tell(f"{self.host}: silent for {silent_s:.0f} s, taken for lost")
            self._line.kill()

    def order(self, word: str) -> None:
        self._line.send(word)

    def end(self) -> None:
        """Ends it, where it still runs, and shows its last lines."""
        if self.running:
            self.order(END)
            self._line.wait(_GRACE_S)
            self._line.kill()
        if not self.lost:
            self._line.wait(_GRACE_S)

    def end_waiting(self) -> None:
        """Where ranks were lost, nobody waits for another episode any longer."""
        if self._is_news and self._state.failed and not self._ending:
            self._ending = True
            self.order(END)

    def kill(self) -> None:
        """Ends it at once; its host may not answer any more."""
        self._line.kill()

    def _hear(self, line: str) -> None:
        said, beat, state = line.partition(BEAT)
        if beat:  # behind what a rank has printed of a line by then
            self._heard_s = self._world.now_s()
            if state.startswith("{"):
                self._take(state)
        if said.strip():
            self._tell(f"{self.host}: {said.rstrip()}")

    def _take(self, state: str) -> None:
        """What the host says of its ranks."""
        self._state = load(HostState, *as_table(*parse_json(state, self.host)))
        self.trained |= self._is_news and self._state.train


class Shell:
    """A command over ssh, or another command: `there` runs the command line behind it on the
    host."""

    def __init__(
        self,
        command: HostCommand,
        hear: Callable[[str], None],
        there: Sequence[str],
        answer_s: float = ANSWER_S,
    ) -> None:
        self._there, self.answer_s = there, answer_s
        words = [*self._there, shlex.join(command.words)]
        try:
            self._child = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is for us alone
            )
        except OSError as error:
            raise RunFailed(
                f"{words[0]!r} cannot be run: {error.strerror or error}",
                place=f"host {command.host}",
                fix="install it, or name another with --rsh",
            ) from error
        assert self._child.stdout is not None
        self._reader = threading.Thread(
            target=self._pass_on, args=(self._child.stdout, hear), daemon=True
        )
        self._reader.start()

    @property
    def status(self) -> int | None:
        return self._child.poll()

    def send(self, word: str) -> None:
        assert self._child.stdin is not None
        with suppress(OSError):  # it has ended
            self._child.stdin.write(word + "\n")
            self._child.stdin.flush()

    def ask(self) -> Callable[[], bool]:
        asked = subprocess.Popen(
            [*self._there, "true"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        threading.Thread(target=_end_with, args=(asked, BUSY_S), daemon=True).start()
        return lambda: asked.poll() == 0

    def wait(self, time_s: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(time_s)
            self._reader.join(time_s)

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()

    def _pass_on(self, stream: IO[str], hear: Callable[[str], None]) -> None:
        for line in stream:
            hear(line)


def _end_with(process: subprocess.Popen[bytes], time_s: float) -> None:
    """Waits for a process so long, then ends it."""
    try:
        process.wait(time_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
