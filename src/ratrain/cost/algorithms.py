"""Collectives as algorithms that yield messages, and how long the messages take.

An algorithm is a function: for a group of ranks, given as the number of each one's host, it yields
the rounds of a reduce-scatter. A state is cut into as many parts as there are ranks, and the rank
at a place of the group ends with the sum of the part of that number. A round is messages that leave
together; the next one begins when all have arrived. An all-gather is the same messages the other
way round, so it takes as long. A third-party package may `declare_algorithm`.

What is priced here is what the runtime executes (`cost.exchanges` says what each rank does, and in
which order each part is summed). Priced are two levels: the links inside hosts and the one between
hosts. Not modelled: rounds that overlap, hosts at unequal distances, the arithmetic of a reduction.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ratrain.cost.collectives import NO_LOSS, NOTHING, Loss, Transfer, ring_half
from ratrain.describe.cluster import Link
from ratrain.errors import SpecError

Hosts = tuple[int, ...]
"""The number of the host of each rank of a group."""

AUTO = "auto"
"""In place of an algorithm's name: for each size the fastest one."""
DIRECT = "direct"


class Message(NamedTuple):
    """From one place of a group to another: the source's sums so far of these parts, which it then
    has no longer. In an all-gather the target sends the parts to the source."""

    source: int
    target: int
    parts: tuple[int, ...]


@dataclass(frozen=True)
class Round:
    """Messages that leave together."""

    messages: Iterable[Message]


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
    for turn in range(1, n):
        yield Round(Message(rank, (rank + 1) % n, ((rank - turn) % n,)) for rank in range(n))


def direct(hosts: Hosts) -> Iterator[Round]:
    """Each rank sends every other rank its part at once: one round, many messages."""
    n = len(hosts)
    yield Round(Message(a, b, (b,)) for a in range(n) for b in range(n) if a != b)


def hierarchical(hosts: Hosts) -> Iterator[Round]:
    """Inside each host, each rank collects the parts that it carries: its own, and its share of
    those that other hosts own. Then the carriers send their hosts' sums to the owners, across.

    So each host sends a part once, and a host of k ranks sends 1/k of what a direct exchange does.
    Hosts may have unequal numbers of ranks.
    """
    members = [[r for r, host in enumerate(hosts) if host == h] for h in dict.fromkeys(hosts)]
    carried = [_carried(ranks, len(hosts)) for ranks in members]
    yield Round(
        Message(a, b, of_rank[b])
        for ranks, of_rank in zip(members, carried, strict=True)
        for a in ranks
        for b in ranks
        if a != b
    )
    yield Round(
        Message(carrier, part, (part,))
        for of_rank in carried
        for carrier, parts in of_rank.items()
        for part in parts
        if part not in of_rank
    )


def _carried(ranks: list[int], parts: int) -> dict[int, tuple[int, ...]]:
    """The parts that each of a host's ranks carries: its own, and others' in turn."""
    here = set(ranks)
    away = [part for part in range(parts) if part not in here]
    return {rank: (rank, *away[turn :: len(ranks)]) for turn, rank in enumerate(ranks)}


declare_algorithm("ring", ring)
declare_algorithm(DIRECT, direct)
declare_algorithm("hierarchical", hierarchical)


# ---- their price ------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """A group of ranks on its links. `link` is the one between hosts (the one inside, where the
    group is on one host) as its ring sees it: a part of it, where groups share it. `sharing`:
    groups that use a host's own link at once. `loss`: what a reduction takes from the compute of
    the device that loses most by it."""

    hosts: Hosts
    link: Link
    across: Link
    inside: Link
    sharing: float = 1.0
    loss: Loss = NO_LOSS


def half(name: str, size_bytes: float, group: Group, widened: float = 1.0) -> Transfer:
    """A reduce-scatter or all-gather of a state over a group, by the algorithm of a name: what one
    participant sends over `group.link`. Time on links inside hosts counts as latency. `widened`:
    how many times as long a sum's element is on its way as a rank's own (1 in an all-gather)."""
    if name == AUTO:
        name = fastest(size_bytes, group, widened)
    if name == "ring":
        return ring_half(size_bytes, len(group.hosts), group.link, widened)
    return of_messages(ALGORITHMS[name], size_bytes, group, widened)


def fastest(size_bytes: float, group: Group, widened: float = 1.0) -> str:
    """The algorithm that takes the least time alone, with what driving it takes from compute; of
    equals, one that sums in the order of the ranks."""

    def time_s(name: str) -> float:
        sent = group.loss.driven(half(name, size_bytes, group, widened))
        return sent.alone_s(group.link.bandwidth_bytes_per_s) + sent.driving_s

    return min((DIRECT, *(name for name in ALGORITHMS if name != DIRECT)), key=time_s)


def of_messages(
    algorithm: Algorithm, size_bytes: float, group: Group, widened: float = 1.0
) -> Transfer:
    """The same from the algorithm's messages. (A ring's come to `ring_half`, which is faster.)"""
    if len(group.hosts) == 1:
        return NOTHING
    latency_s = group.link.collective_s
    across_s = driving_s = messages = moved_bytes = 0.0
    for load in loads(algorithm, group.hosts, widened):
        levels = [
            (link, _busy_s(link, level, size_bytes, group.sharing), level)
            for link, level in ((group.inside, load.inside), (group.across, load.across))
            if level.messages
        ]
        waits_s = max(
            link.latency_s + link.size_s(size_bytes * level.largest) for link, _, level in levels
        )
        crossing_s = sum(busy_s for _, busy_s, level in levels if level is load.across)
        longest_s = max(busy_s for _, busy_s, _ in levels)
        latency_s += waits_s + longest_s - crossing_s
        across_s += crossing_s
        driving_s += sum(link.overhead_s * level.messages for link, _, level in levels)
        messages += sum(level.messages for _, _, level in levels)
        moved_bytes += sum(size_bytes * level.of_rank for _, _, level in levels)
    volume_bytes = across_s * group.link.bandwidth_bytes_per_s
    return Transfer(latency_s, volume_bytes, driving_s, messages, moved_bytes)


@dataclass(frozen=True)
class _Level:
    """Of a round's messages that stay inside hosts, or of those that do not, as shares of the
    state: the most that leaves or reaches one rank, and one host; the largest message. `messages`:
    the most that leave one rank."""

    of_rank: float
    of_host: float
    largest: float
    messages: int


@dataclass(frozen=True)
class _Load:
    inside: _Level
    across: _Level


@lru_cache(maxsize=1024)
def loads(algorithm: Algorithm, hosts: Hosts, widened: float) -> tuple[_Load, ...]:
    """What leaves and reaches the busiest rank and host in each round."""
    closed = _CLOSED.get(algorithm)
    return counted_loads(algorithm, hosts, widened) if closed is None else closed(hosts, widened)


def counted_loads(algorithm: Algorithm, hosts: Hosts, widened: float) -> tuple[_Load, ...]:
    """What the messages of each round come to, one by one: their number may grow with the square
    of the group's."""
    loads: list[_Load] = []
    arrived: set[tuple[int, int]] = set()  # (place, part): what it sends of it is a sum
    for round_ in algorithm(hosts):
        inside, across = _Counts(), _Counts()
        arriving: list[Message] = []
        for message in round_.messages:
            source, target, parts = message
            sums = 0
            if widened != 1.0:
                sums = sum((source, part) in arrived for part in parts)
                arriving.append(message)
            share = (len(parts) + sums * (widened - 1.0)) / len(hosts)
            level = inside if hosts[source] == hosts[target] else across
            level.add(source, target, hosts[source], hosts[target], share)
        arrived.update((target, part) for _, target, parts in arriving for part in parts)
        if inside.largest or across.largest:
            loads.append(_Load(inside.level(), across.level()))
    return tuple(loads)


