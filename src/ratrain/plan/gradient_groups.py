"""The ranks that reduce a stage's gradients together, and what their collectives take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from ratrain.cost.algorithms import ALGORITHMS, AUTO, Group, half
from ratrain.cost.collectives import ring_half
from ratrain.describe.cluster import ClusterSpec, Device, Link
from ratrain.describe.job import JobSpec
from ratrain.describe.strict import nearest
from ratrain.errors import SpecError
from ratrain.plan.geometry import speed
from ratrain.plan.placement import Placement
from ratrain.plan.unit_place import Half


def data_half(job: JobSpec, placement: Placement, pipeline: int) -> Half:
    """The half of a collective over the replicas of a stage, by the job's algorithm."""
    link, data, name = placement.data_link(pipeline), placement.layout.data, job.schedule.collective
    if name == "ring":
        return lambda size_bytes: ring_half(size_bytes, data, link)
    group = data_group(placement, pipeline)
    return lambda size_bytes: half(name, size_bytes, group)


def half_among(
    name: str, cluster: ClusterSpec, members: Sequence[Device], link: Link, used: Sequence[Device]
) -> Half:
    """The same over any devices, by the algorithm of a name; `used`: all devices of the job."""
    if name == "ring":
        return lambda size_bytes: ring_half(size_bytes, len(members), link)
    group = group_among(cluster, members, link, used)
    return lambda size_bytes: half(name, size_bytes, group)


def data_group(placement: Placement, pipeline: int) -> Group:
    """The replicas' devices for a stage."""
    members = [placement.device(pipeline, data) for data in range(placement.layout.data)]
    slowest = placement.data_link(pipeline)
    return group_among(placement.cluster, members, slowest, placement.devices)


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


def require_collective(job: JobSpec) -> None:
    """Refuses a name that no algorithm has."""
    names = (AUTO, *ALGORITHMS)
    if job.schedule.collective not in names:
        raise SpecError(
            f"unknown collective {job.schedule.collective!r}",
            place=f"{job.path or 'job'} [schedule] collective",
            fix=nearest(job.schedule.collective, names),
        )
