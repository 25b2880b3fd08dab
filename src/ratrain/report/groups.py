"""Groups of states with the colours of the ops that make them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ratrain.program.families import GROUPS, OTHER
from ratrain.program.text.family_groups import group_of, grouped
from ratrain.timeline import palette
from ratrain.timeline.palette import Colour

__all__ = ["MEMORY_GROUPS", "OTHER", "MemoryGroup", "group_of", "grouped", "shown_groups"]

_COLOURS = {
    "weights": palette.GATHER.colour,
    "optimizer": palette.UPDATE.colour,
    "gradients": palette.REDUCE.colour,
    "residual": palette.COPY.colour,
    "mirror": palette.COPY.colour,
    "averaged": palette.REDUCE.colour,
    "saved": palette.FORWARD.colour,
    "input": palette.TENSOR.colour,
    "messages": Colour("#4b5563", "#b3bdc9"),
    "scratch": palette.WAITING,
    OTHER: palette.WEIGHTS.colour,
}


@dataclass(frozen=True)
class MemoryGroup:
    """Families that are drawn as one."""

    key: str
    name: str
    colour: Colour


MEMORY_GROUPS = tuple(MemoryGroup(key, name, _COLOURS[key]) for key, name in GROUPS.items())


def shown_groups(keys: Iterable[str]) -> list[MemoryGroup]:
    """The groups that are there, in the order in which they are drawn."""
    present = set(keys)
    return [group for group in MEMORY_GROUPS if group.key in present]
