"""Machines with their GPUs and links, as the hosts of a cluster.

A host of a cluster file has devices of one kind. A machine of several kinds is therefore several
hosts in a room of its own; then the link inside the machine is that of level "room", and the link
between machines that of level "site". Where no machine is mixed, machines of one site share a room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from ratrain.describe.cluster import ClusterSpec, HostKind, Link
from ratrain.describe.device import DeviceKind
from ratrain.describe.strict import FrozenMap


@dataclass(frozen=True)
class Machine:
    """A machine: the kind of each GPU by number, the link inside it, to others of its site, and to
    other sites. Its link to another machine is the slower of both, unless it is in `to` by that
    one's name, which machines of several kinds do not have."""

    name: str
    kinds: tuple[str, ...]
    inside: Link
    between: Link | None = None  # None: there is no other machine
    far: Link | None = None
    site: str = "site"
    to: FrozenMap[Link] = field(default_factory=FrozenMap[Link])


def cluster_of(
    name: str, source: str, kinds: Sequence[DeviceKind], machines: Sequence[Machine]
) -> ClusterSpec:
    """The cluster of these machines, its devices in their order."""
    mixed = any(len(set(machine.kinds)) > 1 for machine in machines)
    parts = [part for machine in machines for part in _hosts(machine, mixed)]
    hosts = [_counted(list(alike)) for _, alike in groupby(parts, key=_sort)]
    shared = hosts[0].links if all(host.links == hosts[0].links for host in hosts) else None
    if shared is not None:
        hosts = [_without_links(host) for host in hosts]
    return ClusterSpec(name, tuple(kinds), tuple(hosts), shared or FrozenMap[Link](), source=source)


def _hosts(machine: Machine, mixed: bool) -> list[HostKind]:
    """A host for each run of GPUs of one kind."""
    room = machine.name if mixed else "room"
    links: dict[str, Link] = {"host": machine.inside}
    if mixed:
        links["room"] = machine.inside
    if machine.between is not None:
        links["site" if mixed else "room"] = machine.between
    if machine.far is not None:
        links["world"] = machine.far
    runs = [(kind, len(list(run))) for kind, run in groupby(machine.kinds)]
    return [
        HostKind(
            machine.name if len(runs) == 1 else f"{machine.name}-{number}",
            kind,
            devices,
            1,
            room,
            machine.site,
            FrozenMap[Link](dict(links)),
            machine.to,
        )
        for number, (kind, devices) in enumerate(runs)
    ]


def _sort(host: HostKind) -> tuple[object, ...]:
    """What hosts that are counted together have in common."""
    return host.device, host.devices, host.room, host.site, host.links, host.to


def _counted(alike: list[HostKind]) -> HostKind:
    return replace(alike[0], count=len(alike))


def _without_links(host: HostKind) -> HostKind:
    return replace(host, links=FrozenMap[Link]())
