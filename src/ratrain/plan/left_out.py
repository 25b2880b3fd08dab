"""Which devices of unequal kinds a plan may leave idle: whole hosts, the slowest first.

A slow device holds up all that wait for it, and a far one makes every reduction cross its line, so
fewer devices can be faster. Where all devices are of one kind none is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from ratrain.cost.measured import Unmeasured
from ratrain.describe.cluster import Device
from ratrain.describe.job import JobSpec
from ratrain.plan.kind_speed import slowest_first

SMALL = 16
"""Up to this many devices every number of slow hosts is tried; above, one, half of them, or all."""
PARTS = 12
"""Parts of a cluster that are tried at most, the whole one not counted."""


def parts_of_cluster(job: JobSpec) -> Iterator[tuple[Device, ...]]:
    """The job's devices, then some of them: those that are left after the slowest hosts, each kind
    by itself, and all but one kind."""
    members = job.cluster.members()
    yield members
    seen = {members}
    for part in _parts(job, members):
        if part and part not in seen and len(seen) <= PARTS:
            seen.add(part)
            yield part


def _parts(job: JobSpec, members: tuple[Device, ...]) -> Iterator[tuple[Device, ...]]:
    try:
        kinds = slowest_first(job, (device.kind for device in members))
    except Unmeasured:  # the search says what is missing
        return
    for number, kind in enumerate(kinds[:-1]):
        kept = tuple(d for d in members if d.kind in kinds[number:])
        hosts = list(dict.fromkeys(d.host for d in kept if d.kind == kind))
        for count in _counts(len(hosts), small=len(members) <= SMALL):
            gone = set(hosts[len(hosts) - count :])
            yield tuple(device for device in kept if device.host not in gone)
    if len(kinds) > 1:
        for kind in kinds:
            yield tuple(device for device in members if device.kind == kind)
            yield tuple(device for device in members if device.kind != kind)


def _counts(hosts: int, *, small: bool) -> list[int]:
    """How many hosts of a kind are left out, by turns; all of them last."""
    if small:
        return list(range(1, hosts + 1))
    return sorted({1, hosts // 2, hosts} - {0})
