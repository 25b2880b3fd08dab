"""A run on a Ray cluster: one placement group with a bundle for each host of the plan, as large as
that host's ranks need and with its kind as the node's label, and in each bundle an actor whose
children are the ranks.

Ranks are processes of their own, not Ray workers: what they allocate is counted and limited by a
library that must be loaded before Python. They end when their actor does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from ratrain.engines.groups import HostGroup, Launchable
from ratrain.engines.places import KIND
from ratrain.errors import SpecError

LABEL = "kind"
"""The label of Ray nodes that says of which kind they are: `ray start --labels kind=old`."""
_LOST = 137
_WAITS_S = 30.0
_NO_ROOM_S = 10.0
"""How long hosts are waited for that were there before."""
_LAST_WORDS_S = 20.0
_GRACE_S = 5.0

Say = Callable[[str], None]


class HostRanks:
    """One host's ranks: children of the process that this object lives in, which is an actor's."""

    def __init__(self) -> None:
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str], variables: Sequence[Mapping[str, str]]) -> None:
        """Starts a child for each set of variables."""
        for each in variables:
            environment = {**os.environ, "PYTHONUNBUFFERED": "1", **each}
            self._children.append(
                subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
            )

    def statuses(self) -> list[int | None]:
        """How each ended, as shells have it; None: it runs."""
        ended = [child.poll() for child in self._children]
        return [128 - status if status is not None and status < 0 else status for status in ended]

    def stop(self, number: int) -> None:
        """Sends a signal to those that run."""
        for child in self._children:
            if child.poll() is None:
                with suppress(ProcessLookupError):
                    child.send_signal(number)


class NoRoom(Exception):
    """Ray's nodes have no room for some hosts any more: their numbers, in the order of groups."""

    def __init__(self, hosts: Sequence[int]) -> None:
        super().__init__(hosts)
        self.hosts = hosts


class RayRun:
    """One attempt at a run: its hosts in Ray, until `close`. After the first one NoRoom may be
    raised, where the run can be planned anew for fewer."""

    def __init__(self, run: Launchable, attempt: int, say: Say) -> None:
        self._ray, self._say = ray_module(), say
        self._waits = not (attempt and run.replans)
        self._nodes: set[str] = set()
        self.asked = self.leaves = False
        self._hosts = [group for group in run.groups for _ in range(group.hosts)]
        self._group = self._placed(run, say)
        options = [_needs(run, host) for host in self._hosts]
        strategies = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        remote: Any = self._ray.remote(max_restarts=0)(HostRanks)
        self._actors = [
            remote.options(
                num_cpus=needs["CPU"],
                num_gpus=needs.get("GPU", 0),
                scheduling_strategy=strategies(self._group, placement_group_bundle_index=number),
            ).remote()
            for number, needs in enumerate(options)
        ]
        self._start(run, attempt)

    def statuses(self) -> list[int | None]:
        """Of each rank; of those whose actor or node was lost, as if they had been killed."""
        found: list[int | None] = []
        for actor, host in zip(self._actors, self._hosts, strict=True):
            try:
                found += self._ray.get(actor.statuses.remote(), timeout=_WAITS_S)
            except (self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError):
                found += [_LOST] * host.ranks_each
        return found

    def ask_to_stop(self) -> None:
        """Every rank saves behind the current step and ends."""
        self.asked = True
        self._signal(signal.SIGTERM)

    def look_for_leaving(self) -> None:
        """Asks for the same where a node has announced its end: it is drained, or preempted."""
        if not self.leaves and self._nodes & _draining():
            self.leaves = True
            self._say("a node of Ray is drained: ranks save, and start again on the others")
            self._signal(signal.SIGTERM)

    def close(self) -> None:
        """Ends what still runs, and gives the hosts back."""
        self._signal(signal.SIGKILL)
        for actor in self._actors:
            self._ray.kill(actor)
        self._ray.util.remove_placement_group(self._group)

    def _signal(self, number: int) -> None:
        for actor in self._actors:
            with suppress(self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError):
                self._ray.get(actor.stop.remote(int(number)), timeout=_GRACE_S)

    def _placed(self, run: Launchable, say: Say) -> Any:
        bundles = [_needs(run, host) for host in self._hosts]
        labels = [{LABEL: host.kind} for host in self._hosts] if run.kinds > 1 else None
        group = self._ray.util.placement_group(
            bundles, strategy="SPREAD", bundle_label_selector=labels
        )
        while not group.wait(_WAITS_S if self._waits else _NO_ROOM_S):
            if not self._waits and (without := hosts_without_room(bundles, labels, _nodes())):
                self._ray.util.remove_placement_group(group)
                raise NoRoom(without)
            wanted = Counter(
                str({**needs, LABEL: host.kind})
                for needs, host in zip(bundles, self._hosts, strict=True)
            )
            say("waiting for hosts of Ray: " + ", ".join(f"{n} x {w}" for w, n in wanted.items()))
        return group

    def _start(self, run: Launchable, attempt: int) -> None:
        nodes = self._ray.get([_where(actor) for actor in self._actors])
        addresses = [address for address, _ in nodes]
        self._nodes = {node for _, node in nodes}
        here = Counter[str]()
        for address, host in zip(addresses, self._hosts, strict=True):
            here[address] += host.ranks_each
        job = self._ray.get_runtime_context().get_job_id()
        rank, begun = 0, Counter[str]()
        starting: list[Any] = []
        for actor, host, (address, node) in zip(self._actors, self._hosts, nodes, strict=True):
            variables: list[dict[str, str]] = []
            for _ in range(host.ranks_each):
                variables.append(
                    {
                        "RATRAIN_RAY": f"{job}",
                        "RATRAIN_RAY_ATTEMPT": str(attempt),
                        "RATRAIN_RAY_NODE": node,
                        "RATRAIN_RAY_FIRST": addresses[0],
                        "RANK": str(rank),
                        "WORLD_SIZE": str(run.ranks),
                        "LOCAL_RANK": str(begun[address]),
                        "LOCAL_WORLD_SIZE": str(here[address]),
                        "RATRAIN_ADDRESS": address,
                        **({KIND: host.kind} if run.kinds > 1 else {}),
                    }
                )
                rank, begun[address] = rank + 1, begun[address] + 1
            starting.append(actor.start.remote(run.command, variables))
        self._ray.get(starting)


