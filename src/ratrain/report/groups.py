"""Families of states in groups that people know, each with the colour of the ops that make them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ratrain.timeline import palette
from ratrain.timeline.palette import Colour


@dataclass(frozen=True)
class MemoryGroup:
    """Families that are shown as one."""

    key: str
    name: str
    colour: Colour
    families: frozenset[str]


OTHER = "other"
MEMORY_GROUPS = (
    MemoryGroup(
        "weights",
        "weights",
        palette.GATHER.colour,
        frozenset({"view", "shard_view", "gathered", "passing_f", "passing_b"}),
    ),
    MemoryGroup("optimizer", "optimizer", palette.UPDATE.colour, frozenset({"optimizer"})),
    MemoryGroup(
        "gradients", "gradients", palette.REDUCE.colour, frozenset({"gradient", "shard", "transit"})
    ),
    MemoryGroup("saved", "saved activations", palette.FORWARD.colour, frozenset({"saved"})),
    MemoryGroup(
        "input",
        "layer inputs",
        palette.TENSOR.colour,
        frozenset({"input", "staged", "hosted", "fetched"}),
    ),
    MemoryGroup(
        "messages",
        "messages and sums",
        Colour("#4b5563", "#b3bdc9"),
        frozenset({"outgrad", "sendx", "sendg", "recvg", "arrived", "partial", "partialb"}),
    ),
    MemoryGroup("scratch", "scratch inside ops", palette.WAITING, frozenset({"scratch"})),
    MemoryGroup(OTHER, "other", palette.WEIGHTS.colour, frozenset()),
)


def group_of(family: str) -> str:
    """The key of a family's group."""
    return next((group.key for group in MEMORY_GROUPS if family in group.families), OTHER)


def grouped(families: Mapping[str, int]) -> dict[str, int]:
    """Bytes by group, in the order in which groups are drawn."""
    sums = dict.fromkeys((group.key for group in MEMORY_GROUPS), 0)
    for family, size_bytes in families.items():
        sums[group_of(family)] += size_bytes
    return {key: size_bytes for key, size_bytes in sums.items() if size_bytes}


def shown_groups(keys: Iterable[str]) -> list[MemoryGroup]:
    """The groups that are there, in the order in which they are drawn."""
    present = set(keys)
    return [group for group in MEMORY_GROUPS if group.key in present]
