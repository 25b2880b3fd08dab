"""Memory tiers by name, besides the device's own, whose name a program's header says; and which
states may wait in one between their uses."""

from __future__ import annotations

from dataclasses import dataclass

DEVICE = ""
"""The tier of the device's own memory: its name is in the setup."""
HOST = "host"
"""The host's memory, to which states are offloaded."""
DISK = "disk"
"""Files on the host's disk."""
TIERS = (DEVICE, HOST, DISK)
"""Where states of a unit may be."""
TIER_WORDS = {HOST: "in host memory", DISK: "on disk"}
"""Where states of those tiers are, for people."""


@dataclass(frozen=True)
class Waiting:
    """States of one sort that may wait in another tier between their uses. What waits is of the
    families `<name>_host` and `<name>_disk`; what is used of it is in slots of the device."""

    name: str
    setting: str  # of a member, which says in which tier: one of its fields
    moves: tuple[str, ...]  # the kinds of op that move them, which are about such units alone
    words: str


WAITING = {
    row.name: row
    for row in (
        Waiting("optimizer", "optimizer_tier", ("FetchOptimizer", "StoreOptimizer"), "optimizer"),
        Waiting(
            "view", "view_tier", ("FetchView_F", "FetchView_R", "FetchView_B", "StoreView"), "view"
        ),
        Waiting("input", "activation_tier", ("OffloadInput", "FetchInput"), "input"),
        Waiting(
            "gradient",
            "gradient_tier",
            ("FetchGradient", "StoreGradient", "FetchSum", "StoreSum"),
            "gradient",
        ),
        Waiting("saved", "activation_tier", ("Spill", "Fill"), "saved"),
    )
}
"""By name."""
SETTINGS = tuple(dict.fromkeys(row.setting for row in WAITING.values()))


def waiting_families(name: str) -> tuple[str, ...]:
    """The families of states of a sort that wait."""
    return tuple(waiting_family(name, tier) for tier in TIERS if tier)


def waiting_family(name: str, tier: str) -> str:
    """The family of states of a sort that are in a tier."""
    return f"{name}_{tier}" if tier else name