def bundles_of(run: Launchable) -> list[dict[str, object]]:
    """What each host of the plan is asked for, and the kind of node."""
    hosts = [group for group in run.groups for _ in range(group.hosts)]
    kind = run.kinds > 1
    return [
        {
            "resources": _needs(run, host),
            LABEL: host.kind if kind else None,
            "ranks": host.ranks_each,
        }
        for host in hosts
    ]


def ended(run: RayRun, tick_s: float = 0.3) -> list[int]:
    """How all ranks ended; those that go on long after another has failed are not waited for."""
    failed_s: float | None = None
    while True:
        statuses = run.statuses()
        run.look_for_leaving()
        if None not in statuses:
            return cast("list[int]", statuses)
        if failed_s is None and any(statuses):
            failed_s = time.monotonic()
        if failed_s is not None and time.monotonic() - failed_s > _LAST_WORDS_S:
            return [status for status in statuses if status is not None]
        time.sleep(tick_s)


@dataclass(frozen=True)
class RayNode:
    """What a node has in all."""

    resources: Mapping[str, float]
    labels: Mapping[str, str]


def hosts_without_room(
    bundles: Sequence[Mapping[str, float]],
    labels: Sequence[Mapping[str, str]] | None,
    nodes: Sequence[RayNode],
) -> list[int]:
    """The numbers of bundles that do not fit on nodes, each on the first that has room for it."""
    rooms = [(dict(node.resources), node.labels) for node in nodes]
    without: list[int] = []
    for number, needs in enumerate(bundles):
        wanted = dict(labels[number] if labels else {}).items()
        room = next(
            (
                room
                for room, has in rooms
                if wanted <= has.items() and all(room.get(k, 0) >= n for k, n in needs.items())
            ),
            None,
        )
        if room is None:
            without.append(number)
            continue
        for key, count in needs.items():
            room[key] -= count
    return without


def _nodes() -> list[RayNode]:
    """Those that are there and stay."""
    leaving = _draining()
    return [
        RayNode(node["Resources"], node.get("Labels") or {})
        for node in ray_module().nodes()
        if node["Alive"] and node["NodeID"] not in leaving
    ]


def _draining() -> set[str]:
    """The nodes that have announced their end. Ray says it in no public function; of one that does
    not say it nothing is known."""
    with suppress(ImportError, AttributeError):
        state: Any = import_module("ray._private.state").state
        return {*state.get_draining_nodes()}
    return set()


def ray_module() -> Any:
    """Ray, which is an optional package."""
    try:
        import_module("ray.util.scheduling_strategies")
        return import_module("ray")
    except ImportError as error:
        raise SpecError(
            "Ray is not installed",
            place="ratrain launch ray",
            fix="pip install 'ratrain[ray]' here and on Ray's nodes",
        ) from error


def connect(address: str | None) -> None:
    """Connects to a cluster: the one named, else the one of this machine or of RAY_ADDRESS."""
    ray = ray_module()
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    try:
        ray.init(address=address or "auto", logging_level="warning", log_to_driver=True)
    except ConnectionError as error:
        raise SpecError(
            f"no Ray cluster answers: {str(error).splitlines()[0]}",
            place=f"--address {address or 'auto'}",
            fix="start one (`ray start --head`), or name it with --address HOST:6379",
        ) from error


def _where(actor: Any) -> Any:
    """The address and the name of an actor's node."""

    def here(_self: object) -> tuple[str, str]:
        ray: Any = import_module("ray")
        return ray.util.get_node_ip_address(), ray.get_runtime_context().get_node_id()

    return actor.__ray_call__.remote(here)


def _needs(run: Launchable, host: HostGroup) -> dict[str, float]:
    """What a host's ranks take of a node."""
    needs: dict[str, float] = {"CPU": host.ranks_each * run.threads}
    if run.gpus:
        needs["GPU"] = host.ranks_each
    return needs
