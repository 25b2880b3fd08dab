"""Families of states in groups that people know, for pages and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ratrain.program.tiers import TIERS, waiting_family


@dataclass(frozen=True)
class FamilyGroup:
    """Families that are shown as one."""

    key: str
    name: str
    families: frozenset[str]


def _with_waiting(name: str, *others: str) -> frozenset[str]:
    """A family, what waits of it in any tier, and others."""
    return frozenset({*(waiting_family(name, tier) for tier in TIERS), *others})


OTHER = "other"
FAMILY_GROUPS = (
    FamilyGroup(
        "weights",
        "weights",
        _with_waiting(
            "view", "shard_view", "gathered", "passing_f", "passing_b", "view_slot", "view_made"
        ),
    ),
    FamilyGroup(
        "optimizer",
        "optimizer",
        _with_waiting("optimizer", "optimizer_slot", "outer"),
    ),
    FamilyGroup(
        "gradients", "gradients", _with_waiting("gradient", "gradient_slot", "shard", "transit")
    ),
    FamilyGroup("residual", "rounding residuals", frozenset({"residual", "residual_next"})),
    FamilyGroup("mirror", "mirrors of other ranks", frozenset({"mirror", "mirror_gradient"})),
    FamilyGroup("averaged", "copies of weights to average", frozenset({"averaged"})),
    FamilyGroup(
        "saved",
        "saved activations",
        _with_waiting("saved", "saved_out", "saved_in", "refilled", "bounce"),
    ),
    FamilyGroup("input", "layer inputs", _with_waiting("input", "staged", "fetched")),
    FamilyGroup(
        "messages",
        "messages and sums",
        frozenset({"outgrad", "sendx", "sendg", "recvg", "arrived", "partial", "partialb"}),
    ),
    FamilyGroup("scratch", "scratch inside ops", frozenset({"scratch"})),
    FamilyGroup(OTHER, "other", frozenset()),
)
"""In the order in which they are shown."""


def group_of(family: str) -> str:
    """The key of a family's group."""
    return next((group.key for group in FAMILY_GROUPS if family in group.families), OTHER)


def grouped(families: Mapping[str, int]) -> dict[str, int]:
    """Bytes by group, in the order in which groups are shown; those that hold any."""
    sums = dict.fromkeys((group.key for group in FAMILY_GROUPS), 0)
    for family, size_bytes in families.items():
        sums[group_of(family)] += size_bytes
    return {key: size_bytes for key, size_bytes in sums.items() if size_bytes}


def group_name(key: str) -> str:
    """A group's name, by its key."""
    return next(group.name for group in FAMILY_GROUPS if group.key == key)


def takes(item: str) -> str:
    """ "saved activations take", of a family or of an item of the planner's bill, which bills
    messages by slots. A family of somebody's own has its own name."""
    key = "messages" if item in ("slots", "sums") else group_of(item)
    name = {OTHER: item, "optimizer": "the optimizer"}.get(key) or group_name(key)
    return f"{name} {'takes' if key in ('optimizer', 'scratch', OTHER) else 'take'}"
