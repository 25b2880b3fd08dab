"""A run on simulated hosts: the real protocol of launcher, hosts and ranks, on a simulated clock.

Real are: who is taken for lost, when a run goes on and with whom (`Surviving`, `Hosts`); what a
host does with its ranks (`Following`, `RankProcesses`); the episodes of a rank (`Episodes`); which
version survivors go on from (`Kept`, `live_states`). Simulated: processes, connections, the steps
themselves (meetings of all ranks, with a Commit and a round of control), planning, the disk.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from auditor import Auditor, History
from cut_short import prepared
from runs_made import Setting
from sim_world import Actor, Deadline, Killed, SimWorld

from ratrain.errors import PeerDown, RatrainError, RunFailed
from ratrain.plan import load_job
from ratrain.program.promise import buddies
from ratrain.readers.json import parse_json
from ratrain.runtime.environment import Launch, launch_of
from ratrain.runtime.failures import status_of
from ratrain.runtime.rank.live import NOTHING, Kept, KeptUnit, LiveStates, live_states
from ratrain.runtime.rank.orders import BACK, MEETS, TRAINS, Order, Rendezvous
from ratrain.runtime.rank.rank_run import Episodes
from ratrain.runtime.run import remote
from ratrain.runtime.run.host_ranks import Following, HostEpisode, worst_status
from ratrain.runtime.run.processes import RankProcesses, base_environment
from ratrain.runtime.run.remote import HostCommand
from ratrain.runtime.run.survive import Surviving
from ratrain.runtime.run_folder import RunFolder

STEPS, EVERY = 14, 4
PATIENCE_S, JOINING_S = 120.0, 120.0
"""How long a rank waits for a silent peer, once it trains and before."""
REACH_S, FREE_S, ANSWER_S = 60.0, 20.0, 20.0
"""For rank 0 to be there; for its port to be free; for others to answer, once all are there."""
ELEMENTS = 12
"""Of the model's one unit, which up to four ranks divide."""


@dataclass(frozen=True)
class Bugs:
    """Mistakes that are planted, by name."""

    names: frozenset[str] = frozenset()

    def __contains__(self, name: str) -> bool:
        return name in self.names


@dataclass
class Host:
    """One machine. `up`: it has power; `cut`: nothing goes between it and others."""

    name: str
    up: bool = True
    cut: bool = False
    hung: bool = False
    busy_until_s: float = 0.0
    actors: list[Actor] = field(default_factory=list[Actor])
    ranks: list[SimProcess] = field(default_factory=list["SimProcess"])
    held: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    listening: dict[int, SimEpisode] = field(default_factory=dict[int, "SimEpisode"])

    @property
    def answers(self) -> bool:
        return self.up and not self.cut and not self.hung


@dataclass(frozen=True)
class Program:
    """What the shared folder has: which hosts have ranks, one each."""

    number: int
    hosts: tuple[str, ...]


