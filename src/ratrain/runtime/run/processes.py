"""The ranks as child processes of this one: started, watched, ended.

Nothing listens for it: how a rank ended is its process's exit status, a stop is asked for by a
file in the run's folder, and ranks end by themselves when their launcher does (`rank/__main__.py`).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO, Protocol

from ratrain.errors import SAVED_NOT_FINISHED, RunFailed, SpecError, TransportError
from ratrain.readers.files import unwritable
from ratrain.readers.json import parse_json
from ratrain.readers.processes import process_state
from ratrain.runtime.environment import ADDRESS, FOLLOWED, LAUNCHER, LISTENER, ORDERS, PORT, START
from ratrain.runtime.rank.orders import BACK, MEETS, TRAINS, Order, Rendezvous, words_of
from ratrain.runtime.rank.stop import END_AT_ONCE
from ratrain.runtime.run.world import HERE, World
from ratrain.runtime.run_folder import RunFolder

GRACE_S = 5.0
"""Between asking a rank to end and making it."""

_NOT_INHERITED = ("TORCHELASTIC_", PORT, ADDRESS, ORDERS, LISTENER)
"""What is for ranks of torchrun, which this process itself may have been started by, or beside."""


@dataclass(frozen=True)
class RankEnd:
    """How a rank ended. `status`: its exit status, or a signal's number, negative; `ended_here`: by
    a signal of this launcher; `stood_still`: it was stopped (SIGSTOP, a debugger) when that was
    done."""

    rank: int
    status: int
    ended_here: bool = False
    stood_still: bool = False
    pid: int = 0


class RankProcesses:
    """One host's ranks of a run, over one episode or several. The caller must call `end` or `kill`,
    however it goes. `listener`: a listening socket for rank 0, which inherits it. `output`: a file
    descriptor for what they print, which else goes to the folder's logs. `goes_on`: ranks that
    lose another wait for `go_on` instead of ending."""

    def __init__(
        self,
        folder: RunFolder,
        ranks: Sequence[int],
        environment: dict[str, str],
        listener: socket.socket | None,
        *,
        output: int | None = None,
        goes_on: bool = False,
        start: StartRank | None = None,
        world: World = HERE,
    ) -> None:
        self._folder, self._world = folder, world
        self._start_rank = start or _Starting(folder, output, goes_on=goes_on).start
        self._children: list[_Child] = []
        self._further = False  # than the first episode
        self._start(ranks, environment, listener)

    def _start(
        self, ranks: Iterable[int], environment: dict[str, str], listener: socket.socket | None
    ) -> None:
        for rank in ranks:
            local = len(self._children)
            variables = {**environment, "RANK": str(rank), "LOCAL_RANK": str(local)}
            handles = (listener.fileno(),) if listener and rank == 0 else ()
            if handles:
                variables[LISTENER] = str(handles[0])
            try:
                self._children.append(_Child(rank, self._start_rank, variables, handles))
            except BaseException as error:
                self.kill()
                if not isinstance(error, OSError):
                    raise
                raise RunFailed(
                    f"rank {rank} could not be started: {error.strerror or error}",
                    place=str(self._folder.path),
                    fix="check what `ulimit -a` allows: processes, open files, memory",
                ) from error

    @property
    def running(self) -> bool:
        """Whether any rank still runs."""
        return any(child.running for child in self._children)

    @property
    def failed(self) -> bool:
        """Whether any rank has failed, or lost another. One that was asked to stop has saved."""
        fine = None, 0, SAVED_NOT_FINISHED
        return any(
            child.process.poll() not in fine or BACK in child.said for child in self._children
        )

    @property
    def meet(self) -> bool:
        """Whether all ranks look for each other, or have met."""
        return all(MEETS in child.said for child in self._children)

    @property
    def train(self) -> bool:
        """Whether the steps of all ranks that live have begun."""
        living = [child for child in self._children if child.running] or self._children
        return all(TRAINS in child.said for child in living)

    @property
    def can_go_on(self) -> bool:
        """Whether ranks that live are worth to be called back: they train, or have."""
        return self.train or self._further

    @property
    def waiting(self) -> int:
        """How many wait for the next episode."""
        return sum(child.waits for child in self._children)

    def ask_to_stop(self) -> None:
        """Asks every rank to save and stop (see rank/stop.py)."""
        for child in self._children:
            child.process.send_signal(signal.SIGTERM)

    def call_back(self) -> None:
        """Ends the episode of all ranks; see `are_back`."""
        for child in self._children:
            child.process.order(BACK)

    @property
    def are_back(self) -> bool:
        """Whether all ranks that live wait for the next episode, but those that are stopped."""
        return all(
            child.waits or child.process.is_stopped for child in self._children if child.running
        )

    def ends(self) -> list[RankEnd]:
        """How each rank's episode ended, by rank; of those that wait, with the loss of another.
        All others are ended."""
        lost = TransportError.exit_code
        return [
            RankEnd(child.rank, lost) if child.waits else child.kill() for child in self._in_order
        ]

    def go_on(self, ranks: Sequence[int], rendezvous: Rendezvous) -> None:
        """The next episode: those that wait play some of these ranks, as far as they can the ones
        they had; new processes play the others. Who does not wait is ended."""
        waiting = [child for child in self._in_order if child.waits]
        for child in self._children:
            if child not in waiting:
                child.kill()
        self._further = True
        there = {child.rank: child for child in waiting}
        seats = {rank: there.pop(rank) for rank in ranks if rank in there}
        for rank in ranks:
            if rank not in seats and there:
                seats[rank] = there.pop(min(there))
        for child in there.values():
            child.kill()
        self._children = list(seats.values())
        for rank, child in seats.items():
            child.begin(Order(rank, len(ranks), rendezvous))
        environment = base_environment(rendezvous)
        environment["LOCAL_WORLD_SIZE"] = str(len(ranks))
        self._start([rank for rank in ranks if rank not in seats], environment, None)

    def end(self) -> list[RankEnd]:
        """Ends all ranks that still run, and returns how each rank ended, by rank."""
        self._signal(END_AT_ONCE)
        end_s = self._world.now_s() + GRACE_S
        while self.running and self._world.now_s() < end_s:
            self._world.sleep(0.01)
        return self.kill()

    def kill(self) -> list[RankEnd]:
        """The same at once."""
        self._signal(signal.SIGKILL)
        return [child.end() for child in self._in_order]

    @property
    def _in_order(self) -> list[_Child]:
        return sorted(self._children, key=lambda child: child.rank)

    def _signal(self, number: signal.Signals) -> None:
        for child in self._children:
            child.signal(number)


class RankProcess(Protocol):
    """A rank's process, and the line over which it is told of further episodes."""

    pid: int

    def poll(self) -> int | None:
        """Its exit status, or a signal's number, negative; None: it runs."""
        ...

    def wait(self) -> int: ...

    def send_signal(self, number: int) -> None: ...

    @property
    def is_stopped(self) -> bool: ...

    def order(self, order: Order | str) -> None:
        """Nothing happens where it has ended, or has no line."""
        ...

    def hang_up(self) -> None: ...


