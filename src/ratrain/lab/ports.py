"""Which network namespaces a cluster needs in a lab, and how fast each one's port is.

One namespace is one port. Where a link is shared by the devices of a host they stand in one
namespace behind one port; where each device has its own link, each has its own namespace.
Links of several levels (a room's and the world's) are several rates on one port, distinguished
by the address of the other end; as in the cluster file, they do not slow each other. A latency is
one of a pair of ports: of two hosts' own links, the slower one's.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from ratrain.describe.cluster import LEVELS, ClusterSpec, Device, Level, Link
from ratrain.describe.device import LabSpec
from ratrain.describe.units import format_bytes_rate
from ratrain.errors import Infeasible, SpecError

FASTEST_BYTES_PER_S = 1.25e9
"""10 Gbit/s: about what a pair of virtual ports carries (12.9 Gbit/s was seen on two cores)."""

MOST_PORTS = 250  # addresses of one control network


@dataclass(frozen=True)
class Port:
    """A namespace's port: the ranks behind it and its rate towards each level."""

    index: int
    host: int
    ranks: tuple[int, ...]
    rates_bytes_per_s: tuple[tuple[Level, float], ...]  # innermost level first
    inside_bytes_per_s: float | None  # between its own ranks, all together; None: one rank
    levels: tuple[Level | None, ...]  # towards each port by index; None: itself
    latencies_s: tuple[float, ...]  # likewise, one way; 0: itself
    inside_latency_s: float  # between its own ranks; 0: one rank

    @property
    def address(self) -> str:
        """On the lab's slow network, 10.88.0.0/16, which exists in the lab alone."""
        return f"10.88.{self.index // 250}.{self.index % 250 + 1}"

    def rate_to(self, other: Port) -> float:
        """Bytes per second that this port sends to another, or its own ranks to each other."""
        if other.index == self.index:
            return self.inside_bytes_per_s or 0.0
        level_out, level_back = self.levels[other.index], other.levels[self.index]
        outgoing = next(rate for name, rate in self.rates_bytes_per_s if name == level_out)
        return min(
            outgoing, next(rate for name, rate in other.rates_bytes_per_s if name == level_back)
        )

    def latency_to(self, other: Port) -> float:
        """Seconds that a packet needs to another port, or between its own ranks."""
        return self.inside_latency_s if other is self else self.latencies_s[other.index]


def ports(cluster: ClusterSpec, count: int) -> tuple[Port, ...]:
    """The ports of the first `count` devices, or an error for what a lab cannot make."""
    devices = cluster.devices(count)
    for device in devices:
        lab_spec(device)
    groups = [group for members in _hosts(devices) for group in _split(cluster, members, devices)]
    if len(groups) > MOST_PORTS:
        raise Infeasible(
            f"{len(groups)} ports, and a lab has at most {MOST_PORTS}",
            place=f"cluster {cluster.name}",
            fix="use fewer devices",
        )
    return tuple(_port(cluster, index, groups) for index in range(len(groups)))


def lab_spec(device: Device) -> LabSpec:
    """How a lab holds this device; a kind that does not say is an error."""
    if device.kind.lab is None:
        raise SpecError(
            "the cluster file does not say how a lab emulates this device",
            place=f"device {device.kind.name}",
            fix="add [device.lab] with cpus = 1.0 to it",
        )
    return device.kind.lab


def memory_limit_bytes(device: Device) -> int:
    """Bytes that the device's process may use: its first tier, and its overhead."""
    return device.kind.memory.capacity_bytes + lab_spec(device).overhead_bytes


def _hosts(devices: tuple[Device, ...]) -> list[list[Device]]:
    return [list(members) for _, members in groupby(devices, key=lambda device: device.host)]


def _split(
    cluster: ClusterSpec, members: list[Device], devices: tuple[Device, ...]
) -> list[list[Device]]:
    """The devices of one host, in groups that share a namespace."""
    if members[0].host_kind.to:
        fix = "describe its links by level, in [host.links]"
        raise _cannot(cluster, members, "has links of its own to other hosts", fix)
    if len(members) == 1:
        return [members]
    host = members[0].host
    outside: set[Level] = {
        cluster.level(members[0], other) for other in devices if other.host != host
    }
    inside: set[Level] = {cluster.level(members[0], other) for other in members[1:]}
    shared = {cluster.own_link(members[0], level).shared_by for level in outside or inside}
    if len(shared) > 1:
        raise _cannot(cluster, members, "has both per-device and shared links")
    if shared == {"host"}:
        return [members]
    if any(cluster.own_link(members[0], level).shared_by == "host" for level in inside):
        raise _cannot(cluster, members, "shares a link inside it, but none to other hosts")
    return [[device] for device in members]


def _port(cluster: ClusterSpec, index: int, groups: list[list[Device]]) -> Port:
    group = groups[index]
    first = group[0]
    levels: tuple[Level | None, ...] = tuple(
        None if other is group else cluster.level(first, other[0]) for other in groups
    )
    rates: tuple[tuple[Level, float], ...] = tuple(
        (level, _rate(cluster, cluster.own_link(first, level), level))
        for level in LEVELS
        if level in levels
    )
    latencies = tuple(
        0.0 if other is group else cluster.link(first, other[0]).latency_s for other in groups
    )
    return Port(
        index,
        first.host,
        tuple(device.index for device in group),
        rates,
        _inside(cluster, group),
        levels,
        latencies,
        max((cluster.link(first, other).latency_s for other in group[1:]), default=0.0),
    )


def _inside(cluster: ClusterSpec, group: list[Device]) -> float | None:
    """Bytes per second between ranks of one namespace, over its loopback, all together."""
    if len(group) == 1:
        return None
    levels: set[Level] = {cluster.level(group[0], other) for other in group[1:]}
    links = {cluster.own_link(group[0], level) for level in levels}
    if len(links) > 1:
        raise _cannot(cluster, group, "has links of two speeds within")
    link = links.pop()
    count = len(group) if link.shared_by == "device" else 1
    return count * _rate(cluster, link, levels.pop())


def _rate(cluster: ClusterSpec, link: Link, level: Level) -> float:
    if link.bandwidth_bytes_per_s > FASTEST_BYTES_PER_S:
        raise Infeasible(
            f"{format_bytes_rate(link.bandwidth_bytes_per_s)} is more than one machine can emulate",
            place=f"cluster {cluster.name} [links.{level}]",
            fix=f"describe links of at most {format_bytes_rate(FASTEST_BYTES_PER_S)}",
        )
    return link.bandwidth_bytes_per_s


def _cannot(
    cluster: ClusterSpec,
    members: list[Device],
    problem: str,
    fix: str = "give its links one shared_by, or devices = 1",
) -> Infeasible:
    return Infeasible(
        f'a host "{members[0].host_kind.name}" {problem}, which a lab cannot emulate',
        place=f"cluster {cluster.name}",
        fix=fix,
    )
