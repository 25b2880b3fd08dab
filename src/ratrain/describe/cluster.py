"""What a cluster is: device kinds, hosts of any mix, and a link at each level between them.

Levels from the inside out: chip, host, room, site, world. Two devices communicate over the
innermost level that they share. A level that is left out is like the next one outwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal

from ratrain.describe.strict import FrozenMap, Rule, nearest
from ratrain.describe.units import format_flops_rate
from ratrain.errors import Infeasible, SpecError

Level = Literal["chip", "host", "room", "site", "world"]
LEVELS: tuple[Level, ...] = ("chip", "host", "room", "site", "world")
Operator = Literal["gemm", "attention"]

SizeBytes = Annotated[int, Rule("bytes", low=1)]
RateBytesPerS = Annotated[float, Rule("bytes_per_s", low=1)]
TimeS = Annotated[float, Rule("s", low=0)]
RateFlops = Annotated[float, Rule("flops", low=1)]
Fraction = Annotated[float, Rule(low=0.01, high=1)]


@dataclass(frozen=True)
class Tier:
    """One level of memory of a device; the first tier is the one the budget is about."""

    name: str
    capacity_bytes: SizeBytes
    bandwidth_bytes_per_s: RateBytesPerS
    source: str


@dataclass(frozen=True)
class Rate:
    """FLOP/s of one dtype: the nominal peak and what operators were seen to reach."""

    dtype: str
    peak_flops: RateFlops
    gemm_flops: RateFlops
    source: str
    attention_flops: RateFlops | None = None  # left out: as GEMM


@dataclass(frozen=True)
class KernelModel:
    """How a GPU's kernel library and its host behave: products by shape, passes counted.

    `processors` run one tile of a product each; `half_depth` is the k at which a product reaches
    half of its rate; `host_s` is what the host needs to start one kernel; `lockstep` is how
    sharply the slower of host and device decides in a tensor group; `activation_passes`
    is how often the forward reads or writes the MLP's width for its activation (2: fused). See
    cost.gpu_layer.
    """

    processors: Annotated[int, Rule(low=1)]
    half_depth: Annotated[float, Rule(low=0)]
    host_s: TimeS
    attention: Literal["stored", "flash"]
    source: str
    activation_passes: Annotated[float, Rule(low=2)] = 2.0
    optimizer_bytes_per_param: Annotated[float, Rule(low=1)] = 28.0  # traffic of one update
    loss_bytes_per_logit: Annotated[float, Rule(low=6)] = 52.0  # both directions
    blocking_sends: bool = False  # compute waits for each message between stages
    blocking_sums: bool = False  # compute waits for the sums of its tensor group
    lockstep: Annotated[float, Rule(low=1)] | None = None  # left out: the slower alone


@dataclass(frozen=True)
class LabSpec:
    """How a lab (many devices made of one machine) holds a device of this kind to its file.

    A process in it gets `cpus` cores' worth of time, and memory for the first tier plus
    `overhead_bytes`: what an interpreter with torch takes before it holds any state.
    """

    cpus: Annotated[float, Rule(low=0.01)] = 1.0
    overhead_bytes: SizeBytes = 600_000_000


@dataclass(frozen=True)
class DeviceKind:
    """One kind of device: how fast it computes, what it holds, what starting an operator costs."""

    name: str
    tiers: tuple[Tier, ...]
    rates: tuple[Rate, ...]
    launch_s: TimeS
    launch_source: str
    memory_efficiency: Fraction
    memory_efficiency_source: str
    devices_per_chip: Annotated[int, Rule(low=1)] = 1
    kernels: KernelModel | None = None  # left out: one rate for products of every shape
    lab: LabSpec | None = None  # left out: a lab cannot stand in for it

    def __post_init__(self) -> None:
        if not self.tiers or not self.rates:
            missing = "tiers" if not self.tiers else "rates"
            raise SpecError(
                f"no {missing}", place=f"device {self.name}", fix=f"add [[device.{missing}]]"
            )

    @property
    def memory(self) -> Tier:
        """The accelerator memory, which the budget is about."""
        return self.tiers[0]

    @property
    def peak_flops(self) -> FrozenMap[float]:
        """Nominal peak FLOP/s by dtype."""
        return FrozenMap({rate.dtype: rate.peak_flops for rate in self.rates})

    def rate(self, dtype: str) -> Rate:
        """The rates of one dtype."""
        for rate in self.rates:
            if rate.dtype == dtype:
                return rate
        raise SpecError(
            f'device "{self.name}" has no rate for dtype "{dtype}"',
            place="dtype",
            fix=nearest(dtype, [rate.dtype for rate in self.rates]),
        )

    def flops_rate(self, dtype: str, operator: Operator = "gemm") -> float:
        """FLOP/s that the operator reaches; element-wise work is bound by memory instead."""
        rate = self.rate(dtype)
        if operator == "attention" and rate.attention_flops is not None:
            return rate.attention_flops
        return rate.gemm_flops

    def gemm_efficiency(self, dtype: str) -> float:
        """Reached GEMM rate as a fraction of the peak."""
        rate = self.rate(dtype)
        return rate.gemm_flops / rate.peak_flops

    @property
    def elementwise_bytes_per_s(self) -> float:
        """Bytes per second that a fused element-wise pass moves through the first tier."""
        return self.memory.bandwidth_bytes_per_s * self.memory_efficiency

    def __str__(self) -> str:
        best = max(self.rates, key=lambda rate: rate.peak_flops)
        return f"{self.name} ({best.dtype} {format_flops_rate(best.peak_flops)})"


@dataclass(frozen=True)
class Link:
    """A link: time = latency + bytes / bandwidth, per direction.

    `shared_by` "host": all devices of a host share one such link; "device": each has its own.
    `overhead_s` is LogP's o: compute time that the sender's cores spend driving one message.
    """

    latency_s: TimeS
    bandwidth_bytes_per_s: RateBytesPerS
    source: str
    shared_by: Literal["device", "host"] = "device"
    overhead_s: TimeS = 0.0
    overhead_source: str = ""
    collective_s: TimeS = 0.0  # what starting a collective costs, whatever its group


@dataclass(frozen=True)
class HostKind:
    """`count` equal hosts in one room; "any" is as many as a job asks for."""

    name: str
    device: str
    devices: Annotated[int, Rule(low=1)]
    count: Annotated[int, Rule(low=1)] | Literal["any"]
    room: str = "room"
    site: str = "site"
    links: FrozenMap[Link] = field(default_factory=FrozenMap[Link])  # in place of the cluster's


@dataclass(frozen=True)
class Device:
    """One device of a cluster: the `index`-th, and where it stands."""

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

    name: str
    source: str
    device: tuple[DeviceKind, ...]
    host: tuple[HostKind, ...]
    links: FrozenMap[Link]

    def __post_init__(self) -> None:
        place = f"cluster {self.name}"
        kinds = [kind.name for kind in self.device]
        for host in self.host:
            if host.device not in kinds:
                raise SpecError(
                    f'host "{host.name}" has the unknown device "{host.device}"',
                    place=place,
                    fix=nearest(host.device, kinds),
                )
        for level in (*self.links, *(level for host in self.host for level in host.links)):
            if level not in LEVELS:
                raise SpecError(f'unknown level "{level}"', place=place, fix=nearest(level, LEVELS))
        if not self.host:
            raise SpecError("no hosts", place=place, fix="add [[host]]")
        if any(host.count == "any" for host in self.host[:-1]):
            raise SpecError('only the last host may have count = "any"', place=place, fix="move it")

    @property
    def device_kinds(self) -> tuple[DeviceKind, ...]:
        """Every kind of device, in the order of the file."""
        return self.device

    def kind(self, name: str) -> DeviceKind:
        """The device kind of that name."""
        return next(kind for kind in self.device if kind.name == name)

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
                f"{count} devices asked for, {self.size} exist",
                place=f"cluster {self.name}",
                fix=f"use at most {self.size} devices",
            )
        found: list[Device] = []
        host_index = 0
        for host in self.host:
            kind = self.kind(host.device)
            left = host.count if host.count != "any" else count
            while left and len(found) < count:
                for slot in range(min(host.devices, count - len(found))):
                    chip = slot // kind.devices_per_chip
                    found.append(
                        Device(len(found), kind, host_index, chip, host.room, host.site, host)
                    )
                host_index += 1
                left -= 1
        return tuple(found)

    def level(self, a: Device, b: Device) -> Level:
        """The innermost level that the two devices share."""
        if a.host == b.host:
            return "chip" if a.chip == b.chip and a.kind.devices_per_chip > 1 else "host"
        if a.site != b.site:
            return "world"
        return "room" if a.room == b.room else "site"

    def link(self, a: Device, b: Device) -> Link:
        """The link that the two devices communicate over: of the two hosts' own, the slower."""
        level = self.level(a, b)
        if a.host_kind is b.host_kind:
            return self._link_of(a.host_kind, level)
        ends = (self._link_of(a.host_kind, level), self._link_of(b.host_kind, level))
        return min(ends, key=_speed)

    def own_link(self, device: Device, level: Level) -> Link:
        """The device's own link at that level, whatever the other end has."""
        return self._link_of(device.host_kind, level)

    def slowest_link(self, group: Sequence[Device]) -> Link:
        """The slowest link between neighbours of a ring through the group, in its order."""
        ring = [*group, group[0]]
        if len(group) < 2:
            raise SpecError("a group of one device has no link", place=f"cluster {self.name}")
        return min((self.link(a, b) for a, b in pairwise(ring)), key=_speed)

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
        for outwards in LEVELS[LEVELS.index(level) :]:
            for links in (host.links, self.links):
                if outwards in links:
                    return links[outwards]
        raise SpecError(
            f'no link at level "{level}" or outside it',
            place=f"cluster {self.name} [links]",
            fix=f"add [links.{level}]",
        )


def _speed(link: Link) -> tuple[float, float]:
    return link.bandwidth_bytes_per_s, -link.latency_s