StartRank = Callable[[dict[str, str], tuple[int, ...], Callable[[str], None]], RankProcess]
"""Starts a rank with an environment and what it inherits; what it says then is heard."""


class _Child:
    """One rank, and what it has said."""

    def __init__(
        self, rank: int, start: StartRank, variables: dict[str, str], handles: tuple[int, ...]
    ) -> None:
        self.rank = rank
        self.said: set[str] = set()  # in this episode
        self._sent: set[int] = set()  # signals
        self._stood_still = self._waited = False
        self.process = start(variables, handles, lambda word: self.said.add(word))

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def waits(self) -> bool:
        """Whether it can go on: one that is stopped would hear of it when somebody lets it."""
        return self.running and BACK in self.said and not self.process.is_stopped

    def begin(self, order: Order) -> None:
        """The next episode."""
        self.said.clear()
        self.rank = order.rank
        self.process.order(order)

    def signal(self, number: signal.Signals) -> None:
        """Where it still runs; one that is stopped hears SIGKILL alone. One that something else has
        killed may seem to run while its memory is freed, when others have lost it already; it still
        ends with the other signal."""
        if not self.running:
            return
        stopped = self.process.is_stopped
        self._stood_still |= stopped
        fitting = signal.SIGKILL if stopped else number
        self._sent.add(fitting)
        self._waited |= self.waits
        self.process.send_signal(fitting)

    def kill(self) -> RankEnd:
        self.signal(signal.SIGKILL)
        return self.end()

    def end(self) -> RankEnd:
        """How it ended; waits for that."""
        status = self.process.wait()
        self.process.hang_up()
        if self._waited:
            return RankEnd(self.rank, TransportError.exit_code, pid=self.process.pid)
        return RankEnd(
            self.rank, status, -status in self._sent, self._stood_still, self.process.pid
        )


