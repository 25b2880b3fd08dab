"""A plan on the same devices of a cluster that differs in nothing that its program depends on."""

from __future__ import annotations

from dataclasses import replace

from ratrain.describe.cluster import ClusterSpec, Device
from ratrain.describe.job import ClusterChoice
from ratrain.plan.layout.links import Groups, Seats
from ratrain.plan.layout.placement import Placement
from ratrain.plan.layout.plan import Plan


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
