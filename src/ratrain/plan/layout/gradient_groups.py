"""The ranks that reduce a stage's gradients together, and what their collectives take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ratrain.cost.algorithms import ALGORITHMS, AUTO, Group, Hosts, fastest, half
from ratrain.cost.collectives import Transfer, reduction_loss
from ratrain.cost.exchanges import order_words
from ratrain.cost.precision import wire_bytes
from ratrain.describe.cluster import ClusterSpec, Device, Link
from ratrain.describe.job import JobSpec
from ratrain.describe.strict import nearest
from ratrain.errors import SpecError
from ratrain.plan.layout.geometry import speed


@dataclass(frozen=True)
class NamedHalf:
    """The half of a collective over a group, by the algorithm of a name or the fastest one."""

    name: str
    group: Group

    def __call__(self, size_bytes: float, widened: float = 1.0, /) -> Transfer:
        return half(self.name, size_bytes, self.group, widened)

    def chosen(self, size_bytes: float, widened: float) -> str:
        """The algorithm's name for a size."""
        return fastest(size_bytes, self.group, widened) if self.name == AUTO else self.name


def half_among(
    name: str, cluster: ClusterSpec, members: Sequence[Device], link: Link, used: Sequence[Device]
) -> NamedHalf:
    """The half of a collective over devices, by the algorithm of a name; `used`: all of the job."""
    return NamedHalf(name, group_among(cluster, members, link, used))


def group_among(
    cluster: ClusterSpec, members: Sequence[Device], slowest: Link, used: Sequence[Device]
) -> Group:
    """Devices as a group. Of the links between neighbours in their ring, the slowest inside a host
    and the slowest between two."""
    hosts = tuple(device.host for device in members)
    links = _links(cluster, members)
    across = min(links["across"] or links["inside"] or [slowest], key=speed)
    on_host = Counter(device.host for device in used)
    return Group(
        hosts,
        slowest,
        across,
        min(links["inside"] or [across], key=speed),
        max(on_host[host] / count for host, count in Counter(hosts).items()),
        max(reduction_loss(kind) for kind in {id(d.kind): d.kind for d in members}.values()),
    )


def _links(cluster: ClusterSpec, members: Sequence[Device]) -> dict[str, list[Link]]:
    """The links between neighbours of a ring, each once."""
    links: dict[str, list[Link]] = {"inside": [], "across": []}
    for device, following in pairwise([*members, members[0]]):
        link = cluster.link(device, following)
        known = links["inside" if device.host == following.host else "across"]
        if link not in known:
            known.append(link)
    return links


def require_collective(name: str | None, file: str = "") -> None:
    """Refuses a name that no algorithm has; None is the backend's own."""
    names = (AUTO, *ALGORITHMS)
    if name is not None and name not in names:
        raise SpecError(
            f"unknown collective {name!r}",
            place=f"{file} [schedule] collective".strip(),
            fix=nearest(name, names),
        )


def collective_words(job: JobSpec, groups: Iterable[Hosts]) -> list[str]:
    """How replicas reduce, and in which order they are added on these groups of hosts, as a line
    of a headline; none where the job leaves it to its backend. Groups that are left out are not
    spoken of."""
    name = job.collective
    if name == job.backend.collective:
        return []
    if name == AUTO:
        return ["collective of replicas: the fastest for each unit"]
    order = order_words((name, hosts) for hosts in groups if len(hosts) > 1)
    return [f"collective of replicas: {name}" + (f", added in the order {order}" if order else "")]


def widened(job: JobSpec) -> float:
    """How many times as long an element of a sum of gradients is on its way as one of a rank's
    own."""
    if not job.backend.widens_sums:
        return 1.0
    return 4 / wire_bytes(job.schedule.gradients_travel_in)
