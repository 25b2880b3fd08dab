"""Networks of any shape, imported: routers and links of a .graphml file, next hops of .csv files.

Each router has a table of its own, by destination, as FlooNoC's routers with ID tables have. A node
whose `ni` is "false" has no network interface: nothing begins or ends there. Routes are whole when
every interface reaches every other one over links that there are. They cannot deadlock when no
circle is in the dependencies of channels (Dally and Seitz): a worm on one link may wait for the
next link of its route, and a circle of such waits may close; without one none does, at whatever
timing and length of packets.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from ratrain.chip.noc.deadlock import circle
from ratrain.errors import ChipError, SpecError
from ratrain.readers.csv import Row, csv_table
from ratrain.readers.files import exists, read_text, shown
from ratrain.readers.graphml import read_graphml

INTERFACE = "ni"
"""The key of a node that says whether it has a network interface; left out: it has."""
COLUMNS = ("router", "destination", "next")
MOST_INTERFACES = 4096
Link = tuple[str, str]
"""From a router to its neighbour."""


@dataclass(frozen=True)
class Topology:
    """`interfaces`: the routers with one, in the order of the file: the numbers of devices."""

    file: str
    routers: tuple[str, ...]
    interfaces: tuple[str, ...]
    links: frozenset[Link]


@dataclass(frozen=True)
class Routes:
    """`next`: by router and destination. All routes between interfaces are whole."""

    topology: Topology
    file: str
    next: Mapping[tuple[str, str], str]

    def route(self, source: str, destination: str) -> list[Link]:
        """The links on the way."""
        links: list[Link] = []
        at = source
        while at != destination:
            after = self.next[at, destination]
            links.append((at, after))
            at = after
        return links

    @cached_property
    def all(self) -> list[list[Link]]:
        """Those between all interfaces."""
        ends = self.topology.interfaces
        return [self.route(source, end) for source in ends for end in ends if source != end]

    def deadlock(self) -> list[Link]:
        """Links each of which a packet may hold while it waits for the one behind it, round in a
        circle; empty where routes cannot deadlock."""
        waits: dict[Link, dict[Link, None]] = {}
        for route in self.all:
            for held, awaited in pairwise(route):
                waits.setdefault(held, {})[awaited] = None
                waits.setdefault(awaited, {})
        return circle({held: list(awaited) for held, awaited in waits.items()})

    def require_no_deadlock(self) -> None:
        """A ChipError names the circle."""
        links = self.deadlock()
        if links:
            shown_links = ", ".join(f"{a} to {b}" for a, b in links)
            raise ChipError(
                f"packets can block each other for ever, each on a link before the next: "
                f"{shown_links}, and so on round",
                place=self.file,
                fix="lead one of the routes over these links another way, such as up*/down*",
            )


@dataclass(frozen=True)
class Tree:
    """Sums and multicasts by a tree of messages, by the number of devices from 1 on, each summed
    over the tree's levels: hops of the farthest message, and the most messages over one link."""

    hops: tuple[int, ...]
    shares: tuple[int, ...]


def read_topology(path: Path) -> Topology:
    """The routers and links of a .graphml file."""
    graph = read_graphml(path)
    interfaces: list[str] = []
    for node in graph.nodes:
        said = node.said.get(INTERFACE, "true").lower()
        if said not in ("true", "false", "1", "0"):
            raise SpecError(
                f"{INTERFACE} is {shown(said)}", place=node.place, fix='say "true" or "false"'
            )
        interfaces += [node.name] if said in ("true", "1") else []
    links: set[Link] = set()
    for edge in graph.edges:
        if edge.source == edge.target:
            raise SpecError(
                f"{shown(edge.source)} is linked to itself",
                place=edge.place,
                fix="leave that edge out",
            )
        links |= {(edge.source, edge.target)}
        links |= set() if edge.one_way else {(edge.target, edge.source)}
    if not 2 <= len(interfaces) <= MOST_INTERFACES:
        raise SpecError(
            f"{len(interfaces)} nodes have a network interface",
            place=graph.file,
            fix=f'give 2 to {MOST_INTERFACES}: a node has one unless its data "{INTERFACE}" is '
            "false",
        )
    return Topology(
        graph.file, tuple(node.name for node in graph.nodes), tuple(interfaces), frozenset(links)
    )


