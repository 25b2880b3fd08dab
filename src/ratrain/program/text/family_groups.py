"""Families of states in groups that people know, for pages and reports."""

from __future__ import annotations

from collections.abc import Mapping

from ratrain.program.families import FAMILIES, GROUPS, OTHER


def group_of(family: str) -> str:
    """The key of a family's group."""
    return FAMILIES[family].group if family in FAMILIES else OTHER


def grouped(families: Mapping[str, int]) -> dict[str, int]:
    """Bytes by group, in the order in which groups are shown; those that hold any."""
    sums = dict.fromkeys(GROUPS, 0)
    for family, size_bytes in families.items():
        sums[group_of(family)] += size_bytes
    return {key: size_bytes for key, size_bytes in sums.items() if size_bytes}


def takes(item: str) -> str:
    """ "saved activations take", of a family or of an item of the planner's bill, which bills
    messages by slots. A family of somebody's own has its own name."""
    key = "messages" if item in ("slots", "sums") else group_of(item)
    name = {OTHER: item, "optimizer": "the optimizer"}.get(key) or GROUPS[key]
    return f"{name} {'takes' if key in ('optimizer', 'scratch', OTHER) else 'take'}"
