"""`ratrain noc topology`: a network of any shape, from files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ratrain.cli.chips.noc_models import chip_file
from ratrain.cli.chips.noc_options import JSON
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import FilePath, Real

if TYPE_CHECKING:
    from ratrain.chip.noc.topology import Routes


@click.command()
@click.argument("graph", type=FilePath(path_type=Path))
@click.option(
    "--routes",
    type=FilePath(path_type=Path),
    required=True,
    help="A .csv file with the columns router, destination, next; or a folder with ROUTER.csv of "
    "each, with destination, next.",
)
@click.option(
    "--chip",
    is_flag=True,
    help="Print the file of a chip with this network, which a device of a cluster file may name.",
)
@click.option("--clock", type=Real(0.001, 100), default=1.0, show_default=True, help="In GHz.")
@JSON
def topology(graph: Path, routes: Path, chip: bool, clock: float, as_json: bool) -> None:
    """Check the routes of a network of any shape, from a .graphml file.

    Nodes are routers, each with a network interface unless its data "ni" is false. Every interface
    must reach every other one, and no circle of links may be such that each is held while the next
    is waited for: else some timing of packets deadlocks.

    \b
    Example:
      ratrain noc topology chip.graphml --routes routes.csv --chip > chip.toml
    """
    from ratrain.chip.noc.topology import read_routes, read_topology

    found = read_routes(routes, read_topology(graph))
    found.require_no_deadlock()
    figures = _figures(found)
    text = _chip_text(found, clock) if chip else None
    if as_json:
        print_json("noc topology", {**figures, **({} if text is None else {"chip": text})})
    elif text is not None:
        click.echo(text)
    else:
        click.echo("\n".join(_lines(figures)))


def _figures(routes: Routes) -> dict[str, int | float]:
    from collections import Counter

    lengths = [len(route) for route in routes.all]
    busiest = max(Counter(link for route in routes.all for link in route).values())
    interfaces = len(routes.topology.interfaces)
    return {
        "routers": len(routes.topology.routers),
        "interfaces": interfaces,
        "links": len(routes.topology.links),
        "longest_route_hops": max(lengths),
        "mean_route_hops": sum(lengths) / len(lengths),
        "busiest_link_routes": busiest,
        "most_uniform_load": min(1.0, (interfaces - 1) / busiest),
    }


def _lines(figures: dict[str, int | float]) -> list[str]:
    return [
        f"{figures['routers']} routers, {figures['interfaces']} with an interface, "
        f"{figures['links']} links, one way each",
        f"routes: all whole, {figures['longest_route_hops']} links at most, "
        f"{figures['mean_route_hops']:.2f} in the mean; they cannot deadlock",
        f"busiest link: {figures['busiest_link_routes']} routes",
        "uniform traffic: at most "
        f"{figures['most_uniform_load']:.3f} flits per interface and cycle",
    ]


def _chip_text(routes: Routes, clock_ghz: float) -> str:
    from ratrain.chip.noc.costs import collective_costs
    from ratrain.chip.noc.topology import tree_of

    tree = tree_of(routes)
    lines = [
        f"columns = {len(tree.hops)}  # devices, in the order of {Path(routes.topology.file).name}",
        "rows = 1",
        f"clock_ghz = {clock_ghz:g}",
        'has = "software"  # trees of messages: multicast and reduction in routers need a mesh',
        f"tree_hops = {list(tree.hops)}",
        f"tree_shares = {list(tree.shares)}",
        'source = "ratrain noc topology: imported routes, messages as fitted to a simulated mesh"',
    ]
    return chip_file(collective_costs(), lines, {"tree": "software"})