class _Counts:
    """A round's messages of one level, added up."""

    def __init__(self) -> None:
        self.largest = 0.0
        self._messages = Counter[int]()
        self._ranks = defaultdict[tuple[int, bool], float](float)
        self._hosts = defaultdict[tuple[int, bool], float](float)

    def add(self, source: int, target: int, host: int, to_host: int, share: float) -> None:
        self.largest = max(self.largest, share)
        self._messages[source] += 1
        for rank, its_host, sends in ((source, host, True), (target, to_host, False)):
            self._ranks[rank, sends] += share
            self._hosts[its_host, sends] += share

    def level(self) -> _Level:
        return _Level(
            max(self._ranks.values(), default=0.0),
            max(self._hosts.values(), default=0.0),
            self.largest,
            max(self._messages.values(), default=0),
        )


def _direct_loads(hosts: Hosts, _widened: float) -> tuple[_Load, ...]:
    """What the messages of a direct exchange come to, of which there are too many in a large
    group. Each carries a part of the sender's own: no sum is on its way."""
    n, on_host = len(hosts), Counter(hosts).values()
    here, away = max(on_host) - 1, n - min(on_host)
    crossing = max(count * (n - count) for count in on_host)
    load = _Load(
        _Level(here / n, max(on_host) * here / n, 1 / n * (here > 0), here),
        _Level(away / n, crossing / n, 1 / n * (away > 0), away),
    )
    return (load,)


def _hierarchical_loads(hosts: Hosts, widened: float) -> tuple[_Load, ...]:
    """The same of a hierarchical exchange: inside hosts, then across. A host of `count` ranks
    carries n - count parts of others, in turn: the most and the least that a rank has of them
    differ by one. What it sends across is a sum if it has several ranks."""
    n, on_host = len(hosts), list(Counter(hosts).values())
    several = [count for count in on_host if count > 1]
    most = {count: -(-(n - count) // count) for count in on_host}
    weight = {count: widened if count > 1 else 1.0 for count in on_host}
    inside = _NONE
    if several:
        inside = _Level(
            max(
                max(n - 1 - (n - count) // count, (count - 1) * (1 + most[count]))
                for count in several
            )
            / n,
            max(several) - 1.0,
            max(1 + most[count] for count in several) / n,
            max(several) - 1,
        )
    if len(on_host) == 1:
        return (_Load(inside, _NONE),) if several else ()
    arriving = sum(weight[count] for count in on_host)  # a part's sums, from all hosts
    across = _Level(
        max(max(most[c] * weight[c], arriving - weight[c]) for c in on_host) / n,
        max(max((n - c) * weight[c], c * (arriving - weight[c])) for c in on_host) / n,
        max(weight[count] for count in on_host) / n,
        max(most.values()),
    )
    crossing = _Load(_NONE, across)
    return (_Load(inside, _NONE), crossing) if several else (crossing,)


_NONE = _Level(0.0, 0.0, 0.0, 0)
_CLOSED: dict[Algorithm, Callable[[Hosts, float], tuple[_Load, ...]]] = {
    direct: _direct_loads,
    hierarchical: _hierarchical_loads,
}
"""Loads in closed form, of algorithms with more messages than can be counted in a large group."""


def _busy_s(link: Link, level: _Level, size_bytes: float, sharing: float) -> float:
    """Seconds for which a round's bytes need the busiest of such links."""
    share = level.of_host * sharing if link.shared_by == "host" else level.of_rank
    return share * size_bytes / link.bandwidth_bytes_per_s
