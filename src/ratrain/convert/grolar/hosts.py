"""Grolar's machines, GPUs and bandwidths as a cluster."""

from __future__ import annotations

from collections.abc import Mapping

from ratrain.convert.converted import (
    Model,
    placed,
)
from ratrain.convert.grolar.files import (
    SOURCE,
    USUAL,
    Hardware,
)
from ratrain.convert.kinds import Known, device_of, known_kind
from ratrain.convert.machines import Machine, cluster_of
from ratrain.describe.cluster import ClusterSpec, Link
from ratrain.describe.device import DeviceKind
from ratrain.describe.layer_profile import LayerProfile
from ratrain.describe.strict import FrozenMap
from ratrain.errors import SpecError
from ratrain.readers.place import Place

_LATENCY_S = 20e-6


def cluster_from(
    hardware: Hardware,
    place: Place,
    entries: Mapping[str, tuple[LayerProfile, ...]],
    likes: Mapping[str, str],
    model: Model,
    differs: list[str],
) -> ClusterSpec:
    _require_ranks(hardware, place)
    kinds: dict[str, DeviceKind] = {}
    assumed: list[str] = []
    for number, host in enumerate(hardware.machines):
        for slot, gpu in enumerate(host.gpus):
            here = place.at("machines", number, "gpus", slot)
            memory = gpu.memory_total_mib << 20
            if gpu.name not in kinds:
                known = known_kind(gpu.name, likes, USUAL, here.at("name"))
                kinds[gpu.name] = device_of(
                    gpu.name, known, (memory, place.file), entries.get(gpu.name, ()), model.spec
                )
                assumed.append(_assumed(gpu.name, known, gpu.name in entries))
            elif kinds[gpu.name].memory.capacity_bytes != memory:
                raise SpecError(
                    f"{gpu.name} has {gpu.memory_total_mib} MiB here and "
                    f"{kinds[gpu.name].memory.capacity_bytes >> 20} MiB before",
                    place=str(here.at("memory_total_mib")),
                    fix="give GPUs of unequal memory unequal names",
                )
    differs += assumed
    machines = _machines(hardware, place, differs)
    differs.append(
        "Grolar's latencies are not used: they are the whole time of a 40 MB message, in seconds; "
        "every link is assumed to have 20 us"
    )
    with placed(place):
        return cluster_of("converted", f"{SOURCE} {place.file}", tuple(kinds.values()), machines)


def _assumed(kind: str, known: Known, measured: bool) -> str:
    if measured:
        return (
            f"{kind}: layers are as measured in Grolar's files; embedding, head, updates and "
            f"memory bandwidth are not in them and follow from {known.name}"
        )
    return f"{kind}: its layer times are not given, so all times follow from {known.name}"


def _require_ranks(hardware: Hardware, place: Place) -> None:
    """Refuses GPUs whose global ranks are not 0, 1, 2, ... in the machines' order."""
    expected = 0
    for number, host in enumerate(hardware.machines):
        here = place.at("machines", number)
        if host.machine_index != number:
            raise SpecError(
                f"machine {number} has the number {host.machine_index}",
                place=str(here.at("machine_index")),
                fix=f"list machines by their number, or write {number}",
            )
        for slot, gpu in enumerate(host.gpus):
            if gpu.global_rank != expected:
                raise SpecError(
                    f"rank {gpu.global_rank} where rank {expected} is expected",
                    place=str(here.at("gpus", slot, "global_rank")),
                    fix="list GPUs by rank, each rank once",
                )
            expected += 1
        if not host.gpus:
            raise SpecError(
                "a machine without GPUs", place=str(here.at("gpus")), fix="leave the machine out"
            )
    if not expected:
        raise SpecError("no machines", place=str(place.at("machines")), fix="list a machine")
    if expected > 1 << 18:
        raise SpecError(
            f"{expected:,} GPUs", place=str(place.at("machines")), fix=f"list at most {1 << 18:,}"
        )


def _machines(hardware: Hardware, place: Place, differs: list[str]) -> list[Machine]:
    """The machines with their links. A cluster has one speed for each machine, of which two
    machines use the lower: the fastest that a machine has to any other says all links where that
    is so, else its slowest, which flatters none."""
    count = len(hardware.machines)
    rates = _rates(hardware, place)
    fastest = [
        max((rates[i, j] for j in range(count) if j != i), default=0.0) for i in range(count)
    ]
    slowest = [
        min((rates[i, j] for j in range(count) if j != i), default=0.0) for i in range(count)
    ]
    exact = all(min(fastest[i], fastest[j]) == rate for (i, j), rate in rates.items())
    if not exact:
        low, high = min(rates.values()), max(rates.values())
        differs.append(
            f"links between machines ({low:g} to {high:g} GB/s by pair) become one speed for each "
            "machine, that of its slowest link"
        )
    between = fastest if exact else slowest
    inside = hardware.bandwidth.intranode_bandwidth
    machines: list[Machine] = []
    for number, host in enumerate(hardware.machines):
        inside_this = inside.get(str(number))
        if inside_this is None and len(host.gpus) > 1:
            raise SpecError(
                f"no bandwidth inside machine {number}",
                place=str(place.at("bandwidth", "intranode_bandwidth")),
                fix=f'add "{number}": GB/s',
            )
        machines.append(
            Machine(
                host.machine,
                tuple(gpu.name for gpu in host.gpus),
                _link(inside_this or between[number] or 1.0, place.file),
                _link(between[number], place.file) if count > 1 else None,
            )
        )
    return machines


def _rates(hardware: Hardware, place: Place) -> dict[tuple[int, int], float]:
    """GB/s between every two machines; where both directions are given, the slower."""
    given = hardware.bandwidth.internode_bandwidth
    rates: dict[tuple[int, int], float] = {}
    count = len(hardware.machines)
    if count > 2000:
        raise SpecError(
            f"{count:,} machines", place=str(place.at("machines")), fix="list at most 2,000"
        )
    for i in range(count):
        for j in range(count):
            if i == j:
                continue
            known = [
                rate
                for a, b in ((i, j), (j, i))
                if (rate := given.get(str(a), FrozenMap[float]()).get(str(b))) is not None
            ]
            if not known:
                raise SpecError(
                    f"no bandwidth between machines {i} and {j}",
                    place=str(place.at("bandwidth", "internode_bandwidth")),
                    fix=f'add "{i}": {{"{j}": GB/s}}',
                )
            rates[i, j] = min(known)
    return rates


def _link(gigabytes_per_s: float, file: str) -> Link:
    return Link(
        _LATENCY_S,
        gigabytes_per_s * 1e9,
        f"bandwidth: {SOURCE} {file}; latency: assumed",
    )
