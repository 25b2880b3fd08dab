"""Sailor's nodes as a cluster: as many as a plan uses, with measured or known links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratrain.convert.converted import (
    Model,
    list_of,
    object_of,
    placed,
)
from ratrain.convert.kinds import Known, device_of, known_kind
from ratrain.convert.machines import Machine, cluster_of
from ratrain.convert.sailor.files import (
    SOURCE,
    USUAL,
    Files,
    Group,
    NodeType,
)
from ratrain.describe.cluster import ClusterSpec, Level, Link
from ratrain.describe.device import DeviceKind
from ratrain.describe.layer_profile import LayerProfile
from ratrain.describe.strict import FrozenMap, nearest
from ratrain.errors import SpecError
from ratrain.readers.files import shown
from ratrain.readers.json import read_json
from ratrain.readers.place import Place

_LATENCY_S: dict[Level, float] = {"host": 5e-6, "room": 20e-6, "world": 20e-6}


@dataclass(frozen=True)
class Seats:
    """The nodes that are described, by (zone, GPU) in their order, and where each tensor group of
    each stage begins among their GPUs."""

    nodes: dict[tuple[str, str], int]
    first: tuple[tuple[int, ...], ...]
    devices: int


def seats_of(
    groups: list[list[Group]],
    types: Mapping[str, NodeType],
    entries: Mapping[str, tuple[LayerProfile, ...]],
) -> Seats:
    """Nodes for the plan's groups, stage by stage, each group on one node where it fits there;
    without a plan one node of every GPU that was profiled, or of every one."""
    if not groups:
        names = [name for name in types if name in entries] or list(types)
        nodes = {("zone", name): 1 for name in names}
        return Seats(nodes, (), sum(types[name].gpus_per_node for name in names))
    used: dict[tuple[str, str], int] = {}
    places: list[list[tuple[tuple[str, str], int]]] = []
    for stage in groups:
        row: list[tuple[tuple[str, str], int]] = []
        for group in stage:
            key, per_node = (group.zone, group.gpu), types[group.gpu].gpus_per_node
            start = used.get(key, 0)
            left = -start % per_node
            if left < group.tensor and left:
                start += left
            used[key] = start + group.tensor
            row.append((key, start))
        places.append(row)
    nodes = {key: -(-count // types[key[1]].gpus_per_node) for key, count in used.items()}
    begins: dict[tuple[str, str], int] = {}
    devices = 0
    for key, count in nodes.items():
        begins[key] = devices
        devices += count * types[key[1]].gpus_per_node
    first = tuple(tuple(begins[key] + start for key, start in row) for row in places)
    return Seats(nodes, first, devices)


def cluster_from(
    files: Files,
    seats: Seats,
    types: Mapping[str, NodeType],
    place: Place,
    entries: Mapping[str, tuple[LayerProfile, ...]],
    likes: Mapping[str, str],
    model: Model,
    differs: list[str],
) -> ClusterSpec:
    kinds: dict[str, DeviceKind] = {}
    known: dict[str, Known] = {}
    for _, gpu in seats.nodes:
        if gpu in kinds:
            continue
        here = place.at(gpu)
        known[gpu] = known_kind(gpu, likes, USUAL, here)
        memory = types[gpu].mem_per_gpu
        kinds[gpu] = device_of(
            gpu, known[gpu], (memory, place.file), entries.get(gpu, ()), model.spec
        )
        differs.append(
            f"{gpu}: times are as measured in Sailor's files; memory bandwidth follows from "
            f"{known[gpu].name}"
            if gpu in entries
            else f"{gpu}: its profile is not given, so all times follow from {known[gpu].name}"
        )
    machines: list[Machine] = []
    for (zone, gpu), count in seats.nodes.items():
        node = Machine(
            f"{gpu}-{zone}",
            (gpu,) * types[gpu].gpus_per_node,
            _inside(files, gpu, types[gpu].gpus_per_node, known[gpu]),
            _between(files, gpu, zone, types, known[gpu]),
            _far(files, gpu, zone, seats, types),
            zone,
            _to_other_kinds(files, gpu, zone, seats, types, differs),
        )
        machines += [node] * count
    if files.between is not None:
        differs.append(
            "bandwidth between nodes is that of all GPUs of a node together, shared by the node; "
            "Sailor looks it up by the number of GPUs that send"
        )
    with placed(place):
        return cluster_of("converted", f"{SOURCE} {place.file}", tuple(kinds.values()), machines)


def _inside(files: Files, gpu: str, per_node: int, known: Known) -> Link:
    """The link between GPUs of one node."""
    if files.inside is None:
        return _known_link(known, "host", gpu, "--inside")
    value, place = read_json(files.inside)
    if per_node == 1:
        return _known_link(known, "room", gpu, "--inside")
    return _fit(value, place, (gpu, str(per_node)), "host", shared=False)


def _between(
    files: Files, gpu: str, zone: str, types: Mapping[str, NodeType], known: Known
) -> Link:
    """The link between nodes of one zone, of all GPUs of a node."""
    if files.between is None:
        return _known_link(known, "room", gpu, "--between")
    value, place = read_json(files.between)
    count = str(types[gpu].gpus_per_node)
    return _fit(value, place, (zone, gpu, count, zone, gpu, count), "room", shared=True)


def _far(
    files: Files, gpu: str, zone: str, seats: Seats, types: Mapping[str, NodeType]
) -> Link | None:
    """The slowest link to a node of another zone; None where there is no other zone."""
    others = [(z, other) for z, other in seats.nodes if z != zone]
    if not others:
        return None
    if files.between is None:
        raise SpecError(
            f"the plan has nodes in {zone} and {others[0][0]}, and no link between them is known",
            place="--between",
            fix="add --between multizone_bandwidths_het.json",
        )
    links = [_pair(files.between, (zone, gpu), other, types, "world") for other in others]
    return min(links, key=lambda link: link.bandwidth_bytes_per_s)


def _pair(
    between: Path,
    here: tuple[str, str],
    there: tuple[str, str],
    types: Mapping[str, NodeType],
    level: Level,
) -> Link:
    """The link from nodes of a zone and GPU to those of another, of all GPUs of a node."""
    value, place = read_json(between)
    keys = [
        key for zone, gpu in (here, there) for key in (zone, gpu, str(types[gpu].gpus_per_node))
    ]
    return _fit(value, place, tuple(keys), level, shared=True)


def _to_other_kinds(
    files: Files,
    gpu: str,
    zone: str,
    seats: Seats,
    types: Mapping[str, NodeType],
    differs: list[str],
) -> FrozenMap[Link]:
    """The links to the plan's other nodes, by their names. One that the file lacks is as fast as
    the slower of the links among nodes of each sort, and the output says so."""
    if files.between is None:
        return FrozenMap[Link]()
    links: dict[str, Link] = {}
    for other_zone, other in seats.nodes:
        if (other_zone, other) == (zone, gpu):
            continue
        level: Level = "room" if other_zone == zone else "world"
        if level == "room" and not _is_known(files.between, (zone, gpu), other, types):
            differs.append(
                f"--between has no bandwidth from {gpu} to {other} in {zone}: the slower of their "
                "links to their own kind is taken"
            )
            continue
        links[f"{other}-{other_zone}"] = _pair(
            files.between, (zone, gpu), (other_zone, other), types, level
        )
    return FrozenMap(links)


def _is_known(
    between: Path, here: tuple[str, str], other: str, types: Mapping[str, NodeType]
) -> bool:
    """Whether a file has anything about the links from a zone's nodes to its nodes of another
    GPU."""
    value, place = read_json(between)
    zone, gpu = here
    for key in (zone, gpu, str(types[gpu].gpus_per_node), zone, other):
        table = object_of(value, place)
        if key not in table:
            return False
        value, place = table[key], place.at(key)
    return True


def _known_link(known: Known, level: Level, gpu: str, option: str) -> Link:
    for outwards in (level, "room", "site", "world"):
        if outwards in known.links:
            return known.links[outwards]
    raise SpecError(
        f"the links of {gpu} are not known: {known.name} has none",
        place=option,
        fix=f"give its network file as {option}, or --like {gpu}=CLUSTER, a cluster with links",
    )


def _fit(value: Any, place: Place, keys: tuple[str, ...], level: Level, *, shared: bool) -> Link:
    """The link of a fit [[a, b, c], bytes/s], found by these keys."""
    for key in keys:
        table = object_of(value, place)
        if key not in table:
            raise SpecError(
                f"no bandwidth of {shown(key)}", place=str(place), fix=nearest(key, list(table))
            )
        value, place = table[key], place.at(key)
    pair = list_of(value)
    numbers = [*list_of(pair[0]), pair[1]] if len(pair) == 2 else []
    if len(numbers) != 4 or any(
        isinstance(number, bool) or not isinstance(number, int | float) or abs(number) > 1e18
        for number in numbers
    ):
        raise SpecError(
            f"{shown(value, 60)} is not a fit of bandwidth",
            place=str(place),
            fix="write [[a, b, c], bytes per second]",
        )
    a, b, c, most = map(float, numbers)
    if not 1 <= most <= 1e18 or max(map(abs, (a, b, c))) > 1e6:
        raise SpecError(
            f"a bandwidth of {most:g} bytes/s, a fit of {a:g}, {b:g}, {c:g}",
            place=str(place),
            fix="write [[a, b, c], bytes per second], a, b and c in GB/s",
        )
    link = Link(
        _LATENCY_S[level],
        most,
        f"bandwidth: {SOURCE} {place.file}; latency: assumed",
        shared_by="host" if shared else "device",
        log_quadratic=(a, b, c),
    )
    with placed(place):
        assert link.points
    return link
