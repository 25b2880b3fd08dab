"""Bytes of an epoch by every way of using memory, counted from its program; nothing is trained.

    python benchmarks/graph/policies.py --nodes 200000 --parts 32 --kind gcn

A community graph with power-law degrees, a Kronecker graph and a grid are cut; memory for rows of
partitions is a part of a hidden layer's rows. Reads and writes are in such layers. Of each way the
number of open sums that moves the fewest bytes, all of them within the same memory: sums that are
open take theirs from the rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ratrain.errors import Infeasible
from ratrain.graph.csr import Csr, csr_of
from ratrain.graph.partition import partitioned
from ratrain.graph.plan import Laid, cut, in_order
from ratrain.graph.program import MODES, ONE_SUM, GraphProgram, Layout, build, cell_bytes_of
from ratrain.graph.prove import require_sound
from ratrain.graph.read import GraphData, graph_data
from ratrain.graph.spec import GraphFile, GraphSource, MemoryKeys, NetworkShape, TrainKeys

FRACTIONS = (0.125, 0.25, 0.5, 1.0, 2.0)


def grid(side: int) -> Csr:
    """Nodes with four neighbours."""
    at = np.arange(side * side).reshape(side, side)
    across, down = (at[:, :-1], at[:, 1:]), (at[:-1], at[1:])
    source, target = (
        np.concatenate([a.ravel(), b.ravel()]) for a, b in zip(across, down, strict=True)
    )
    return csr_of(source, target, side * side, directed=False)


def data_of(name: str, options: argparse.Namespace) -> GraphData:
    source = GraphSource(
        generate="rmat" if name == "rmat" else "planted",
        nodes=options.nodes,
        features_width=options.width,
    )
    data = graph_data(source, Path())
    if name != "grid":
        return data
    graph = grid(int(options.nodes**0.5))
    cut_off = slice(graph.nodes)
    return replace(data, graph=graph, labels=data.labels[cut_off], is_train=data.is_train[cut_off])


def laid_out(name: str, options: argparse.Namespace) -> Laid:
    data = data_of(name, options)
    shape = NetworkShape(options.kind, hidden=options.width)
    spec = GraphFile(GraphSource(generate="planted"), MemoryKeys(1), shape, TrainKeys())
    partition, how = partitioned(data.graph, options.parts, options.partitioner, 1, directed=False)
    return cut(spec, data, in_order(spec, data.graph, partition), partition, how)


def tried(laid: Laid, mode: str, budget_bytes: float) -> Iterator[GraphProgram]:
    """With as many open sums as there may be."""
    laid = laid.in_mode(mode)
    cell = cell_bytes_of(laid.shape)
    for group in (1,) if mode in ONE_SUM else (1, 2, 4, 8, 16, 32):
        more = laid.working_bytes(group) - laid.working_bytes(1)
        cells = int(budget_bytes - more) // cell
        if group <= laid.shape.parts and cells > 0:
            try:
                yield build(laid.shape, Layout(mode, group, cells, cell))
            except Infeasible:
                continue


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--parts", type=int, default=32)
    parser.add_argument("--kind", default="gcn")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--partitioner", default="auto")
    parser.add_argument("--graphs", default="planted,rmat,grid")
    parser.add_argument("--modes", default=",".join(MODES))
    options = parser.parse_args()
    for name in options.graphs.split(","):
        laid = laid_out(name, options)
        shape = laid.shape
        layer = int(shape.sizes.sum()) * options.width * shape.element_bytes
        dep = (shape.entries > 0).sum(1).mean()
        print(f"{name}: {laid.nodes:,} nodes, {laid.edges:,} edges, {shape.parts} by ", end="")
        print(f"{laid.partitioner}; a = {laid.expansion:.2f}; {dep:.1f} sources a sum", flush=True)
        for mode in options.modes.split(","):
            cells: list[str] = []
            for fraction in FRACTIONS:
                programs = list(tried(laid, mode, fraction * layer))
                if not programs:
                    cells.append(f"{'does not fit':>18}")
                    continue
                best = min(programs, key=lambda each: each.read_bytes + each.written_bytes)
                require_sound([best], {})
                moved = f"{best.read_bytes / layer:.2f} / {best.written_bytes / layer:.2f}"
                cells.append(f"{moved + f' ({best.layout.group})':>18}")
            print(f"  {mode:10}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
