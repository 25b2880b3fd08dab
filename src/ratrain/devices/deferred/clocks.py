"""Finds two accesses of one piece of memory, or of one state, that nothing orders.

Whether they met is chance; that nothing kept them apart is not. So an order that is missing is
found in every run that makes both accesses, however they happened to fall.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ratrain.devices.deferred.queue import Lane, no_op
from ratrain.errors import MissingOrder

FIX = (
    "let one op wait for the other: its kind must say that it reads, writes or frees the state; "
    "or keep the memory until both are over"
)


class Access(NamedTuple):
    """One operator's access to the bytes [low, high) of a place."""

    lane: Lane
    at: int  # its number among the lane's operators
    writes: bool
    low: int
    high: int
    operator: str
    op: Callable[[], str]

    def words(self) -> str:
        does = "writes" if self.writes else "reads"
        how = f" ({self.operator})" if self.operator else ""
        return f"{self.op()} {does} it{how}, on lane {self.lane.name}"


@dataclass(eq=False)
class Place:
    """Something that operators access: a block of memory, or a state by its name."""

    name: str = ""
    made_by: Callable[[], str] | None = None
    accesses: dict[tuple[str, bool, int, int], Access] = field(
        default_factory=dict[tuple[str, bool, int, int], Access]
    )

    def words(self) -> str:
        name = self.name or "memory"
        return name if self.made_by in (None, no_op) else f"{name} that {self.made_by()} made"

    def access(self, access: Access) -> MissingOrder | None:
        """Notes an access; what it was not kept apart from, if anything."""
        found = None
        for key, before in list(self.accesses.items()):
            if before.high <= access.low or access.high <= before.low:
                continue
            ordered = _is_ordered(before, access.lane)
            if not ordered and (access.writes or before.writes):
                found = found or missing(self, before, access.words())
            covered = access.low <= before.low and before.high <= access.high
            if ordered and access.writes and covered:
                del self.accesses[key]
        self.accesses[access.lane.name, access.writes, access.low, access.high] = access
        return found

    def free(self, lane: Lane, owner: Lane) -> MissingOrder | None:
        """Ends all accesses: the memory goes back to its owner's pool, whose next operators may
        write it. An access of another lane must be over by now."""
        accesses, self.accesses = self.accesses, {}
        for access in accesses.values():
            if access.lane is owner or access.lane.of is not lane.of:
                continue
            if access.lane is lane:
                over = access.lane.ran >= access.at
            else:
                over = _is_ordered(access, lane)
            if not over:
                return missing(self, access, f"{lane.doing()} frees it, on lane {lane.name}")
        return None


def _is_ordered(before: Access, lane: Lane) -> bool:
    if before.lane is lane or before.lane.of is not lane.of:
        return True  # another device's work is over: tensors that are kept outlive a device
    return lane.seen.get(before.lane.name, 0) >= before.at


def missing(place: Place, before: Access, then: str) -> MissingOrder:
    """What is said of two accesses."""
    return MissingOrder(
        f"nothing orders two accesses of {place.words()}: {before.words()}; {then}", fix=FIX
    )
