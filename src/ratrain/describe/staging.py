"""Links between ranks on devices with memory of their own, where what is sent goes through the
host's: it is copied there, sent, and copied back, one after the other.

So a byte takes the link's time and that of two copies, at the rate of the device's tier "host". Of
a device that describes no such tier nothing is known, and nothing is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ratrain.describe.cluster import LEVELS, ClusterSpec, HostKind, Link, SizePoint
from ratrain.describe.device import DeviceKind
from ratrain.describe.runs_on import AS_CLUSTER, RUNS_ON, is_gpu
from ratrain.describe.strict import FrozenMap
from ratrain.describe.train import DIRECT, SOCKETS, TrainSpec
from ratrain.describe.units import format_bytes_rate

HOST = "host"
"""The tier through which it goes."""


@dataclass(frozen=True)
class StagedLink(Link):
    """A link as ranks see it that stage; `own`: as it is."""

    own: Link | None = None
    copied_bytes_per_s: float = 0.0  # to host memory, and from there


def stages(kind: DeviceKind, train: TrainSpec) -> bool:
    """Whether ranks on a kind of device stage what they send."""
    computes_on = kind.runs_on if train.device == AS_CLUSTER else train.device
    return train.network == SOCKETS and not RUNS_ON[computes_on].in_host_memory


def as_sent(cluster: ClusterSpec, train: TrainSpec) -> ClusterSpec:
    """The cluster with the links that ranks of a job see; the same one where it has them."""
    names = [kind.name for kind in cluster.device if stages(kind, train)]
    rates = {name: _copies_at(cluster.kind(name)) for name in names}
    if not any(rates.values()) and not any(map(_rate_of, cluster.host)):
        return cluster
    made: dict[tuple[int, float], Link] = {}
    hosts = tuple(_seen(cluster, host, rates.get(host.device, 0.0), made) for host in cluster.host)
    same = all(one is other for one, other in zip(hosts, cluster.host, strict=True))
    return cluster if same else replace(cluster, host=hosts)


def network_words(cluster: ClusterSpec, kinds: Sequence[DeviceKind], train: TrainSpec) -> list[str]:
    """What carries tensors between ranks on these kinds of device, a line each where that is not
    plain: which of them stage, and what a byte of their links takes then."""
    if train.network == DIRECT:
        return [f"network direct, by {_library(kinds, train)}: a rank sends one thing at a time"]
    return [_words(kind, cluster) for kind in kinds if stages(kind, train)]


def _library(kinds: Sequence[DeviceKind], train: TrainSpec) -> str:
    named = {kind.runs_on for kind in kinds} if train.device == AS_CLUSTER else {train.device}
    return "NCCL" if all(map(is_gpu, named)) else "gloo"


def _words(kind: DeviceKind, cluster: ClusterSpec) -> str:
    said = f"{kind.name} stages what it sends in host memory"
    rate = _copies_at(cluster.kind(kind.name))
    if not rate:
        return f'{said}; what that takes is left out: its [[device]] has no tier "{HOST}"'
    levels: dict[str, str] = {}
    for host in cluster.host:
        by_level = sorted(host.links.items(), key=lambda each: each[0] == LEVELS[0])  # chips last
        for level, link in by_level if host.device == kind.name else ():
            if isinstance(link, StagedLink) and link.own is not None:
                own, left = link.own.bandwidth_bytes_per_s, link.bandwidth_bytes_per_s
                words = f"{format_bytes_rate(own)} becomes {format_bytes_rate(left)}"
                levels.setdefault(words, level)  # the innermost of those that have one link
    links = ", ".join(f"{level} {words}" for words, level in levels.items())
    return f"{said}, at {format_bytes_rate(rate)} each way: {links}"


def _copies_at(kind: DeviceKind) -> float:
    return next((t.bandwidth_bytes_per_s for t in kind.tiers[1:] if t.name == HOST), 0.0)


def _rate_of(host: HostKind) -> float:
    """At which a host's links are staged; 0: they are not."""
    links = (*host.links.values(), *host.to.values())
    return next((each.copied_bytes_per_s for each in links if isinstance(each, StagedLink)), 0.0)


def _seen(
    cluster: ClusterSpec, host: HostKind, rate: float, made: dict[tuple[int, float], Link]
) -> HostKind:
    """A host with the links that it has at a rate; with its own at none."""
    if _rate_of(host) == rate:
        return host

    def at(link: Link) -> Link:
        own = link.own if isinstance(link, StagedLink) and link.own is not None else link
        return made.setdefault((id(own), rate), _staged(own, rate)) if rate else own

    within = "" if cluster.kind(host.device).chip is None else LEVELS[0]  # has its own network
    known = {each: cluster.described_link(host, each) for each in LEVELS if each != within}
    links = {level: at(link) for level, link in known.items() if link is not None}
    others = {name: at(link) for name, link in host.to.items()}
    return replace(host, links=FrozenMap(links), to=FrozenMap(others))


def _staged(link: Link, rate: float) -> StagedLink:
    def with_copies(bytes_per_s: float) -> float:
        return 1 / (1 / bytes_per_s + 2 / rate)

    points = (
        SizePoint(point.size_bytes, with_copies(point.bandwidth_bytes_per_s))
        for point in link.points
    )
    return StagedLink(
        link.latency_s,
        with_copies(link.bandwidth_bytes_per_s),
        source=link.source,
        shared_by=link.shared_by,
        overhead_s=link.overhead_s,
        overhead_source=link.overhead_source,
        collective_s=link.collective_s,
        by_size=tuple(points),
        own=link,
        copied_bytes_per_s=rate,
    )