class SimRun:
    """A run on some hosts, from its launch on."""

    def __init__(self, world: SimWorld, names: Collection[str], bugs: Bugs) -> None:
        self.world, self.bugs = world, bugs
        self.hosts = {name: Host(name) for name in names}
        self.auditor = Auditor(world.say, STEPS, self._struck_now)
        self.program = Program(0, tuple(names))
        self.checkpoints: dict[int, tuple[int, ...]] = {}
        self.status: int | None = None
        self.error: RatrainError | None = None
        self.attempts = self.newest = self.pids = self.words = self.starts = 0
        self.strikes: dict[int, Callable[[Host], None]] = {}
        """What happens to the host of a rank as it says so many words, of all that are said."""

    def _struck_now(self) -> set[str]:
        """The hosts to which something happens that lasts."""
        now_s = self.world.now_s()
        return {
            host.name
            for host in self.hosts.values()
            if not host.answers
            or now_s < host.busy_until_s
            or any(process.is_stopped for process in host.ranks if process.lives)
        }

    def launch(self, restarts: int) -> None:
        self.world.begin(lambda: self._launched(restarts), "launcher")

    def _launched(self, restarts: int) -> None:
        surviving = Surviving(
            self, self.commands, list(self.hosts), self._connect, self._ask,
            lambda line: self.world.say(f"launcher: {line}"), goes_on=True, world=self.world,
        )  # fmt: skip
        try:
            self.status = surviving.run(restarts)
        except RatrainError as error:
            self.error, self.status = error, error.exit_code

    # ---- planning ------------------------------------------------------------------------

    @property
    def left_out(self) -> set[str]:
        return set(self.hosts) - set(self.program.hosts)

    is_fixed = False

    def plan(self, lost: tuple[str, ...]) -> None:
        if set(lost) == self.left_out:
            return
        self.world.sleep(0.2 + self.world.delay_s(0.5))
        there = tuple(name for name in self.hosts if name not in lost)
        if not there:
            raise RunFailed("no host is left to plan for", place="cluster", fix="bring one back")
        self.program = Program(self.program.number + 1, there)
        self.world.say(f"planned {self.program}")

    def commands(self) -> list[HostCommand]:
        hosts, self.starts = self.program.hosts, self.starts + 1
        rendezvous = Rendezvous(len(hosts), hosts[0], 29500, str(self.starts))
        return [
            HostCommand(name, name, ("launch",), HostEpisode((rank,), rendezvous))
            for rank, name in enumerate(hosts)
        ]

    def _ask(self, names: Collection[str], patience_s: float) -> set[str]:
        names = [name for name in self.hosts if name in names]
        there = {name for name in names if self.hosts[name].answers}
        self.world.sleep(
            0.15 + (self.world.delay_s(0.1) if len(there) == len(names) else patience_s)
        )
        return there

    def _connect(self, command: HostCommand, hear: Callable[[str], None]) -> SimLine:
        return SimLine(self, command, hear)

    # ---- faults --------------------------------------------------------------------------

    def lose_power(self, host: Host) -> None:
        host.up = False
        host.held.clear()
        for process in host.ranks:
            process.die(-signal.SIGKILL)
        for actor in host.actors:
            actor.kill()
        host.actors.clear()
        host.ranks.clear()

    def cut(self, host: Host) -> None:
        host.cut = True

    def heal(self, host: Host) -> None:
        """Power, network and processes are as before; what was under way arrives."""
        self.auditor.struck(host.name, self.world.now_s())
        host.up, host.cut = True, False
        if host.hung:
            host.hung = False
            for actor in (*host.actors, *(p.actor for p in host.ranks)):
                actor.resume("hang")
        held, host.held = host.held, []
        for work in held:
            self.world.after(self.world.delay_s(0.01), work)

    def hang(self, host: Host) -> None:
        host.hung = True
        for actor in (*host.actors, *(p.actor for p in host.ranks)):
            actor.pause("hang")

    def between(
        self, host: Host, work: Callable[[], None], delay_s: float, *, quiet: bool = False
    ) -> None:
        """What goes between a host and the launcher, as over TCP."""

        def arrive() -> None:
            if host.up:
                host.held.append(work) if host.cut or host.hung else work()

        self.world.after(delay_s, arrive, quiet=quiet)


