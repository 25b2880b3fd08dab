"""A job's cluster changed: cut down to some kinds of device, with more hosts of a kind, or another
one in which nothing differs that a plan's program depends on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby

from ratrain.describe.cluster import ClusterSpec, Device, HostKind
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import ClusterChoice, JobSpec
from ratrain.plan.layout.links import Groups, Seats
from ratrain.plan.layout.placement import Placement
from ratrain.plan.layout.plan import Plan

Host = tuple[HostKind, int]
"""A host, and how many of its devices a job uses."""


def kinds_of(job: JobSpec) -> tuple[DeviceKind, ...]:
    """The kinds of the job's devices, in the cluster's order."""
    return tuple({device.kind.name: device.kind for device in job.cluster.members()}.values())


def devices_of_kind(job: JobSpec, kind: DeviceKind) -> int:
    """How many of the job's devices are of a kind."""
    return sum(device.kind.name == kind.name for device in job.cluster.members())


def only_kinds(job: JobSpec, kinds: Collection[DeviceKind], devices: int | None = None) -> JobSpec:
    """The job on its devices of some kinds, or on the first `devices` of them; without a layout."""
    names = {kind.name for kind in kinds}
    hosts = [(host, used) for host, used in _hosts(job) if host.device in names]
    return _on(job, hosts, devices)


def with_more_hosts(job: JobSpec, kind: DeviceKind, count: int) -> tuple[JobSpec, int]:
    """The job with more hosts like the fullest of a kind, after the last of that kind, and how
    many devices that adds; without a layout."""
    hosts = _hosts(job)
    of_kind = [place for place, (host, _) in enumerate(hosts) if host.device == kind.name]
    added = max((hosts[place] for place in of_kind), key=lambda host: host[1])
    behind = of_kind[-1] + 1
    return _on(job, [*hosts[:behind], *[added] * count, *hosts[behind:]]), count * added[1]


def _hosts(job: JobSpec) -> list[Host]:
    """The hosts of the job's devices, in order."""
    alike = groupby(job.cluster.members(), key=lambda device: device.host)
    hosts = [list(devices) for _, devices in alike]
    return [(devices[0].host_kind, len(devices)) for devices in hosts]


def _on(job: JobSpec, hosts: Sequence[Host], devices: int | None = None) -> JobSpec:
    """The job on these hosts and no others."""
    spec = _cluster_of(job.cluster.spec, hosts)
    count = sum(used for _, used in hosts)
    cluster = ClusterChoice(spec, count if devices is None else devices)
    return replace(job, cluster=cluster, layout=None)


def _cluster_of(spec: ClusterSpec, hosts: Sequence[Host]) -> ClusterSpec:
    entries = tuple(
        replace(host, devices=used, count=len(list(alike)))
        for (host, used), alike in groupby(hosts)
    )
    names = {entry.device for entry in entries}
    kinds = tuple(kind for kind in spec.device if kind.name in names)
    return replace(spec, device=kinds, host=entries)


def on_cluster(plan: Plan, spec: ClusterSpec) -> Plan:
    """The plan on the devices of the same numbers."""
    count = plan.job.cluster.devices
    devices = spec.devices(count)

    def there(device: Device) -> Device:
        return devices[device.index]

    def moved(groups: Groups) -> Groups:
        return tuple(tuple(map(there, group)) for group in groups)

    placed = plan.placed
    if placed is not None:
        placed = Placement(spec, placed.layout, tuple(map(there, placed.devices)), placed.by_site)
    replicas = tuple(
        replace(
            replica,
            seats=Seats(tuple(map(moved, replica.seats.groups)), replica.seats.members),
        )
        for replica in plan.replicas
    )
    job = replace(plan.job, cluster=ClusterChoice(spec, count))
    return replace(plan, job=job, placed=placed, replicas=replicas)
