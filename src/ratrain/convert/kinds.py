"""The kinds of GPU that their files name, completed by what RATrain knows of them.

Their files hold layer times, memory and links, and nothing of memory bandwidth, launches, or the
rates by which blocks that were not measured are priced. Those come from a device that RATrain
knows: one of the usual names below, or what `--like KIND=NAME` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ratrain.describe.cluster import ClusterSpec, Link
from ratrain.describe.device import DeviceKind
from ratrain.describe.layer_profile import BlockName, LayerProfile, shape_of
from ratrain.describe.model import ModelSpec
from ratrain.describe.presets import cluster_names, cluster_preset, load_cluster
from ratrain.describe.profiles import profile_names
from ratrain.describe.strict import FrozenMap, nearest
from ratrain.errors import SpecError
from ratrain.readers.files import shown


@dataclass(frozen=True)
class Known:
    """What RATrain knows of a kind: the device, its links by level, and the name it has here."""

    name: str
    device: DeviceKind
    links: FrozenMap[Link]


def likes_of(words: Iterable[str], option: str = "--like") -> dict[str, str]:
    """The `KIND=NAME` words of an option by kind."""
    example = "T4=grolar-t4" if option == "--like" else "T4=profile.json"
    likes: dict[str, str] = {}
    for word in words:
        kind, equals, name = word.partition("=")
        if not (kind and equals and name):
            raise SpecError(
                f"{shown(word)} is not KIND=NAME", place=option, fix=f"write it like {example}"
            )
        if kind in likes:
            raise SpecError(
                f"{shown(kind)} is given twice", place=option, fix="leave one of them out"
            )
        likes[kind] = name
    return likes


def known_kind(
    kind: str, likes: Mapping[str, str], usual: Mapping[str, str], place: object
) -> Known:
    """What RATrain knows of a kind, by `--like` or by its usual name."""
    name = likes.get(kind) or usual.get(kind)
    if name is None:
        raise SpecError(
            f"RATrain has no figures for {shown(kind)}",
            place=str(place),
            fix=f"add --like {kind}=NAME, a device profile or cluster of `ratrain clusters`, or a "
            "cluster file",
        )
    cluster = _cluster(name, kind)
    links: dict[str, Link] = {**cluster.links, **cluster.host[0].links}
    return Known(name, cluster.kind(cluster.host[0].device), FrozenMap(links))


def _cluster(name: str, kind: str) -> ClusterSpec:
    if name.endswith(".toml"):
        return load_cluster(Path(name))
    names = (*profile_names(), *cluster_names())
    if name not in names:
        raise SpecError(
            f"there is no device profile or cluster {shown(name)}",
            place=f"--like {kind}",
            fix=nearest(name, names),
        )
    return cluster_preset(name)


def device_of(
    kind: str,
    known: Known,
    memory: tuple[int, str],
    entries: tuple[LayerProfile, ...],
    model: ModelSpec,
) -> DeviceKind:
    """A kind with their memory (its bytes, and the file that says so) and their times; all else as
    known, of measured blocks those of the model. A time that both have is theirs."""
    base = known.device
    blocks: tuple[BlockName, ...] = ("layer", "embedding", "head")
    shapes = {(block, shape_of(model, block).whole) for block in blocks}
    profiled_here = (
        entry for entry in base.layer_profile if (entry.block, entry.shape.whole) in shapes
    )
    measured = {entry.case: entry for entry in (*profiled_here, *entries)}
    size_bytes, source = memory
    first = replace(
        base.memory,
        capacity_bytes=size_bytes,
        source=f"capacity: {source}; bandwidth: as {known.name}",
    )
    return replace(
        base,
        name=kind,
        tiers=(first, *base.tiers[1:]),
        layer_profile=tuple(measured.values()),
    )
