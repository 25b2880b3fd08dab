"""One host's ranks of a run that has several hosts: started, asked to stop, waited for.

Each tells what it does on stderr, as under any launcher but `ratrain train`. The exit status is the
one that says most: a rank's own failure before that of losing another, before having been stopped.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from ratrain.describe.amounts import Natural
from ratrain.describe.strict import load
from ratrain.engines.places import Place
from ratrain.errors import SAVED_NOT_FINISHED, SpecError, TransportError
from ratrain.readers.json import as_table, parse_json
from ratrain.runtime.environment import ADDRESS, COMMAND, FOLLOWED, MERGED, launch_of
from ratrain.runtime.rank.orders import BACK, Rendezvous
from ratrain.runtime.rank.stop import passed_on
from ratrain.runtime.run.processes import RankEnd, RankProcesses, base_environment
from ratrain.runtime.run.world import HERE, World
from ratrain.runtime.run_folder import RunFolder

DEFAULT_PORT = 29500
"""At which rank 0 is met where nobody says otherwise."""
STOP, END = "stop", "end"
"""What `run_host_ranks` may be told on standard input, a line each; its end means `STOP`, or `END`
of ranks that say they do not train yet: who started them may have begun again, and needs their
place."""
BEAT, BEAT_EVERY_S = "\x16", 0.5
"""A line that says on stderr that the host is alive, and how often; a `HostState` may follow."""
_LOOK_EVERY_S, _LOOK_S = 0.1, 0.02
_NEXT_EPISODE_S = 3600.0
"""How long ranks that have lost another wait to be told how they go on: who orders may plan."""
_LAST_WORDS_S = 10.0
"""How long ranks may go on after one of them has failed: they find out, say so, and end."""


@dataclass(frozen=True)
class HostEpisode:
    """Which ranks a host has in an episode, and where they meet the others."""

    ranks: tuple[Natural, ...]
    rendezvous: Rendezvous


@dataclass(frozen=True)
class HostState:
    """What a host says of its ranks, a line each time it changes. `episode`: how many further ones
    it was told of; `meet`: all look for the others; `train`: the steps of all have begun; `failed`:
    some have failed, or lost others; `back`: those that live wait for the next episode, `waiting`
    of them."""

    episode: int = 0
    meet: bool = False
    train: bool = False
    failed: bool = False
    back: bool = False
    waiting: int = 0


def run_host_ranks(
    folder: RunFolder,
    first: HostEpisode,
    networks: Sequence[str] = (),
    *,
    follow_input: bool,
    goes_on: bool = False,
    alive: Callable[[], bool] | None = None,
    left_alone: Callable[[], None] = lambda: None,
) -> int:
    """Runs some ranks of a run to their end; the exit status. `networks`: the host's addresses,
    where it is on several; `follow_input`: orders come on standard input; `goes_on`: further
    episodes too; `alive`: whether who gives orders lives, where the end of standard input does not
    say it; `left_alone`: called at the end if not."""
    environment = base_environment(first.rendezvous)
    del environment[FOLLOWED]
    if len(networks) > 1:
        environment[ADDRESS] = ",".join(networks)
    elif ADDRESS in os.environ:
        environment[ADDRESS] = os.environ[ADDRESS]
    if follow_input:
        environment[MERGED] = "1"
    environment |= {COMMAND: "ratrain launch", "LOCAL_WORLD_SIZE": str(len(first.ranks))}
    with _relayed() as output:
        processes = RankProcesses(
            folder, first.ranks, environment, None, output=output, goes_on=goes_on
        )
        following = Following(
            processes,
            _say if follow_input else None,
            _take_orders if follow_input else None,
            goes_on=goes_on,
        )
        if alive is not None:
            HERE.begin(lambda: following.watch(alive), "watches the launcher")
        ends = following.ends()
        os.close(output)
        if following.is_alone:
            left_alone()
        return worst_status(end.status for end in ends if not end.ended_here)


def run_share(folder: RunFolder, place: Place) -> int:
    """Runs the share of the ranks of a host where the engine starts one process a host; the exit
    status."""
    ranks = folder.read_spec().seats.world_size
    each, left = divmod(ranks, place.world_size)
    if left:
        raise SpecError(
            f"the run's {ranks} ranks cannot be divided equally among {place.world_size} hosts",
            place=place.engine,
            fix="use as many hosts as the plan has, or hosts of which each has as many ranks",
        )
    own = range(place.rank * each, (place.rank + 1) * each)
    launch = launch_of(os.environ, folder.path)
    rendezvous = Rendezvous(ranks, launch.address, launch.port or DEFAULT_PORT)
    return run_host_ranks(folder, HostEpisode(tuple(own), rendezvous), follow_input=False)


def _say(line: str) -> None:
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())


def _take_orders(following: Following) -> None:
    """Until the end of standard input, which comes with the loss of the connection to us."""
    while order := sys.stdin.readline():
        following.take(order)
    following.take("")


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class Following:
    """Some ranks while they run, and who orders them about. `say`: a line to who does; `listen`
    passes on what comes from there (`take`), beside; `interrupt` asks for an end as a signal does:
    the second time of ranks that still run, at once."""

    def __init__(
        self,
        processes: RankProcesses,
        say: Callable[[str], None] | None,
        listen: Callable[[Following], None] | None,
        *,
        goes_on: bool,
        interrupt: Callable[[], None] = _interrupt,
        world: World = HERE,
    ) -> None:
        self._processes, self._say, self._goes_on = processes, say, goes_on
        self._listen = listen
        self._interrupt, self._world = interrupt, world
        self._episodes: deque[HostEpisode | None] = deque()  # None: back
        self._state, self._asked, self._interrupts = HostState(), False, 0
        self.is_alone = False  # who gives orders was lost

    def ends(self) -> list[RankEnd]:
        """How each of them ended: by itself, or here, some time after another had failed."""
        failed_s: float | None = None
        processes, now_s = self._processes, self._world.now_s
        try:
            with passed_on(self.stop):
                listen = self._listen
                if listen is not None:
                    self._world.begin(lambda: listen(self), "orders")
                if self._say is not None:
                    self._world.begin(self._beat, "beats")
                while processes.running or self._may_go_on:
                    self._follow()
                    failed_s = (failed_s or now_s()) if processes.failed else None
                    patience_s = _NEXT_EPISODE_S if self._may_go_on else _LAST_WORDS_S
                    if failed_s is not None and now_s() - failed_s > patience_s:
                        break
                    if self._asked and processes.failed and self._goes_on:
                        break
                    self._world.sleep(_LOOK_S if self._goes_on else _LOOK_EVERY_S)
            return processes.end()
        except BaseException:
            processes.kill()
            raise

    def watch(self, alive: Callable[[], bool]) -> None:
        """Ends the ranks once who gives orders is lost."""
        while alive():
            self._world.sleep(1.0)
        self.is_alone = True
        self.take(END)

    def take(self, order: str) -> None:
        """An order, from any thread; "" where none can come any more."""
        if order.strip() == BACK:
            self._episodes.append(None)
            return
        if order.startswith("{"):
            table = as_table(*parse_json(order, "the launcher's order"))
            self._episodes.append(load(HostEpisode, *table))
            return
        processes, word = self._processes, order.strip()
        # Ranks that begin have nothing to save. Only those that go on say that they train.
        begins = self._goes_on and not processes.train
        at_once = word == END or (not word and begins)
        wanted = 2 if at_once and not processes.failed else 1
        while self._interrupts < wanted:
            self._interrupts += 1
            self._interrupt()
            self._world.sleep(_LOOK_EVERY_S)  # two signals at once would be one

    @property
    def _may_go_on(self) -> bool:
        """Whether a rank was lost, and nobody has asked for an end: that is for who orders."""
        return self._goes_on and self._processes.failed and not self._asked

    def stop(self) -> None:
        self._asked = True
        self._processes.ask_to_stop()

    def _follow(self) -> None:
        """Passes orders to the ranks, and what has changed with them to who gives them."""
        processes, number = self._processes, self._state.episode
        if self._episodes:
            order = self._episodes.popleft()
            if order is None:
                processes.call_back()
            else:
                processes.go_on(order.ranks, order.rendezvous)
                number += 1
        failed = processes.failed
        state = HostState(
            number,
            processes.meet,
            processes.train,
            failed,
            failed and processes.are_back,
            processes.waiting,
        )
        if state != self._state and self._say is not None:
            self._state = state
            self._say(f"{BEAT}{json.dumps(asdict(state))}")

    def _beat(self) -> None:
        """As long as this process runs."""
        assert self._say is not None
        while True:
            self._say(BEAT)
            self._world.sleep(BEAT_EVERY_S)


def worst_status(statuses: Iterable[int]) -> int:
    """The one that says most of how a run ended; of a signal's, as shells have it."""
    shown = [status if status >= 0 else 128 - status for status in statuses]
    unlikely = (0, SAVED_NOT_FINISHED, TransportError.exit_code)
    return max(
        shown, key=lambda s: unlikely.index(s) if s in unlikely else len(unlikely), default=0
    )


@contextmanager
def _relayed() -> Generator[int]:
    """A file descriptor to write to, which the block closes; what comes is copied to stderr, as
    long as that has a reader: ranks must not fail because a connection has ended."""
    reading, writing = os.pipe()

    def copy() -> None:
        while data := os.read(reading, 1 << 16):
            with suppress(OSError):
                os.write(2, data)

    thread = threading.Thread(target=copy, name="relay", daemon=True)
    thread.start()
    yield writing
    thread.join()
    os.close(reading)
