"""Which rank of a run is on which host, and on which disks the run's folder is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ratrain.checkpoint.folder import rank_name
from ratrain.checkpoint.manifest import Spread
from ratrain.describe.ranges import write_ranges


@dataclass(frozen=True)
class Membership:
    """All tuples are by world rank. A host, and a disk, is called by its first rank."""

    names: tuple[str, ...]  # of the rank's host
    host: tuple[int, ...]
    disk: tuple[int, ...]

    @property
    def hosts(self) -> list[int]:
        """The first rank of each host."""
        return sorted(set(self.host))

    @property
    def disks(self) -> list[int]:
        """The first rank of each disk."""
        return sorted(set(self.disk))

    def logs(self, rank: int) -> bool:
        """Whether a rank is the first on its host, which reports on the run."""
        return self.host[rank] == rank

    def keeps(self, rank: int) -> bool:
        """Whether a rank is the first on its disk, which begins and ends checkpoints there."""
        return self.disk[rank] == rank

    def sent_by(self, rank: int) -> list[int]:
        """Whose files a rank sends to an object store: those of all that share host and disk with
        it, where it is the first of them."""
        places = list(zip(self.host, self.disk, strict=True))
        beside = [other for other, place in enumerate(places) if place == places[rank]]
        return beside if beside[0] == rank else []

    def place(self, rank: int) -> str:
        """A rank for people: with its host where there are several."""
        return f"rank {rank}" + (f" on host {self.names[rank]}" if len(self.hosts) > 1 else "")

    def words(self, rank: int, *, all_hosts: bool = False) -> str:
        """Who is here, for people on a rank's host, or for those who see all hosts at once."""
        count = len(self.names)
        if len(self.hosts) == 1:
            return f"{count} rank{'s' * (count > 1)} on host {self.names[rank]}"
        if all_hosts:
            where = (f"{write_ranges(self._on(host))} on {self.names[host]}" for host in self.hosts)
            return f"{count} ranks on {len(self.hosts)} hosts: {', '.join(where)}"
        own_ranks = self._on(self.host[rank])
        return (
            f"{count} ranks on {len(self.hosts)} hosts; {self.names[rank]} has "
            f"rank{'s' * (len(own_ranks) > 1)} {write_ranges(own_ranks)}"
        )

    def _on(self, host: int) -> list[int]:
        return [rank for rank, of_rank in enumerate(self.host) if of_rank == host]

    def spread(self, rank: int) -> Spread | None:
        """Where a checkpoint's files lie, seen from a rank's disk; None: all on one."""
        disks = self.disks
        if len(disks) == 1:
            return None
        of_file = {rank_name(other): disks.index(disk) for other, disk in enumerate(self.disk)}
        return Spread(
            tuple(self.names[disk] for disk in disks), of_file, disks.index(self.disk[rank])
        )


def hosts_of(marks: Sequence[object]) -> tuple[int, ...]:
    """The first rank of each rank's host; ranks with the same mark are on one."""
    first: dict[object, int] = {}
    return tuple(first.setdefault(mark, rank) for rank, mark in enumerate(marks))