class _Starting:
    """Starts ranks as processes of this machine; with `goes_on` each has a line to us."""

    def __init__(self, folder: RunFolder, output: int | None, *, goes_on: bool) -> None:
        self._folder, self._output, self._goes_on = folder, output, goes_on

    def start(
        self, variables: dict[str, str], handles: tuple[int, ...], hear: Callable[[str], None]
    ) -> RankProcess:
        rank = int(variables["RANK"])
        if not self._goes_on:
            process = _start(self._folder, rank, variables, handles, self._output)
            return _Process(process, None, hear)
        ours, theirs = socket.socketpair()
        with theirs:
            variables = {**variables, ORDERS: str(theirs.fileno())}
            handles = (*handles, theirs.fileno())
            process = _start(self._folder, rank, variables, handles, self._output)
            return _Process(process, ours, hear)


class _Process:
    """One that runs here."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        line: socket.socket | None,
        hear: Callable[[str], None],
    ) -> None:
        self._process, self._line, self.pid = process, line, process.pid
        self.poll, self.wait = process.poll, process.wait
        if line is not None:
            threading.Thread(target=self._listen, args=(line, hear), daemon=True).start()

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    @property
    def is_stopped(self) -> bool:
        process = process_state(self.pid)  # Linux; elsewhere None
        return process is not None and process.is_stopped

    def order(self, order: Order | str) -> None:
        if self._line is not None:
            with suppress(OSError):  # it has ended
                self._line.sendall(words_of(order))

    def hang_up(self) -> None:
        if self._line is not None:
            with suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)

    def _listen(self, line: socket.socket, hear: Callable[[str], None]) -> None:
        with line, suppress(OSError, SpecError), line.makefile("rb") as words:
            for word in words:
                hear(str(parse_json(word, "a rank")[0]))


def base_environment(rendezvous: Rendezvous) -> dict[str, str]:
    """What all ranks inherit: this process's environment, and what every launcher passes to
    them."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_INHERITED)}
    return {
        "PYTHONUNBUFFERED": "1",  # a rank that is killed leaves what it printed
        **inherited,
        "WORLD_SIZE": str(rendezvous.world_size),
        "LOCAL_WORLD_SIZE": str(rendezvous.world_size),
        "MASTER_ADDR": rendezvous.address,
        "MASTER_PORT": str(rendezvous.port),
        START: rendezvous.start,
        LAUNCHER: str(os.getpid()),
        FOLLOWED: "1",
    }


def _start(
    folder: RunFolder,
    rank: int,
    environment: dict[str, str],
    handles: tuple[int, ...],
    output: int | None,
) -> subprocess.Popen[bytes]:
    """In a session of its own, so that Ctrl-C in a terminal is for the launcher alone."""
    with ExitStack() as stack:
        log: IO[bytes] | None = None
        if output is None:
            try:
                log = stack.enter_context(folder.log(rank).open("ab", buffering=0))
                log.write(time.strftime("--- started %Y-%m-%d %H:%M:%S\n").encode())
            except OSError as error:
                raise unwritable(folder.log(rank), error) from error
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "ratrain.runtime.rank", str(folder.path)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output if log is None else log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=handles,
        )
