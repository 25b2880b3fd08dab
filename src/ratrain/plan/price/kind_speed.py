"""How fast each kind of device works, and the least that a step takes on many of them together.

A sequence's forward and backward through one layer takes a kind of device at least this many
device-seconds, in whatever micro-batch and tensor degree it works best. All layers of all sequences
must be computed somewhere, so no plan of these devices is faster than all of them at work all of
the time (`least_step_s`): messages, sums, recovery, updates and waits come on top.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from ratrain.cost.measured import Unmeasured
from ratrain.describe.cluster import Device
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import Batch, JobSpec, LayoutSpec
from ratrain.plan.layout.enumerate import kinds_of_block
from ratrain.plan.layout.times import times_in_layout

LARGEST_MICRO_BATCH = 64
"""Up to here every micro-batch is looked at."""


@dataclass(frozen=True)
class KindSpeed:
    """Device-seconds that one sequence takes at least, forward and backward, on a kind."""

    embedding_s: float
    layer_s: float
    head_s: float


@lru_cache(maxsize=64)
def kind_speed(job: JobSpec, kind: DeviceKind, largest: int = 1) -> KindSpeed:
    """The `KindSpeed` of a kind, in tensor degrees up to `largest`. Raises `Unmeasured` where its
    layers were measured, but in no degree and micro-batch that is tried."""
    least: list[list[float]] = [[], [], []]
    missing: Unmeasured | None = None
    for tensor in _degrees(job, largest):
        for divided in (False, True) if tensor > 1 and job.backend.divides_sequences else (False,):
            layout = LayoutSpec(1, 1, tensor, sequence_parallel=divided)
            for size in range(1, min(job.batch.sequences, LARGEST_MICRO_BATCH) + 1):
                sized = replace(job, batch=Batch(job.batch.sequences, size), layout=layout)
                try:
                    times = [
                        times_in_layout(sized, layout, block, kind, None)
                        for block in kinds_of_block(job)
                    ]
                except Unmeasured as error:
                    missing = error
                    continue
                for column, time in zip(least, times, strict=True):
                    column.append(tensor * (time.forward_s + time.backward_s) / size)
    if missing is not None and not least[1]:
        raise missing
    embedding_s, layer_s, head_s = map(min, least)
    return KindSpeed(embedding_s, layer_s, head_s)


def _degrees(job: JobSpec, largest: int) -> list[int]:
    heads = job.model.spec.kv_heads
    return [t for t in range(1, largest + 1) if heads % t == 0 and job.model.spec.heads % t == 0]


def least_step_s(job: JobSpec, devices: Collection[Device]) -> float:
    """Seconds that a step takes at least, whatever the plan of these devices is, where a tensor
    group stays in a host and a micro-batch has up to `LARGEST_MICRO_BATCH` sequences. A kind's
    speed at layers weighs its devices; embedding and head count as the fewest layers that they are
    worth on any kind."""
    counts = Counter(device.kind for device in devices)
    largest = max(Counter(device.host for device in devices).values())
    speeds = {kind: kind_speed(job, kind, largest) for kind in counts}
    rate = sum(count / speeds[kind].layer_s for kind, count in counts.items())
    ends = sum(
        min(getattr(speed, name) / speed.layer_s for speed in speeds.values())
        for name in ("embedding_s", "head_s")
    )
    return job.batch.sequences * (job.model.spec.layers + ends) / rate


def slowest_first(job: JobSpec, kinds: Iterable[DeviceKind]) -> list[DeviceKind]:
    """Kinds of device by the time of a layer, the slowest first."""
    return sorted(dict.fromkeys(kinds), key=lambda kind: -kind_speed(job, kind).layer_s)


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