class SimLine:
    """The launcher's end of a line to a host's command, and the command."""

    answer_s = remote.ANSWER_S

    def __init__(self, run: SimRun, command: HostCommand, hear: Callable[[str], None]) -> None:
        self._run, self._hear = run, hear
        self._host = run.hosts[command.target]
        self.status: int | None = None
        self._following: Following | None = None
        self._unread: list[str] = []  # words that came before its command ran
        self._arrives_s = 0.0  # the last of what is under way, in order
        if not self._host.answers:
            run.world.after(5.0, lambda: self._ended(255))
            return
        run.between(self._host, lambda: self._begin(command), 0.1 + run.world.delay_s(0.2))

    def send(self, word: str) -> None:
        if self.status is None:
            self._pass(lambda: self._take(word))

    def ask(self) -> Callable[[], bool]:
        asked_s = self._run.world.now_s()
        takes_s = 0.05 + self._run.world.delay_s(0.05)
        there = self._host.answers
        return lambda: there and self._run.world.now_s() > asked_s + takes_s

    def wait(self, time_s: float) -> None:
        end_s = self._run.world.now_s() + time_s
        while self.status is None and self._run.world.now_s() < end_s:
            self._run.world.sleep(0.1)

    def kill(self) -> None:
        if self.status is None:
            self.status = -signal.SIGKILL
            self._pass(lambda: self._take(""))

    def _pass(self, work: Callable[[], None], *, quiet: bool = False) -> None:
        world = self._run.world
        at_s = max(world.now_s() + world.delay_s(0.005), self._arrives_s + 1e-6)
        self._arrives_s = at_s
        self._run.between(self._host, work, at_s - world.now_s(), quiet=quiet)

    def _ended(self, status: int) -> None:
        if self.status is None:
            self.status = status

    def _begin(self, command: HostCommand) -> None:
        if self.status is None:
            actor = self._run.world.begin(lambda: self._agent(command.episode), self._host.name)
            actor.group = self._host.actors
            actor.group.append(actor)

    def _take(self, word: str) -> None:
        following = self._following
        if not self._host.up:
            return
        if following is None:
            self._unread.append(word)
        elif word.startswith("{") or word.strip() == BACK:
            following.take(word)
        else:
            actor = self._run.world.begin(lambda: following.take(word), f"{self._host.name} takes")
            actor.group = self._host.actors
            actor.group.append(actor)

    def _agent(self, episode: HostEpisode) -> None:
        """`ratrain launch RUN --host NAME`."""
        run, own = self._run, self._run.world.current
        interrupts: list[None] = []

        def interrupt() -> None:
            interrupts.append(None)
            if len(interrupts) == 1:
                following.stop()
            else:
                own.raises = KeyboardInterrupt

        def say(line: str) -> None:
            self._pass(lambda: self._hear(line), quiet=len(line) == 1)

        def start(
            variables: dict[str, str], _handles: object, hear: Callable[[str], None]
        ) -> SimProcess:
            return SimProcess(run, self._host, variables, hear)

        environment = base_environment(episode.rendezvous)
        environment["LOCAL_WORLD_SIZE"] = str(len(episode.ranks))
        processes = RankProcesses(
            RunFolder(Path("/nowhere")), episode.ranks, environment, None,
            goes_on=True, start=cast(Any, start), world=run.world,
        )  # fmt: skip
        following = self._following = Following(
            processes, say, None, goes_on=True, interrupt=interrupt, world=run.world
        )
        for word in self._unread:
            self._take(word)
        status = 130
        try:
            ends = following.ends()
            status = worst_status(end.status for end in ends if not end.ended_here)
        except KeyboardInterrupt:
            pass
        finally:
            self._pass(lambda: self._ended(status))


class SimProcess:
    """A rank's process, as its launcher has it."""

    def __init__(
        self, run: SimRun, host: Host, variables: Mapping[str, str], hear: Callable[[str], None]
    ) -> None:
        run.pids += 1
        self.pid, self.host, self._run, self._hear = run.pids, host, run, hear
        self._status: int | None = None
        self.is_stopped, self._orders = False, 0
        self._unread: list[Order | str] = []
        self.rank = SimRank(run, self)
        launch = launch_of(variables)
        self.actor = run.world.begin(lambda: self._main(launch), f"{host.name} pid {self.pid}")
        host.ranks.append(self)

    def _main(self, launch: Launch) -> None:
        self._run.world.sleep(0.5 + self._run.world.delay_s(0.5))  # imports
        episodes = Episodes(self.rank, self.rank.episode)
        self.rank.called = episodes.called
        try:
            episodes.run(launch, 0.0)
            self.die(0)
        except RatrainError as error:
            self._run.world.say(f"pid {self.pid}: {error}")
            self.die(status_of(error))

    def die(self, status: int) -> None:
        if self._status is None:
            self._status = status
            self.rank.alive = False
            if self._run.world.now_s() >= 0 and status:
                self.actor.kill()
            self._run.world.after(0.0, lambda: None)

    @property
    def lives(self) -> bool:
        return self._status is None

    def poll(self) -> int | None:
        return self._status

    def wait(self) -> int:
        while self._status is None:
            self._run.world.sleep(0.1)
        return self._status

    def send_signal(self, number: int) -> None:
        if self._status is None:
            if number == signal.SIGTERM:
                self.rank.stops = True
            else:
                self.die(-number)

    def stop(self) -> None:
        """SIGSTOP."""
        self.is_stopped = True
        self.actor.pause("stop")

    def goes_on(self) -> None:
        """SIGCONT."""
        self.is_stopped = False
        self.actor.resume("stop")
        unread, self._unread = self._unread, []
        for order in unread:
            self._ordered(order)

    def order(self, order: Order | str) -> None:
        self._run.world.after(0.001, lambda: self._ordered(order))

    def _ordered(self, order: Order | str) -> None:
        if self.is_stopped:
            self._unread.append(order)
        elif self._status is None:
            if order == BACK:
                self.rank.called(self._orders)
            else:
                assert isinstance(order, Order)
                self._orders += 1
                self.rank.ordered.append(order)

    def hang_up(self) -> None:
        pass

    def say(self, word: str) -> None:
        self._run.world.after(0.001, lambda: self._hear(word))


