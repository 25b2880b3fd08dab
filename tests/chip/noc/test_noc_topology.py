"""Imported networks: routes are whole, cannot deadlock or say where, and files that are wrong say
which line."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from ratrain.chip.noc.topology import (
    Link,
    Routes,
    Topology,
    read_routes,
    read_topology,
    tree_of,
)
from ratrain.cli.main import ratrain
from ratrain.describe.on_chip import ChipNetwork
from ratrain.describe.strict import load
from ratrain.errors import ChipError, SpecError
from ratrain.readers.toml import read_toml

EXAMPLES = Path(__file__).parents[3] / "examples" / "chips"
HEAD = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'


def graphml(nodes: int, edges: list[tuple[int, int]], way: str = "undirected") -> str:
    lines = [HEAD, f'<graph edgedefault="{way}">']
    lines += [f'<node id="r{n}"/>' for n in range(nodes)]
    lines += [f'<edge source="r{a}" target="r{b}"/>' for a, b in edges]
    return "\n".join([*lines, "</graph>", "</graphml>"])


def table(routes: Mapping[tuple[str, str], str]) -> str:
    rows = (f"{router},{end},{after}" for (router, end), after in routes.items())
    return "\n".join(["router,destination,next", *rows]) + "\n"


Draw = tuple[Topology, dict[tuple[str, str], str]]


@st.composite
def drawn(draw: st.DrawFn) -> Draw:
    """A connected graph of up to nine routers, some without an interface, and shortest routes with
    ties broken at random: some of these deadlock."""
    count = draw(st.integers(2, 9))
    seed = draw(st.integers(0, 1 << 30))
    rng = random.Random(seed)
    names = tuple(f"r{n}" for n in range(count))
    pairs = {(names[n], names[rng.randrange(n)]) for n in range(1, count)}
    for _ in range(draw(st.integers(0, count))):
        a, b = rng.sample(names, 2)
        pairs |= {(a, b)}
    links = frozenset(pairs | {(b, a) for a, b in pairs})
    ends = tuple(sorted(rng.sample(names, rng.randint(2, count))))
    routes: dict[tuple[str, str], str] = {}
    for end in ends:
        far, waiting = {end: 0}, deque([end])
        while waiting:
            at = waiting.popleft()
            for other in sorted(a for a, b in links if b == at):
                if other not in far:
                    far[other] = far[at] + 1
                    waiting.append(other)
        for name in names:
            nearer = [b for a, b in sorted(links) if a == name and far[b] < far[name]]
            if name != end:
                routes[name, end] = rng.choice(nearer)
    return Topology("drawn", names, ends, links), routes


def frozen_for_ever(routes: Routes) -> bool:
    """By brute force: whether some set of packets, one on each link of it, stands still: each waits
    for a link of the set. The largest such set is what is left after all others have gone on."""
    waits: dict[Link, set[Link]] = {}
    for route in routes.all:
        for at, held in enumerate(route):
            waits.setdefault(held, set())
            if at + 1 < len(route):
                waits[held].add(route[at + 1])
    left = set(waits)
    while True:
        stuck = {held for held in left if waits[held] & left}
        if stuck == left:
            return bool(left)
        left = stuck


@given(drawn())
@settings(max_examples=300, deadline=None)
def test_a_circle_is_named_exactly_where_packets_can_stand_still_for_ever(draw: Draw) -> None:
    topology, next_hops = draw
    routes = Routes(topology, "drawn", next_hops)
    found = routes.deadlock()
    assert bool(found) == frozen_for_ever(routes)
    if not found:
        routes.require_no_deadlock()
        return
    steps = {(a, b) for way in routes.all for a, b in pairwise(way)}
    assert all(step in steps for step in zip(found, [*found[1:], found[0]], strict=True))
    with pytest.raises(ChipError) as caught:
        routes.require_no_deadlock()
    assert all(f"{a} to {b}" in caught.value.what for a, b in found)


def test_a_ring_whose_packets_all_go_one_way_round_deadlocks_and_a_dateline_mends_it(
    tmp_path: Path,
) -> None:
    ring = [(n, (n + 1) % 4) for n in range(4)]
    (tmp_path / "ring.graphml").write_text(graphml(4, ring))
    topology = read_topology(tmp_path / "ring.graphml")
    round_about = {
        (f"r{n}", f"r{end}"): f"r{(n + 1) % 4}" for n in range(4) for end in range(4) if n != end
    }
    (tmp_path / "routes.csv").write_text(table(round_about))
    words = [str(tmp_path / "ring.graphml"), "--routes", str(tmp_path / "routes.csv")]
    ran = CliRunner().invoke(ratrain, ["noc", "topology", *words])
    assert isinstance(ran.exception, ChipError)
    with pytest.raises(ChipError, match=r"r\d to r\d, .*and so on round"):
        read_routes(tmp_path / "routes.csv", topology).require_no_deadlock()
    line = {
        (f"r{n}", f"r{end}"): f"r{n + (1 if end > n else -1)}"
        for n in range(4)
        for end in range(4)
        if n != end
    }  # the link between the last and the first is not used
    (tmp_path / "line.csv").write_text(table(line))
    read_routes(tmp_path / "line.csv", topology).require_no_deadlock()


def test_a_folder_of_tables_is_the_same_as_one_file(tmp_path: Path) -> None:
    topology = read_topology(EXAMPLES / "two-hubs.graphml")
    routes = read_routes(EXAMPLES / "two-hubs-routes.csv", topology)
    for router in topology.routers:
        rows = [f"{end},{after}" for (at, end), after in routes.next.items() if at == router]
        (tmp_path / f"{router}.csv").write_text("\n".join(["destination,next", *rows]) + "\n")
    assert read_routes(tmp_path, topology).next == routes.next
    (tmp_path / "h1.csv").unlink()
    with pytest.raises(SpecError, match="'h1' has no table of routes"):
        read_routes(tmp_path, topology)


def test_trees_count_the_hops_of_each_level_and_the_messages_that_share_a_link() -> None:
    topology = read_topology(EXAMPLES / "two-hubs.graphml")
    assert topology.interfaces == ("r0", "r1", "r2", "r3", "r4")
    tree = tree_of(read_routes(EXAMPLES / "two-hubs-routes.csv", topology))
    # r1 to r0: 2 links; r2 to r0: 2; r3 to r2, over the link of both hubs: 3; r4 to r0: 3.
    assert tree.hops == (0, 2, 4, 5, 8)
    assert tree.shares == (0, 1, 2, 2, 3)


def test_the_file_of_an_imported_chip_is_one_that_a_device_may_name(tmp_path: Path) -> None:
    words = [str(EXAMPLES / "two-hubs.graphml"), "--routes", str(EXAMPLES / "two-hubs-routes.csv")]
    ran = CliRunner().invoke(ratrain, ["noc", "topology", *words, "--chip", "--clock", "1.2"])
    assert ran.exit_code == 0, ran.output
    (tmp_path / "chip.toml").write_text(ran.output)
    network = load(ChipNetwork, *read_toml(tmp_path / "chip.toml"))
    assert network.sum_s(1 << 16, 5, "hardware") is None
    times = [network.sum_s(1 << 16, devices, "software") or 0.0 for devices in range(1, 6)]
    assert times[0] == 0 and times == sorted(times)
    costs = {each.kind: each for each in network.collective}
    beats = (1 << 16) / 64
    cycles = sum(
        3 * each.alpha_cycles + 3 * each.beta_cycles * beats + 8 * each.hop_cycles
        for each in costs.values()
    )
    assert times[4] == pytest.approx(cycles / 1.2e9)


GOOD = graphml(3, [(0, 1), (1, 2)])
LINE = {
    ("r0", "r1"): "r1", ("r0", "r2"): "r1", ("r1", "r0"): "r0",
    ("r1", "r2"): "r2", ("r2", "r0"): "r1", ("r2", "r1"): "r1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "place", "what"),
    [
        (lambda text: text.replace("</graph>", ""), ":9", "not valid XML"),
        (lambda text: text.replace('target="r2"', 'target="r9"'), ":7", "no node 'r9'"),
        (lambda text: text.replace('id="r1"', 'id="r0"'), ":4", "'r0' is there twice"),
        (lambda text: text.replace('<node id="r1"/>', "<node/>"), ":4", "<node> has no id"),
        (lambda text: text.replace('source="r0" target="r1"', 'source="r1" target="r1"'), ":6",
         "linked to itself"),
        (lambda text: '<!DOCTYPE x [<!ENTITY a "aaaa">]>' + text, ":1", "has a document type"),
        (lambda text: text.replace("graphml", "svg"), ":1", "begins with <'svg'>"),
        (lambda _: HEAD + '<graph edgedefault="directed"></graph></graphml>', "", "no nodes"),
        (lambda text: text.replace("</graph>", "</graph><graph/>"), ":8", "a second graph"),
        (lambda text: text.replace('<node id="r2"/>', '<node id="r2"><port name="p"/></node>'),
         ":5", "<port> is not read"),
    ],
)  # fmt: skip
def test_a_damaged_graph_says_which_line_and_what_to_do(
    spoil: Callable[[str], str], place: str, what: str, tmp_path: Path
) -> None:
    path = tmp_path / "chip.graphml"
    path.write_text(spoil(GOOD))
    with pytest.raises(SpecError) as caught:
        read_topology(path)
    assert what in caught.value.what and caught.value.fix
    assert caught.value.place == f"{path}{place}"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({("r0", "r1"): "r2"}, "no link leads from r0 to 'r2'"),
        ({("r9", "r1"): "r1"}, "no router 'r9'"),
        ({("r1", "r2"): "r0"}, "packets go round for ever: r0, r1, r0"),
        ({("r1", "r2"): ""}, "has no next"),
        ({("r1", "r2"): None}, "r1 knows no way to r2, on the route from r0"),
    ],
)
def test_routes_that_do_not_arrive_say_where(
    change: dict[tuple[str, str], str | None], what: str, tmp_path: Path
) -> None:
    (tmp_path / "chip.graphml").write_text(GOOD)
    topology = read_topology(tmp_path / "chip.graphml")
    rows = {ends: after for ends, after in {**LINE, **change}.items() if after is not None}
    (tmp_path / "routes.csv").write_text(table(rows))
    with pytest.raises(SpecError) as caught:
        read_routes(tmp_path / "routes.csv", topology)
    assert what in caught.value.what and caught.value.fix
    assert caught.value.place.startswith(str(tmp_path / "routes.csv"))


def test_a_second_way_to_the_same_place_is_refused_with_both_lines(tmp_path: Path) -> None:
    (tmp_path / "chip.graphml").write_text(GOOD)
    topology = read_topology(tmp_path / "chip.graphml")
    (tmp_path / "routes.csv").write_text(table(LINE) + "r0,r1,r1\n")
    with pytest.raises(SpecError, match=r"two ways to r1, the first at .*routes\.csv:2"):
        read_routes(tmp_path / "routes.csv", topology)
