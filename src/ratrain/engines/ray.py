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
from importlib import import_module
from typing import Any, cast

from ratrain.engines.groups import HostGroup, Launchable
from ratrain.engines.places import KIND
from ratrain.errors import SpecError

LABEL = "kind"
"""The label of Ray nodes that says of which kind they are: `ray start --labels kind=old`."""
_LOST = 137
_WAITS_S = 30.0
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


class RayRun:
    """One attempt at a run: its hosts in Ray, until `close`."""

    def __init__(self, run: Launchable, attempt: int, say: Say) -> None:
        self._ray = ray_module()
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
        while not group.wait(_WAITS_S):
            wanted = Counter(
                str({**needs, LABEL: host.kind})
                for needs, host in zip(bundles, self._hosts, strict=True)
            )
            say("waiting for hosts of Ray: " + ", ".join(f"{n} x {w}" for w, n in wanted.items()))
        return group

    def _start(self, run: Launchable, attempt: int) -> None:
        nodes = self._ray.get([_where(actor) for actor in self._actors])
        addresses = [address for address, _ in nodes]
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
        if None not in statuses:
            return cast("list[int]", statuses)
        if failed_s is None and any(statuses):
            failed_s = time.monotonic()
        if failed_s is not None and time.monotonic() - failed_s > _LAST_WORDS_S:
            return [status for status in statuses if status is not None]
        time.sleep(tick_s)


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
