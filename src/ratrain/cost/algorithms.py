"""Collectives as algorithms that yield messages, and how long the messages take.

An algorithm is a function: for a group of ranks, given as the number of each one's host, it yields
the rounds of a reduce-scatter. A round is messages that leave together; the next one begins when
all have arrived. An all-gather is the same messages the other way round, so it takes as long. A
third-party package may `declare_algorithm`.

Priced are two levels: the links inside hosts and the one between hosts. Not modelled: rounds that
overlap, hosts at unequal distances, the arithmetic of a reduction. The runtime exchanges directly
whatever is chosen here: the choice is of how the cluster that a job describes is predicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ratrain.cost.collectives import NOTHING, Transfer, ring_half
from ratrain.describe.cluster import Link
from ratrain.errors import SpecError

Hosts = tuple[int, ...]
"""The number of the host of each rank of a group."""

AUTO = "auto"
"""In place of an algorithm's name: for each size the fastest one."""


@dataclass(frozen=True)
class Round:
    """Messages that leave together, as (source, target) of places in the group, each of `share` of
    the whole state; `times` such rounds follow each other."""

    messages: Sequence[tuple[int, int]]
    share: float
    times: int = 1


Algorithm = Callable[[Hosts], Iterable[Round]]
"""The rounds of a reduce-scatter over a group."""

ALGORITHMS: dict[str, Algorithm] = {}


def declare_algorithm(name: str, algorithm: Algorithm) -> None:
    """Makes an algorithm known by a name, for `[schedule] collective`."""
    if name in {AUTO, *ALGORITHMS}:
        raise SpecError(f"the collective {name} is declared twice", fix="choose another name")
    ALGORITHMS[name] = algorithm


# ---- algorithms -------------------------------------------------------------------------


def ring(hosts: Hosts) -> Iterator[Round]:
    """Each rank sends a part to the next one, n - 1 times. Thakur et al. 2005."""
    n = len(hosts)
    yield Round([(rank, (rank + 1) % n) for rank in range(n)], 1 / n, times=n - 1)


def direct(hosts: Hosts) -> Iterator[Round]:
    """Each rank sends every other rank its part at once: one round, many messages."""
    n = len(hosts)
    yield Round([(a, b) for a in range(n) for b in range(n) if a != b], 1 / n)


def hierarchical(hosts: Hosts) -> Iterator[Round]:
    """Rings inside hosts, then rings across hosts of the ranks that hold the same part.

    Only a host's part of a state crosses to other hosts. Where hosts hold unequal numbers of ranks
    the parts do not match, and it is a plain ring.
    """
    members = [[r for r, host in enumerate(hosts) if host == h] for h in dict.fromkeys(hosts)]
    inside, across = len(members[0]), len(members)
    if any(len(ranks) != inside for ranks in members):
        yield from ring(hosts)
        return
    if inside > 1:
        pairs = [(a, b) for ranks in members for a, b in _around(ranks)]
        yield Round(pairs, 1 / inside, times=inside - 1)
    if across > 1:
        columns = list(zip(*members, strict=True))
        pairs = [(a, b) for ranks in columns for a, b in _around(ranks)]
        yield Round(pairs, 1 / (inside * across), times=across - 1)


def _around(ranks: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(ranks, [*ranks[1:], ranks[0]], strict=True))


declare_algorithm("ring", ring)
declare_algorithm("direct", direct)
declare_algorithm("hierarchical", hierarchical)


# ---- their price ------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """A group of ranks on its links. `link` is the one between hosts (the one inside, where the
    group is on one host) as its ring sees it: a part of it, where groups share it. `sharing`:
    groups that use a host's own link at once."""

    hosts: Hosts
    link: Link
    across: Link
    inside: Link
    sharing: float = 1.0


def half(name: str, size_bytes: float, group: Group) -> Transfer:
    """A reduce-scatter or all-gather of a state over a group, by the algorithm of a name: what one
    participant sends over `group.link`. Time on links inside hosts counts as latency."""
    if name == AUTO:
        every = (half(known, size_bytes, group) for known in ALGORITHMS)
        return min(every, key=lambda sent: sent.alone_s(group.link.bandwidth_bytes_per_s))
    if name == "ring":
        return ring_half(size_bytes, len(group.hosts), group.link)
    return of_messages(ALGORITHMS[name], size_bytes, group)


def of_messages(algorithm: Algorithm, size_bytes: float, group: Group) -> Transfer:
    """The same from the algorithm's messages. (A ring's come to `ring_half`, which is faster.)"""
    if len(group.hosts) == 1:
        return NOTHING
    latency_s = group.link.collective_s
    across_s = driving_s = 0.0
    for load in _loads(algorithm, group.hosts):
        message_bytes = size_bytes * load.share
        levels = [
            (link, _busy_s(link, level, message_bytes, group.sharing), level)
            for link, level in ((group.inside, load.inside), (group.across, load.across))
            if level.messages
        ]
        waits_s = max(link.latency_s + link.size_s(message_bytes) for link, _, _ in levels)
        crossing_s = sum(busy_s for _, busy_s, level in levels if level is load.across)
        longest_s = max(busy_s for _, busy_s, _ in levels)
        latency_s += load.times * (waits_s + longest_s - crossing_s)
        across_s += load.times * crossing_s
        driving_s += load.times * sum(link.overhead_s * level.messages for link, _, level in levels)
    return Transfer(latency_s, across_s * group.link.bandwidth_bytes_per_s, driving_s)


@dataclass(frozen=True)
class _Level:
    """Of a round's messages that stay inside hosts, or of those that do not: the most that leave or
    reach one rank, that leave one rank, and that leave or reach one host."""

    of_rank: int
    messages: int
    of_host: int


@dataclass(frozen=True)
class _Load:
    share: float
    times: int
    inside: _Level
    across: _Level


@lru_cache(maxsize=1024)
def _loads(algorithm: Algorithm, hosts: Hosts) -> tuple[_Load, ...]:
    return tuple(
        _Load(
            round_.share,
            round_.times,
            _level([(a, b) for a, b in round_.messages if hosts[a] == hosts[b]], hosts),
            _level([(a, b) for a, b in round_.messages if hosts[a] != hosts[b]], hosts),
        )
        for round_ in algorithm(hosts)
        if round_.times and round_.messages
    )


def _level(messages: Sequence[tuple[int, int]], hosts: Hosts) -> _Level:
    out, into = Counter(a for a, _ in messages), Counter(b for _, b in messages)
    ends = Counter(hosts[a] for a, _ in messages), Counter(hosts[b] for _, b in messages)
    return _Level(
        max([*out.values(), *into.values()], default=0),
        max(out.values(), default=0),
        max([*ends[0].values(), *ends[1].values()], default=0),
    )


def _busy_s(link: Link, level: _Level, message_bytes: float, sharing: float) -> float:
    """Seconds for which a round's bytes need the busiest of such links."""
    count = level.of_host * sharing if link.shared_by == "host" else level.of_rank
    return count * message_bytes / link.bandwidth_bytes_per_s
