"""What an engine is asked for: hosts of each kind, and how many ranks each of them runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class HostGroup:
    """Hosts that are alike."""

    kind: str  # of their devices
    hosts: int
    ranks_each: int

    @property
    def ranks(self) -> int:
        return self.hosts * self.ranks_each


@dataclass(frozen=True)
class Launchable:
    """A run that an engine can start. `kinds`: how many kinds of device its cluster has."""

    name: str
    run: str  # its folder
    groups: tuple[HostGroup, ...]
    python: str
    threads: int  # of a rank
    gpus: bool
    kinds: int
    replans: bool = False  # it can go on, planned anew, without hosts that are lost

    @property
    def command(self) -> list[str]:
        """What each process of the engine runs."""
        return [self.python, "-P", "-m", "ratrain", "rank", self.run]

    @property
    def ranks(self) -> int:
        return sum(group.ranks for group in self.groups)

    @property
    def words(self) -> str:
        """The run, for people."""
        if self.kinds == 1:
            return f"{self.ranks} ranks"
        each = Counter[str]()
        for group in self.groups:
            each[group.kind] += group.ranks
        of_kind = ", ".join(f"{ranks} on {kind}" for kind, ranks in each.items())
        return f"{self.ranks} ranks: {of_kind}"


def groups_of(hosts: Iterable[tuple[str, int]]) -> tuple[HostGroup, ...]:
    """Of hosts with their kinds and ranks, in order, those that are alike; idle ones are left
    out."""
    counted = Counter((kind, ranks) for kind, ranks in hosts if ranks)
    return tuple(HostGroup(kind, count, ranks) for (kind, ranks), count in counted.items())
