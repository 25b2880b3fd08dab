"""Which nodes lie together: partitions with few edges between them, of about the same size.

KaMinPar where it is installed, or METIS; else label propagation of our own, which needs nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ratrain.errors import SpecError
from ratrain.graph.csr import Csr, Ints, csr_of

SLACK = 0.05
"""By how much a partition may be larger than the mean."""
ROUNDS = 15
MOST_EDGES = 1 << 22
"""Whose neighbours' partitions are counted at once: a count takes some 50 bytes an edge."""
PARHIP_PLAIN = 3
"""The header of a binary graph without weights, with numbers of 64 bits."""


@dataclass(frozen=True)
class Partition:
    """The nodes in a new order, partition by partition, and where each begins."""

    order: Ints  # the old number of each new one
    bounds: Ints

    @property
    def count(self) -> int:
        return len(self.bounds) - 1

    @property
    def sizes(self) -> Ints:
        return np.diff(self.bounds)

    @property
    def new_of_old(self) -> Ints:
        numbers = np.empty_like(self.order)
        numbers[self.order] = np.arange(len(self.order))
        return numbers


def partitioned(
    graph: Csr, parts: int, how: str, seed: int, *, directed: bool
) -> tuple[Partition, str]:
    """The graph's partition, and by what it was made. `how`: auto, or a name of `PARTITIONERS`;
    `directed`: whether an edge may have none back."""
    if parts == 1:
        return Partition(np.arange(graph.nodes), np.array([0, graph.nodes])), "none"
    if how == "auto":
        how = next(name for name, by in PARTITIONERS.items() if by.installed)
    by = PARTITIONERS[how]
    if not by.installed:
        raise SpecError(
            f"needs the package {by.package}, which is not installed",
            place="[memory] partitioner",
            fix=f'pip install "ratrain[{by.extra}]", or write partitioner = "own"',
        )
    return of_labels(by.cut(graph, directed, parts, seed), parts), how


def expansion(graph: Csr, partition: Partition) -> float:
    """Rows that partitions need, their own and others', over all rows; of the graph in the
    partition's order."""
    needed, bounds = 0, partition.bounds.tolist()
    for first, end in pairwise(bounds):
        columns = np.unique(graph.columns[graph.starts[first] : graph.starts[end]])
        needed += end - first + int(((columns < first) | (columns >= end)).sum())
    return needed / graph.nodes


def of_labels(labels: Ints, parts: int) -> Partition:
    """The partition of nodes by the number of theirs."""
    counts = np.bincount(labels, minlength=parts)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    return Partition(np.argsort(labels, kind="stable"), bounds)


def _by_kaminpar(graph: Csr, directed: bool, parts: int, seed: int) -> Ints:
    """Through a file, which is how its wheel takes a graph. It takes symmetric ones, without edges
    of a node to itself."""
    kaminpar: Any = import_module("kaminpar")
    undirected = _undirected(graph, directed)
    with tempfile.TemporaryDirectory(prefix="ratrain-graph-") as folder:
        path = Path(folder) / "graph.parhip"
        begins = 8 * (3 + graph.nodes + 1)
        with path.open("wb") as file:
            np.array([PARHIP_PLAIN, graph.nodes, undirected.edges], np.uint64).tofile(file)
            (undirected.starts * 8 + begins).astype(np.uint64).tofile(file)
            for at in range(0, undirected.edges, MOST_EDGES):
                undirected.columns[at : at + MOST_EDGES].astype(np.uint64).tofile(file)
        del undirected
        read = kaminpar.load_graph(str(path), kaminpar.GraphFileFormat.PARHIP)
        kaminpar.reseed(seed % 2**31)
        solver = kaminpar.KaMinPar(1, kaminpar.default_context())  # one thread: the same each time
        return np.asarray(solver.compute_partition(read, parts, SLACK), dtype=np.int64)


