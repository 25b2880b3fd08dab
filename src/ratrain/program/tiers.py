"""Memory tiers by name, besides the device's own, whose name a program's header says."""

from __future__ import annotations

DEVICE = ""
"""The tier of the device's own memory: its name is in the setup."""
HOST = "host"
"""The host's memory, to which states are offloaded."""
DISK = "disk"
"""Files on the host's disk."""
TIERS = (DEVICE, HOST, DISK)
"""Where a unit's optimizer states may be."""
TIER_WORDS = {HOST: "in host memory", DISK: "on disk"}
"""Where states of those tiers are, for people."""