def read_routes(path: Path, topology: Topology) -> Routes:
    """The routes of a .csv file, or of a folder with one for each router, named after it."""
    routers, next_hops = set(topology.routers), dict[tuple[str, str], str]()
    lines: dict[tuple[str, str], str] = {}
    for router, destination, after, place in _rows(path, topology):
        for name in (router, destination):
            if name not in routers:
                raise SpecError(
                    f"there is no router {shown(name)}",
                    place=place,
                    fix=f"use the ids of nodes in {topology.file}",
                )
        if router == destination:
            continue  # it has arrived
        if (router, destination) in lines:
            raise SpecError(
                f"{router} has two ways to {destination}, the first at "
                f"{lines[router, destination]}",
                place=place,
                fix="leave one of them out",
            )
        if (router, after) not in topology.links:
            raise SpecError(
                f"no link leads from {router} to {shown(after)}",
                place=place,
                fix=f"name a neighbour of {router}, or add that edge to {topology.file}",
            )
        next_hops[router, destination], lines[router, destination] = after, place
    _require_whole(path, topology, next_hops, lines)
    return Routes(topology, str(path), next_hops)


def tree_of(routes: Routes) -> Tree:
    """Device j sends to j - 2^l at level l, its lowest bit, and a multicast goes back that way."""
    ends = routes.topology.interfaces
    farthest, busiest = Counter[int](), Counter[int]()
    used: dict[int, Counter[Link]] = defaultdict(Counter)
    hops, shares = [0], [0]
    for device in range(1, len(ends)):
        level = (device & -device).bit_length() - 1
        ways = ends[device], ends[device & (device - 1)]
        for route in (routes.route(*ways), routes.route(*ways[::-1])):
            farthest[level] = max(farthest[level], len(route))
            used[level].update(route)
            busiest[level] = max(busiest[level], *(used[level][link] for link in route))
        hops.append(farthest.total())
        shares.append(busiest.total())
    return Tree(tuple(hops), tuple(shares))


def _rows(path: Path, topology: Topology) -> Iterator[tuple[str, str, str, str]]:
    """(router, destination, next, place)."""
    if not path.is_dir():
        yield from (_cells(cells, row) for cells, row in _table(path, COLUMNS))
        return
    for router in topology.routers:
        file = path / f"{router}.csv"
        if "/" in router or not exists(file):
            raise SpecError(
                f"{shown(router)} has no table of routes",
                place=str(path),
                fix=f"write {shown(router + '.csv')} there, with the columns destination, next",
            )
        for cells, row in _table(file, COLUMNS[1:]):
            yield _cells({"router": router, **cells}, row)


def _table(path: Path, columns: Sequence[str]) -> Iterator[tuple[dict[str, str], Row]]:
    return csv_table(read_text(path), str(path), columns)


def _cells(cells: Mapping[str, str], row: Row) -> tuple[str, str, str, str]:
    missing = [column for column in COLUMNS if not cells.get(column)]
    if missing:
        raise SpecError(
            f"has no {missing[0]}", place=row.place, fix=f"the columns are {', '.join(COLUMNS)}"
        )
    router, destination, after = (cells[column] for column in COLUMNS)
    return router, destination, after, row.place


def _require_whole(
    path: Path,
    topology: Topology,
    next_hops: Mapping[tuple[str, str], str],
    lines: Mapping[tuple[str, str], str],
) -> None:
    """Every interface reaches every other one."""
    for destination in topology.interfaces:
        arrives = {destination}
        for source in topology.interfaces:
            at, passed = source, dict[str, None]()
            while at not in arrives:
                if at in passed:
                    raise SpecError(
                        f"from {source} to {destination} packets go round for ever: "
                        f"{', '.join([*passed, at])}",
                        place=lines[at, destination],
                        fix="give one of these routers another next hop",
                    )
                passed[at] = None
                if (at, destination) not in next_hops:
                    raise SpecError(
                        f"{at} knows no way to {destination}, on the route from {source}",
                        place=str(path),
                        fix=f"add a line: {at},{destination},NEIGHBOUR",
                    )
                at = next_hops[at, destination]
            arrives.update(passed)