class SimRank:
    """What a rank's process has for all its episodes."""

    def __init__(self, run: SimRun, process: SimProcess) -> None:
        self.run, self.process = run, process
        self.alive, self.stops = True, False
        self.kept: Kept = NOTHING
        self.ordered: list[Order] = []
        self.called: Callable[[int], None] = lambda _number: None
        self.program = run.program

    @property
    def orders(self) -> SimRank:
        return self

    def say(self, word: str) -> None:
        self.process.say(word)

    def next(self) -> Order | None:
        while not self.ordered:
            self.run.world.sleep(0.05)
        return self.ordered.pop(0)

    def tell(self, error: BaseException) -> None:
        pass

    def tell_loss(self, lost: BaseException) -> None:
        self.run.world.say(f"pid {self.process.pid}: {lost}")

    def episode(self, number: int, launch: Launch, _began_s: float) -> SimEpisode:
        return SimEpisode(self, number, launch)

    @property
    def host(self) -> Host:
        return self.process.host

    @property
    def reachable(self) -> bool:
        return self.alive and self.host.answers and not self.process.is_stopped


class Attempt:
    """Ranks that have met, and what they say to each other: words for a name, once each."""

    def __init__(self, run: SimRun, members: list[SimRank]) -> None:
        run.attempts += 1
        self.number, self.run, self.members = run.attempts, run, members
        self.said: dict[tuple[str, int], Any] = {}
        self.gone: set[int] = set()  # ranks whose connections are shut
        self.shut: set[int] = set()  # ranks that have shut theirs themselves

    def say(self, name: str, rank: int, words: Any = True) -> None:
        run = self.run
        self.said[name, rank] = words
        run.words += 1
        strike = run.strikes.pop(run.words, None)
        if strike is not None:
            run.world.after(0.0, lambda: strike(self.members[rank].process.host))
        for member in self.members:
            self.run.world.nudge(member.process.actor, self.run.world.delay_s(0.002))

    def hear(self, here: SimEpisode, name: str, ranks: Collection[int]) -> list[Any]:
        """What ranks have said; waits for it."""
        world, rank = self.run.world, here.rank
        silent_s = world.now_s()
        while missing := [other for other in ranks if (name, other) not in self.said]:
            here.require_not_called()
            for other in missing:
                member = self.members[other]
                if other in self.shut or not (member.alive or not member.process.host.up):
                    raise PeerDown(f"rank {rank} lost rank {other}")
            if world.now_s() - silent_s > PATIENCE_S:
                raise PeerDown(f"rank {rank} waited for rank {missing[0]}")
            world.sleep(0.05)
        world.sleep(world.delay_s(0.003))
        here.require_not_called()
        return [self.said[name, other] for other in ranks]


@cache
def case(ranks: int) -> Any:
    """Model, setup and seats of so many replicas."""
    setting = Setting(data=ranks, sequences=12, steps=STEPS, sharding=2, mirror=True,
                      model=(("num_hidden_layers", 1),))  # fmt: skip
    of_run = prepared(setting)
    model = load_job(of_run.spec.job_path).model.spec
    return model, of_run.proved.program.setup, of_run.spec.seats


