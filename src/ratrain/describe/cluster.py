"""What a cluster is: device kinds, hosts of any mix, and a link at each level between them.

Levels from the inside out: chip, host, room, site, world. Two devices communicate over the
innermost level that they share. A missing level uses the link of the next outer level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import log2
from typing import Annotated, Literal

from ratrain.describe.amounts import (
    NOT_STATED,
    Count,
    Name,
    Note,
    RateBytesPerS,
    SizeBytes,
    TimeS,
)
from ratrain.describe.device import DeviceKind
from ratrain.describe.on_chip import ChipNetwork
from ratrain.describe.strict import FrozenMap, Rule, nearest
from ratrain.describe.units import counted
from ratrain.errors import Infeasible, SpecError

Level = Literal["chip", "host", "room", "site", "world"]
LEVELS: tuple[Level, ...] = ("chip", "host", "room", "site", "world")
Coefficient = Annotated[float, Rule(low=-1e6, high=1e6)]  # GB/s


@dataclass(frozen=True)
class SizePoint:
    """What messages of one size were seen to reach on a link."""

    size_bytes: SizeBytes  # of a message
    bandwidth_bytes_per_s: RateBytesPerS  # what messages of that size reached


@dataclass(frozen=True)
class Link:
    """A link: time = latency + bytes / bandwidth, per direction."""

    latency_s: TimeS  # one way
    # in each direction; of messages beyond the largest of `by_size`
    bandwidth_bytes_per_s: RateBytesPerS
    source: str = NOT_STATED  # where the figures come from
    # "host": all devices of a host share one such link; "device": each has its own
    shared_by: Literal["device", "host"] = "device"
    # LogP's o: compute time that the sender's cores spend driving one message
    overhead_s: TimeS = 0.0
    overhead_source: Note = ""  # where that comes from
    collective_s: TimeS = 0.0  # what starting a collective costs, whatever its group
    by_size: tuple[SizePoint, ...] = ()  # the bandwidth of messages by their size
    # the same as a, b and c of a fit a x^2 + b x + c in GB/s, x the binary logarithm of the
    # message's MB
    log_quadratic: tuple[Coefficient, ...] = ()

    def __post_init__(self) -> None:
        if self.by_size and self.log_quadratic:
            raise SpecError(
                "a link has by_size or log_quadratic, not both", place="by_size", fix="drop one"
            )
        if self.log_quadratic and len(self.log_quadratic) != 3:
            raise SpecError(
                f"log_quadratic has {len(self.log_quadratic)} numbers",
                place="log_quadratic",
                fix="give three: a, b and c of a x^2 + b x + c",
            )
        sizes = [point.size_bytes for point in self.by_size]
        if sizes != sorted(set(sizes)):
            raise SpecError(
                "the sizes of by_size are not ascending",
                place="by_size",
                fix="list the smallest first",
            )
        if any(p.bandwidth_bytes_per_s > self.bandwidth_bytes_per_s for p in self.points):
            raise SpecError(
                "a message of by_size is faster than the link's bandwidth",
                place="by_size",
                fix="set bandwidth to the largest that was measured",
            )

    @property
    def points(self) -> tuple[SizePoint, ...]:
        """Bandwidth by size, smallest first, in either form; () for a link of one rate."""
        return _fitted(self) if self.log_quadratic else self.by_size

    def size_s(self, size_bytes: float) -> float:
        """What a message of this size takes beyond its bytes at the link's full bandwidth.

        Between two sizes the bandwidth is on the straight line over the size's logarithm; a
        message smaller than the smallest has the bandwidth of that.
        """
        points = self.points
        if not points or not size_bytes:
            return 0.0
        last = points[-1]
        if size_bytes > last.size_bytes:
            return last.size_bytes * self._slower(last.bandwidth_bytes_per_s)
        rate = _between(points, size_bytes)
        return size_bytes * self._slower(rate)

    def _slower(self, rate_bytes_per_s: float) -> float:
        return 1 / rate_bytes_per_s - 1 / self.bandwidth_bytes_per_s

    def divided(self, groups: float) -> Link:
        """One of `groups` equal parts of the link."""
        points = tuple(
            SizePoint(point.size_bytes, point.bandwidth_bytes_per_s / groups)
            for point in self.points
        )
        part = self.bandwidth_bytes_per_s / groups
        return replace(self, bandwidth_bytes_per_s=part, by_size=points, log_quadratic=())


FIT_SIZES_BYTES = tuple(1_000_000 << power for power in range(13))
"""Where a fit is read: 1 MB to 4 GB."""


@cache
def _fitted(link: Link) -> tuple[SizePoint, ...]:
    """Points of a link's fit, up to where it reaches its top or the link's bandwidth. Below 1 MB
    fits of this form fall beneath zero, so the smallest point is that of 1 MB."""
    a, b, c = link.log_quadratic
    points: list[SizePoint] = []
    for power, size_bytes in enumerate(FIT_SIZES_BYTES):
        rate = 1e9 * (a * power * power + b * power + c)
        if rate <= 0:
            raise SpecError(
                f"log_quadratic gives {rate / 1e9:g} GB/s at {size_bytes / 1e6:g} MB",
                place="log_quadratic",
                fix="give a, b and c in GB/s over the logarithm to base 2 of the message's MB",
            )
        if points and rate <= points[-1].bandwidth_bytes_per_s:
            break
        points.append(SizePoint(size_bytes, min(rate, link.bandwidth_bytes_per_s)))
        if rate >= link.bandwidth_bytes_per_s:
            break
    return tuple(points)


def _between(points: tuple[SizePoint, ...], size_bytes: float) -> float:
    """The bandwidth of a message no larger than the last point."""
    if size_bytes <= points[0].size_bytes:
        return points[0].bandwidth_bytes_per_s
    after = next(n for n, point in enumerate(points) if point.size_bytes >= size_bytes)
    low, high = points[after - 1], points[after]
    part = log2(size_bytes / low.size_bytes) / log2(high.size_bytes / low.size_bytes)
    rise = high.bandwidth_bytes_per_s - low.bandwidth_bytes_per_s
    return low.bandwidth_bytes_per_s + part * rise


@dataclass(frozen=True)
class ChipLink(Link):
    """The link between devices of one chip, which has a network of its own."""

    network: ChipNetwork | None = None


Links = Annotated[FrozenMap[Link], Rule(keys=LEVELS)]


@dataclass(frozen=True)
class HostKind:
    """`count` equal hosts in one room; "any" is as many as a job asks for."""

    name: Name
    device: Name  # the name of a [[device]]
    devices: Count  # in each of these hosts
    count: Count | Literal["any"]  # how many hosts; "any": as many as a job asks for
    room: Name = "room"  # hosts of one room have the link `room`
    site: Name = "site"  # rooms of one site have the link `site`, sites the link `world`
    links: Links = field(default_factory=FrozenMap[Link])  # in place of the cluster's
    # by the name of another [[host]]: the link to it, in place of the level's
    to: FrozenMap[Link] = field(default_factory=FrozenMap[Link])


@dataclass(frozen=True)
class Device:
    """One device of a cluster: the `index`-th, and where it is."""

    index: int
    kind: DeviceKind
    host: int
    chip: int  # within the host
    room: str
    site: str
    host_kind: HostKind


@dataclass(frozen=True)
class ClusterSpec:
    """Device kinds, hosts in order, and the link of each level."""

    name: Name  # what jobs call it, of a plugin's
    device: tuple[DeviceKind, ...]  # the kinds
    host: tuple[HostKind, ...]  # in order: devices are numbered host by host
    # by level, from the inside out: chip, host, room, site, world; one left out is as the next
    # outer one
    links: Links
    source: str = NOT_STATED  # where the file comes from

    def __post_init__(self) -> None:
        kinds = [kind.name for kind in self.device]
        for number, kind in enumerate(kinds):
            if kind in kinds[:number]:
                raise SpecError(
                    f'two devices have the name "{kind}"',
                    place=f"device.{number}.name",
                    fix="give each kind of device its own name",
                )
        for number, host in enumerate(self.host):
            if host.device not in kinds:
                raise SpecError(
                    f'host "{host.name}" has the unknown device "{host.device}"',
                    place=f"host.{number}.device",
                    fix=nearest(host.device, kinds),
                )
            others = [other.name for other in self.host if other is not host]
            for name in host.to:
                if name not in others:
                    raise SpecError(
                        f'host "{host.name}" has a link to the unknown host "{name}"',
                        place=f"host.{number}.to.{name}",
                        fix=nearest(name, others) if others else "leave it out",
                    )
            if host.count == "any" and number < len(self.host) - 1:
                raise SpecError(
                    'only the last host may have count = "any"',
                    place=f"host.{number}.count",
                    fix="move this [[host]] to the end",
                )
        if not self.host:
            raise SpecError("no hosts", place="host", fix="add [[host]]")

    def host_names(self) -> list[str]:
        """Of every host: its name, numbered from 1 where several have it. Of a kind of which there
        are as many as a job asks for, none."""
        names = [host.name for host in self.host if host.count != "any" for _ in range(host.count)]
        return numbered(names)

    def without(self, left_out: Sequence[str]) -> ClusterSpec:
        """The cluster but for these of its hosts; the others keep their names."""
        names = self.host_names()
        for name in left_out:
            if name not in names:
                raise SpecError(
                    f"the cluster has no host {name!r}",
                    place=f"cluster {self.name}",
                    fix=nearest(name, names)
                    if names
                    else "give [[host]] a count in the cluster's file",
                )
        left: list[tuple[str, HostKind]] = []  # (its name before, one or all hosts of a kind)
        for host in self.host:
            if host.count == "any":
                left.append((host.name, host))
                continue
            own, names = names[: host.count], names[host.count :]
            if not set(own) & set(left_out):
                left.append((host.name, host))
                continue
            kept = [name for name in own if name not in left_out]
            left += [(host.name, replace(host, name=name, count=1)) for name in kept]
        if not left:
            raise SpecError("no host is left", place=f"cluster {self.name}", fix="leave out fewer")
        hosts = tuple(
            replace(
                host,
                to=FrozenMap(
                    {
                        other.name: link
                        for before, link in host.to.items()
                        for name, other in left
                        if name == before
                    }
                ),
            )
            for _, host in left
        )
        return replace(self, host=hosts)

    def kind(self, name: str) -> DeviceKind:
        """The device kind of that name, with its part of what the devices of a host share: of the
        hosts that have most of them."""
        kind = next(kind for kind in self.device if kind.name == name)
        beside = max((host.devices for host in self.host if host.device == name), default=1)
        tiers = tuple(tier.part_of(beside) for tier in kind.tiers)
        return kind if tiers == kind.tiers else replace(kind, tiers=tiers)

    @property
    def size(self) -> int | None:
        """How many devices there are; None where there are as many as a job asks for."""
        total = 0
        for host in self.host:
            if host.count == "any":
                return None
            total += host.devices * host.count
        return total

    def devices(self, count: int) -> tuple[Device, ...]:
        """The first `count` devices, host by host in the order of the file."""
        if self.size is not None and count > self.size:
            raise Infeasible(
                f"{counted(count, 'device')} requested, but the cluster has {self.size}",
                place=f"cluster {self.name}",
                fix=f"use at most {counted(self.size, 'device')}",
            )
        devices: list[Device] = []
        host_index = 0
        for host in self.host:
            kind = self.kind(host.device)
            left = host.count if host.count != "any" else count
            while left and len(devices) < count:
                for slot in range(min(host.devices, count - len(devices))):
                    chip = slot // kind.devices_per_chip
                    devices.append(
                        Device(len(devices), kind, host_index, chip, host.room, host.site, host)
                    )
                host_index += 1
                left -= 1
        return tuple(devices)

    def level(self, a: Device, b: Device) -> Level:
        """The innermost level that the two devices share."""
        if a.host == b.host:
            return "chip" if a.chip == b.chip and a.kind.devices_per_chip > 1 else "host"
        if a.site != b.site:
            return "world"
        return "room" if a.room == b.room else "site"

    def link(self, a: Device, b: Device) -> Link:
        """The link that the two devices communicate over: the one from host to host where it is
        known, if only the other way round; else, of the two hosts' own, the slower."""
        level = self.level(a, b)
        if a.host_kind is b.host_kind:
            return self._link_of(a.host_kind, level)
        for here, there in ((a.host_kind, b.host_kind), (b.host_kind, a.host_kind)):
            if there.name in here.to:
                return here.to[there.name]
        ends = (self._link_of(a.host_kind, level), self._link_of(b.host_kind, level))
        return min(ends, key=_speed)

    def own_link(self, device: Device, level: Level) -> Link:
        """The device's own link at that level, whatever the other end has."""
        return self._link_of(device.host_kind, level)

    def _link_of(self, host: HostKind, level: Level) -> Link:
        """Kept once found: a large ring asks for the same few links thousands of times."""
        key = host.name, level
        if key not in self._known_links:
            self._known_links[key] = self._find_link(host, level)
        return self._known_links[key]

    @cached_property
    def _known_links(self) -> dict[tuple[str, Level], Link]:
        return {}

    def _find_link(self, host: HostKind, level: Level) -> Link:
        link = self.described_link(host, level)
        if link is None:
            raise SpecError(
                f'no link at level "{level}" or outside it',
                place=f"cluster {self.name} [links]",
                fix=f"add [links.{level}]",
            )
        network = self.kind(host.device).chip if level == "chip" else None
        return link if network is None else ChipLink(**vars(link), network=network)

    def described_link(self, host: HostKind, level: Level) -> Link | None:
        """What the file says of a host's link at a level, else at the next one outside it: its own
        before the cluster's. None where it says nothing."""
        for outwards in LEVELS[LEVELS.index(level) :]:
            for links in (host.links, self.links):
                if outwards in links:
                    return links[outwards]
        return None


def numbered(names: Sequence[str]) -> list[str]:
    """Names, each that occurs again with a number: oak, birch-1, birch-2."""
    several, so_far = Counter(names), Counter[str]()
    shown: list[str] = []
    for name in names:
        so_far[name] += 1
        shown.append(f"{name}-{so_far[name]}" if several[name] > 1 else name)
    return shown


def _speed(link: Link) -> tuple[float, float]:
    return link.bandwidth_bytes_per_s, -link.latency_s
