"""Metis's hosts as a cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ratrain.convert.converted import (
    Model,
    object_of,
    placed,
)
from ratrain.convert.kinds import device_of, known_kind
from ratrain.convert.machines import Machine, cluster_of
from ratrain.convert.metis.files import (
    BYTES_FROM,
    SOURCE,
    UNIT_BYTES_PER_S,
    USUAL,
    Files,
    HostType,
    Node,
    Ranked,
)
from ratrain.describe.cluster import ClusterSpec, Link
from ratrain.describe.device import DeviceKind
from ratrain.describe.layer_profile import LayerProfile
from ratrain.describe.strict import load
from ratrain.errors import SpecError
from ratrain.readers.files import read_text, shown
from ratrain.readers.json import read_json_table
from ratrain.readers.limits import SMALL_BYTES
from ratrain.readers.place import Place

_LATENCY_S = 20e-6
_HOST = re.compile(r"(\S{1,255})\s+(?:slots=)?(\d{1,6})", re.ASCII)


def nodes_of(files: Files) -> list[Node]:
    """The hosts in the host file's order."""
    table, place = read_json_table(files.cluster)
    about = {
        name: load(HostType, object_of(value, place.at(name)), place.at(name), strict=False)
        for name, value in table.items()
    }
    nodes: list[Node] = []
    text = read_text(files.hosts, SMALL_BYTES)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        here = f"{files.hosts}:{number}"
        match = _HOST.fullmatch(line.strip())
        if match is None or not 0 < int(match[2]) <= 1024:
            raise SpecError(
                f"{shown(line.strip())} is not a host with its GPUs",
                place=here,
                fix="write it like 10.0.0.1 slots=8",
            )
        if match[1] not in about:
            raise SpecError(
                f"the host {shown(match[1])} is not in {files.cluster}",
                place=here,
                fix=f"add it there, with its instance_type, memory and bandwidths; it has "
                f"{', '.join(list(about)[:8]) or 'none'}",
            )
        nodes.append(Node(match[1], int(match[2]), about[match[1]]))
    if not nodes:
        raise SpecError("no hosts", place=str(files.hosts), fix="write 10.0.0.1 slots=8")
    return nodes


def in_sequence(nodes: list[Node], ranked: Ranked, place: Place) -> list[Node]:
    """Hosts as the plan numbers their GPUs: by kind, in the order of its node sequence."""
    order = {name: number for number, name in enumerate(ranked.node_sequence)}
    for node in nodes:
        if node.about.instance_type not in order:
            raise SpecError(
                f"host {node.name} is a {node.about.instance_type}, which the plan does not have",
                place=str(place),
                fix="give the host file that the plan was made for",
            )
    return sorted(nodes, key=lambda node: order[node.about.instance_type])


def cluster_from(
    nodes: list[Node],
    files: Files,
    entries: Mapping[str, tuple[LayerProfile, ...]],
    likes: Mapping[str, str],
    model: Model,
    differs: list[str],
) -> ClusterSpec:
    place = str(files.cluster)
    kinds: dict[str, DeviceKind] = {}
    for node in nodes:
        kind, memory = node.about.instance_type, int(node.about.memory * (1 << 30))
        here = f"{place} [{node.name}]"
        if kind not in kinds:
            known = known_kind(kind, likes, USUAL, f"{here} instance_type")
            kinds[kind] = device_of(kind, known, (memory, place), entries.get(kind, ()), model.spec)
            differs.append(
                f"{kind}: layers, embedding, head and updates are as measured in Metis's files; "
                f"memory bandwidth follows from {known.name}"
                if kind in entries
                else f"{kind}: its layer times are not given, so all times follow from {known.name}"
            )
        elif kinds[kind].memory.capacity_bytes != memory:
            raise SpecError(
                f"{kind} has two sizes of memory",
                place=f"{here} memory",
                fix="give GPUs of unequal memory unequal names",
            )
    differs.append(
        "links are between hosts as inter_bandwidth says; Metis's own code reads intra_bandwidth "
        "for both. Latency is not in its files: 20 us are assumed"
    )
    if any(node.about.inter_bandwidth < BYTES_FROM for node in nodes):
        differs.append(
            "a bandwidth of 1 is 2^20 bytes per millisecond, as Metis's code reads it; its files "
            "do not give the unit"
        )
    machines = [
        Machine(
            node.name,
            (node.about.instance_type,) * node.gpus,
            _link(node.about.intra_bandwidth, place),
            _link(node.about.inter_bandwidth, place),
        )
        for node in nodes
    ]
    with placed(place):
        return cluster_of("converted", f"{SOURCE} {place}", tuple(kinds.values()), machines)


def _link(bandwidth: float, file: str) -> Link:
    rate = bandwidth if bandwidth >= BYTES_FROM else bandwidth * UNIT_BYTES_PER_S
    return Link(_LATENCY_S, rate, f"bandwidth: {SOURCE} {file}; latency: assumed")