@cache
def units(ranks: int) -> Mapping[str, int]:
    from ratrain.runtime.seats import parts_of_units
    from ratrain.runtime.step.tensor_parts import stored_sizes

    model, setup, _ = case(ranks)
    return MappingProxyType(dict(stored_sizes(model, parts_of_units(setup))))


class SimEpisode:
    """One episode of a rank."""

    def __init__(self, process: SimRank, number: int, launch: Launch) -> None:
        self.process, self._run, self.number, self.launch = process, process.run, number, launch
        self.rank, self.joined, self.met = (
            launch.rank,
            dict[int, SimEpisode](),
            cast("Attempt | None", None),
        )
        self._called: BaseException | None = None
        self._attempt: Attempt | None = None
        self._built = False
        self._parts: list[tuple[str, int, int, bool]] = []  # name, range, whether another's
        self._own: History = ()
        self._mirror: History = ()
        self._in_doubt = False

    # ---- as rank_run.Episodes has it -----------------------------------------------------

    def run(self) -> bool:
        process, run, world = self.process, self._run, self._run.world
        program = run.program
        process.say(MEETS)
        attempt = self._attempt = self._met()
        attempt.say("program", self.rank, program)
        if len(set(attempt.hear(self, "program", self._all))) > 1:
            raise RunFailed("ranks have different programs", place="run.json", fix="again")
        step = first = self._begun(attempt)
        run.auditor.begins(
            attempt.number, self.rank, self.launch.world_size, step, (self._own, self._mirror),
            world.now_s(),
        )  # fmt: skip
        process.say(TRAINS)
        while step < STEPS:
            computed_s = world.now_s() + 0.15 + world.delay_s(0.3)
            while world.now_s() < computed_s:  # op by op
                self.require_not_called()
                world.sleep(min(0.3, max(0.12, computed_s - world.now_s())))
            if self._step(attempt, step):
                return False
            step += 1
        if not (step - first):  # of survivors
            self._save(attempt, STEPS)
        attempt.say("end", self.rank)
        attempt.hear(self, "end", self._all)
        return True

    def interrupt(self, error: BaseException) -> None:
        self._called = error

    def called_back(self) -> bool:
        if self._attempt is not None:
            self._attempt.shut.add(self.rank)
        if self._attempt is not None:
            self._run.auditor.left(self._attempt.number)
        self._run.world.sleep(self._run.world.delay_s(0.02))
        if self._built:
            self.process.kept = self._kept().beside_those(self.process.kept)
        return True

    def close(self) -> None:
        if self._attempt is not None:
            self._attempt.shut.add(self.rank)

    # ---- inside --------------------------------------------------------------------------

    @property
    def _all(self) -> range:
        return range(self.launch.world_size)

    def require_not_called(self) -> None:
        if self._called is not None:
            raise self._called

    def _met(self) -> Attempt:
        """As `joining.rendezvous`."""
        if self.rank:
            return self._met_at_rank_0()
        host, port = self.process.host, self.launch.port
        end_s = self._run.world.now_s() + FREE_S
        while port in host.listening and host.listening[port].process.alive:
            self.require_not_called()
            self._run.world.sleep(0.11)
            if self._run.world.now_s() > end_s:
                raise RunFailed(f"cannot listen at port {port}", place="rank 0", fix="again")
        host.listening[port] = self
        try:
            return self._met_here()
        finally:
            if host.listening.get(port) is self:
                del host.listening[port]

    def _met_here(self) -> Attempt:
        """Waits for the others, as rank 0."""
        world, end_s = self._run.world, self._run.world.now_s() + JOINING_S
        while True:
            self.require_not_called()
            for rank, other in list(self.joined.items()):
                if not other.process.alive and other.process.host.up:  # its connection is shut
                    del self.joined[rank]
            if len(self.joined) == self.launch.world_size - 1 and self._all_answer():
                members = [self, *(self.joined[rank] for rank in self._all[1:])]
                attempt = Attempt(self._run, [member.process for member in members])
                for member in members:
                    member.met = attempt
                return attempt
            if world.now_s() > end_s:
                raise RunFailed("waited for ranks", place="rank 0", fix="again")
            world.sleep(0.1)

    def _all_answer(self) -> bool:
        """Others are forgotten, when they have had their time."""
        world = self._run.world
        world.sleep(world.delay_s(0.003))
        silent_s = world.now_s()
        while True:
            self.require_not_called()
            silent = [rank for rank, other in self.joined.items() if not other.process.reachable]
            if not silent:
                return len(self.joined) == self.launch.world_size - 1
            if world.now_s() - silent_s > ANSWER_S:
                for rank in silent:
                    del self.joined[rank]
            world.sleep(0.1)

    def _met_at_rank_0(self) -> Attempt:
        """Calls rank 0 until it lets this rank in; then waits for the others."""
        run, world = self._run, self._run.world
        reach_s, end_s = world.now_s() + REACH_S, world.now_s() + JOINING_S + 1.0
        accepted = False
        while world.now_s() < (end_s if accepted else reach_s):
            self.require_not_called()
            host = run.hosts[self.launch.address]
            first = host.listening.get(self.launch.port)
            if first is not None and first.lets_in(self):
                accepted = True
                while self.met is None and host.listening.get(self.launch.port) is first:
                    self.require_not_called()
                    if world.now_s() > end_s or not first.process.alive:
                        break
                    world.sleep(0.1)
            if self.met is not None:
                return self.met
            world.sleep(0.1)
        raise RunFailed("waited for ranks", place=f"rank {self.rank}", fix="again")

    def lets_in(self, other: SimEpisode) -> bool:
        """Whether this rank 0 takes another one for one of its ranks."""
        ours, its = self.launch, other.launch
        taken = self.joined.get(other.rank)
        alike = (ours.world_size, ours.start) == (its.world_size, its.start)
        if not (alike and self.process.reachable and other.process.reachable) or taken:
            return False
        self.joined[other.rank] = other
        return True

    def _begun(self, attempt: Attempt) -> int:
        """The step to begin with; this rank's parts and their histories."""
        run, size = self._run, self.launch.world_size
        model, setup, seats = case(size)
        words = self.process.kept.words(None, survived=self.number > 0)
        attempt.say("holds", self.rank, words)
        told = [parse_json(w.encode(), "a rank")[0] for w in attempt.hear(self, "holds", self._all)]
        live: LiveStates | None = live_states(model, setup, seats, told)
        self.process.kept = self.process.kept.at(live.step) if live is not None else NOTHING
        attempt.say("kept", self.rank, self.process.kept)
        if "forgets early" in run.bugs:
            self.process.kept = NOTHING
        all_kept: list[Kept] = attempt.hear(self, "kept", self._all)
        self._divide(size)
        step = live.step if live is not None else self._saved_step()
        if self.rank == 0:
            run.newest = max(attempt.number, run.newest)
            self._require_newest(attempt)
            run.auditor.source(step, attempt.members, live=live is not None)
        if live is None:
            self._own = self._mirror = run.checkpoints.get(step, ())
            run.auditor.read_saved(step)
        else:
            histories = self._read(live, all_kept)
            self._own, self._mirror = histories
        self._built = True
        attempt.say("read", self.rank)
        attempt.hear(self, "read", self._all)
        self.process.kept = NOTHING
        return step

    def _saved_step(self) -> int:
        oldest = "old checkpoint" in self._run.bugs
        return (min if oldest else max)(self._run.checkpoints, default=0)

    def _require_newest(self, attempt: Attempt) -> None:
        """As `attempt.Attempt`, which asks the folder."""
        if attempt.number != self._run.newest and "old attempts write" not in self._run.bugs:
            raise PeerDown("the run's ranks have met again without this one")

    def _divide(self, size: int) -> None:
        sizes, hosts = units(size), list(range(size))
        owner = buddies(hosts, self.rank)[1] if size > 1 else self.rank
        self._parts = []
        for name, elements in sizes.items():
            for rank, other in ((self.rank, False), (owner, True)):
                begin, end = elements * rank // size, elements * (rank + 1) // size
                if not other or size > 1:
                    self._parts.append((name, begin, end, other))

    def _read(self, live: LiveStates, kept: list[Kept]) -> tuple[History, History]:
        """The histories of what this rank owns and mirrors; all elements of each must agree."""
        read: tuple[set[History], set[History]] = (set(), set())
        for copy in live.copies:
            if copy.target != self.rank:
                continue
            low, high = copy.needed.columns
            for name, begin, end, other in self._parts:
                if name == copy.needed.name and max(low, begin) < min(high, end):
                    part = next(
                        each
                        for each in kept[copy.source].units[name]
                        if each.begin <= low and high <= each.end
                    )
                    read[other].add(cast(History, part.buffers["history"]))
        self._run.auditor.alike(self.rank, *read)
        own = next(iter(read[0]))
        return own, next(iter(read[1]), own)

    def _step(self, attempt: Attempt, step: int) -> bool:
        """Whether the run stops behind it."""
        run, world, rank = self._run, self._run.world, self.rank
        for other in self._all:  # one after another
            attempt.say(f"gradients {step} {other}", rank)
            world.sleep(world.delay_s(0.002))
        attempt.hear(self, f"gradients {step} {rank}", self._all)
        self._in_doubt = True
        if "no commit" not in run.bugs:
            attempt.say(f"commit {step}", rank)
            if rank == 0:
                attempt.hear(self, f"commit {step}", self._all)
                for other in self._all:  # one answer after another
                    attempt.say(f"committed {step} {other}", 0)
                    world.sleep(world.delay_s(0.002))
            else:
                attempt.hear(self, f"committed {step} {rank}", [0])
        world.sleep(world.delay_s(0.02) if "no commit" in run.bugs else 0.0005)
        self._update(step)
        attempt.say(f"report {step}", rank, self.process.stops)
        if rank == 0:
            reports = attempt.hear(self, f"report {step}", self._all)
            self._require_newest(attempt)
            run.auditor.row(attempt.number, step, self._own, world.now_s())
            for other in self._all:
                attempt.say(f"round {step} {other}", 0, any(reports))
                world.sleep(world.delay_s(0.002))
        stops = bool(attempt.hear(self, f"round {step} {rank}", [0])[0])
        if (step + 1) % EVERY == 0 or stops or step + 1 == STEPS:
            self._save(attempt, step + 1)
        return stops

    def _update(self, step: int) -> None:
        self._own, self._in_doubt = (*self._own, step), False
        if "mirror lags" in self._run.bugs and step % 5 == 3:
            return
        self._mirror = (*self._mirror, step)

    def _save(self, attempt: Attempt, step: int) -> None:
        """As `saver`: all write, all tell, then the first gives it its name."""
        run, world = self._run, self._run.world
        world.sleep(world.delay_s(0.05))
        if "names early" in run.bugs and self.rank == 0:
            run.auditor.saved(step, {0: self._own}, self.launch.world_size)
            run.checkpoints[step] = self._own
        attempt.say(f"written {step}", self.rank, self._own)
        written = attempt.hear(self, f"written {step}", self._all)
        if self.rank == 0 and "names early" not in run.bugs:
            self._require_newest(attempt)
            run.auditor.saved(step, dict(enumerate(written)), self.launch.world_size)
            run.checkpoints[step] = self._own

    def _kept(self) -> Kept:
        """As `RankRun.kept`."""
        kept = self._holds()
        if not self._in_doubt or self.launch.world_size == 1 or "forgets doubt" in self._run.bugs:
            return kept
        from dataclasses import replace

        version = len(self._own)
        return replace(
            kept, later=lambda: self._later(version), later_beside={"updates": version + 1}
        )

    def _later(self, step: int) -> Kept:
        self._update(step)
        return self._holds()

    def _holds(self) -> Kept:
        held: dict[str, list[KeptUnit]] = {}
        for name, begin, end, other in self._parts:
            history = self._mirror if other else self._own
            unit = KeptUnit(len(history), begin, end, cast(Any, {"history": history}), other)
            if not (other and "no mirror" in self._run.bugs):
                held.setdefault(name, []).append(unit)
        versions = {unit.version for parts in held.values() for unit in parts}
        return Kept(held, {version: {"updates": version} for version in versions}, {})


__all__ = ["Bugs", "Deadline", "Host", "Killed", "SimRun"]
