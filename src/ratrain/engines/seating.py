"""Which rank of the program each process that an engine has started becomes.

Engines number processes by their own order of hosts, which may be another one after every restart.
Seats are given host by host where hosts come as planned, so that ranks that were planned on one
host stay together, else rank by rank: first by what lies on a host's own disk, then by the kind of
device that the plan has for a rank, then in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ratrain.errors import Infeasible


@dataclass(frozen=True)
class PlannedRank:
    """What the plan says of a rank: on which of its hosts, by number, and of which kind."""

    host: int
    kind: str


@dataclass(frozen=True)
class Arrival:
    """A process that has come. `kinds`: what its engine calls its host, of the kinds that the
    job's cluster knows; (): nothing. `holds`: the ranks whose files lie on its host's own disk;
    None: no disk is a host's own."""

    host: str
    kinds: tuple[str, ...] = ()
    holds: frozenset[int] | None = None


def seats(planned: Sequence[PlannedRank], arrivals: Sequence[Arrival]) -> list[int]:
    """Of each process its rank of the program. Refused where the kinds are not those of the
    plan; where no order fits the disks they are left out of account."""
    for by_disk in (True, False):
        for groups, hosts in (
            (_gathered(rank.host for rank in planned), _gathered(a.host for a in arrivals)),
            ([[rank] for rank in range(len(planned))], [[rank] for rank in range(len(arrivals))]),
        ):
            found = _matched(
                len(hosts), len(groups), _fits(planned, arrivals, groups, hosts, by_disk)
            )
            if found is not None:
                return _by_process(found, groups, hosts)
    raise _refusal(planned, arrivals)


def _fits(
    planned: Sequence[PlannedRank],
    arrivals: Sequence[Arrival],
    groups: list[list[int]],
    hosts: list[list[int]],
    by_disk: bool,
) -> Callable[[int, int], bool]:
    """Whether a host's processes may become a group of ranks."""

    def fits(host: int, group: int) -> bool:
        ranks, arrival = groups[group], arrivals[hosts[host][0]]
        if len(ranks) != len(hosts[host]):
            return False
        kind_fits = not arrival.kinds or planned[ranks[0]].kind in arrival.kinds
        held = arrival.holds is None or arrival.holds.issuperset(ranks)
        return kind_fits and (held or not by_disk)

    return fits


def _matched(hosts: int, groups: int, fits: Callable[[int, int], bool]) -> list[int] | None:
    """For each group a host of its own that fits, earlier ones for earlier groups where that can
    be; None where there are not enough of them."""
    if hosts != groups:
        return None
    if all(fits(number, number) for number in range(hosts)):
        return list(range(hosts))
    group_on: dict[int, int] = {}
    for group in range(groups):
        if not _placed(group, hosts, fits, group_on, set()):
            return None
    host_of = {group: host for host, group in group_on.items()}
    return [host_of[group] for group in range(groups)]


def _placed(
    group: int,
    hosts: int,
    fits: Callable[[int, int], bool],
    group_on: dict[int, int],
    tried: set[int],
) -> bool:
    """Gives a group a host, if need be one whose group then finds another."""
    fitting = [host for host in range(hosts) if host not in tried and fits(host, group)]
    for host in fitting:
        if host not in group_on:
            group_on[host] = group
            return True
    for host in fitting:
        if host in tried:
            continue
        tried.add(host)
        if _placed(group_on[host], hosts, fits, group_on, tried):
            group_on[host] = group
            return True
    return False


def _by_process(host_of: list[int], groups: list[list[int]], hosts: list[list[int]]) -> list[int]:
    rank_of = {
        process: rank
        for group, ranks in enumerate(groups)
        for process, rank in zip(hosts[host_of[group]], ranks, strict=True)
    }
    return [rank_of[process] for process in range(len(rank_of))]


def _gathered(keys: Iterable[object]) -> list[list[int]]:
    """The numbers of equal keys, in the order in which they come first."""
    numbers: dict[object, list[int]] = {}
    for number, key in enumerate(keys):
        numbers.setdefault(key, []).append(number)
    return list(numbers.values())


def _refusal(planned: Sequence[PlannedRank], arrivals: Sequence[Arrival]) -> Infeasible:
    wanted = _gathered(rank.kind for rank in planned)
    came = _gathered(arrival.kinds for arrival in arrivals)
    plan_words = ", ".join(f"{len(ranks)} on {planned[ranks[0]].kind}" for ranks in wanted)
    host_words = "; ".join(
        f"{len(ranks)} on {' '.join(arrivals[ranks[0]].kinds) or 'hosts of no known kind'} "
        f"({', '.join(dict.fromkeys(arrivals[rank].host for rank in ranks))})"
        for ranks in came
    )
    return Infeasible(
        f"the plan has ranks {plan_words}; started were {host_words}",
        place="kinds of hosts",
        fix="ask the engine for the plan's hosts (`ratrain launch ENGINE JOB` writes that), or "
        "plan for these",
    )