def _by_metis(graph: Csr, directed: bool, parts: int, seed: int) -> Ints:
    """K-way. It may leave partitions empty in a graph of few nodes."""
    metis: Any = import_module("pymetis")
    undirected = _undirected(graph, directed)
    kind: Any = metis.zero_copy_dtype()
    # METIS counts by how much in thousandths, and its seeds have 31 bits.
    options = metis.Options(seed=seed % 2**31, ufactor=round(SLACK * 1000))
    edges = metis.CSRAdjacency(undirected.starts.astype(kind), undirected.columns.astype(kind))
    del undirected
    _, labels = metis.part_graph(parts, edges, recursive=False, options=options)
    return np.asarray(labels, dtype=np.int64)


def _undirected(graph: Csr, directed: bool) -> Csr:
    """The graph with every edge both ways, and none of a node to itself."""
    apart = graph.rows() != graph.columns
    if directed:
        return csr_of(graph.rows()[apart], graph.columns[apart], graph.nodes, directed=False)
    if apart.all():
        return graph
    before = np.concatenate([[0], np.cumsum(apart)])
    return Csr(before[graph.starts], graph.columns[apart])


def _by_propagation(graph: Csr, directed: bool, parts: int, seed: int) -> Ints:
    """Every node to the partition of most of its neighbours that has room, some rounds long
    (Spinner, arXiv 1404.3861)."""
    draw = np.random.default_rng(seed)
    n, most = graph.nodes, int(np.ceil((1 + SLACK) * graph.nodes / parts))
    labels = draw.permutation(n) * parts // n
    undirected = _undirected(graph, directed)
    runs = _runs(undirected)
    for _ in range(ROUNDS):
        sizes = np.bincount(labels, minlength=parts)
        wanted = labels.copy()
        for run in runs:
            wanted[run] = _most_common(undirected, run, labels, sizes / most)
        movers = draw.permutation(np.flatnonzero(wanted != labels))
        movers = movers[np.argsort(wanted[movers], kind="stable")]
        counts = np.bincount(wanted[movers], minlength=parts)
        rank = np.arange(len(movers)) - np.repeat(np.cumsum(counts) - counts, counts)
        movers = movers[rank < (most - sizes)[wanted[movers]]]
        labels[movers] = wanted[movers]
        if len(movers) < n / 1000:
            break
    return labels


def _runs(graph: Csr) -> list[slice]:
    """Nodes in runs of at most so many edges, but for a node that has more."""
    cuts = np.searchsorted(graph.starts, np.arange(0, graph.edges, MOST_EDGES), "right") - 1
    bounds = [0, *sorted({int(cut) for cut in cuts[1:] if cut > 0}), graph.nodes]
    return [slice(*ends) for ends in pairwise(bounds)]


def _most_common(graph: Csr, run: slice, labels: Ints, fullness: np.ndarray) -> Ints:
    """For each node of a run the label most common among its neighbours, less how full that
    partition is."""
    parts, starts = len(fullness), graph.starts[run.start : run.stop + 1]
    columns, degrees = graph.columns[starts[0] : starts[-1]], np.diff(starts)
    keys = np.repeat(np.arange(len(degrees), dtype=np.int64), degrees) * parts
    keys += labels[columns]
    keys.sort()
    first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]]) if len(keys) else keys
    counts = np.diff(np.append(first, len(keys)))
    node, label = np.divmod(keys[first], parts)
    score = counts / degrees[node] - fullness[label]
    best = labels[run].copy()
    order = np.lexsort((score, node))
    last = np.flatnonzero(np.r_[node[order][1:] != node[order][:-1], True]) if len(node) else order
    best[node[order][last]] = label[order][last]
    return best


@dataclass(frozen=True)
class Partitioner:
    """A way to cut nodes: given the graph, whether it is directed, partitions and a seed.
    `package`: that it needs, which `extra` brings."""

    cut: Callable[[Csr, bool, int, int], Ints]
    package: str = ""
    extra: str = ""

    @property
    def installed(self) -> bool:
        return not self.package or find_spec(self.package) is not None


PARTITIONERS = {
    "kaminpar": Partitioner(_by_kaminpar, "kaminpar", "graph"),
    "metis": Partitioner(_by_metis, "pymetis", "metis"),
    "own": Partitioner(_by_propagation),
}
"""By name; `auto` is the first that is installed."""
