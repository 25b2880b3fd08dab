"""A graph as rows of in-neighbours, and the matrices that layers aggregate with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Ints32 = npt.NDArray[np.int32]
Floats = npt.NDArray[np.floating]

_AT_ONCE = 1 << 22
"""Entries that are worked on at once, where what is made of them meanwhile is larger."""


@dataclass(frozen=True)
class Csr:
    """Row `v` holds the nodes with an edge to `v`, in ascending order, each once."""

    starts: Ints  # of each row, and the end of the last
    columns: Ints32

    @property
    def nodes(self) -> int:
        return len(self.starts) - 1

    @property
    def edges(self) -> int:
        return len(self.columns)

    @property
    def degrees(self) -> Ints:
        return np.diff(self.starts)

    def rows(self) -> Ints32:
        """The row of each entry."""
        return np.repeat(np.arange(self.nodes, dtype=np.int32), self.degrees)


def csr_of(source: Ints | Ints32, target: Ints | Ints32, nodes: int, *, directed: bool) -> Csr:
    """The graph of edges from `source` to `target`; an edge that comes twice counts once."""
    keys = np.empty((1 if directed else 2) * len(source), dtype=np.int64)
    _keys(target, source, nodes, keys[: len(source)])
    if not directed:
        _keys(source, target, nodes, keys[len(source) :])
    keys.sort()
    return _of_keys(keys, nodes)


def _keys(row: np.ndarray, column: np.ndarray, nodes: int, out: Ints) -> None:
    """An edge as one number, in place: a graph of 100 M edges has 0.8 GB of them."""
    np.multiply(row, nodes, out=out, dtype=np.int64)
    out += column


def _of_keys(keys: Ints, nodes: int) -> Csr:
    """The graph of sorted keys: target times nodes plus source."""
    if len(keys) and not (first := np.r_[True, keys[1:] != keys[:-1]]).all():
        keys = keys[first]
    starts = np.searchsorted(keys, np.arange(nodes + 1, dtype=np.int64) * nodes)
    columns = np.empty(len(keys), dtype=np.int32)
    for at in range(0, len(keys), _AT_ONCE):
        columns[at : at + _AT_ONCE] = keys[at : at + _AT_ONCE] % nodes
    return Csr(starts, columns)


def renumbered(graph: Csr, new_of_old: Ints) -> Csr:
    """The same graph with other numbers of its nodes."""
    keys = new_of_old[graph.rows()]
    keys *= graph.nodes
    keys += new_of_old.astype(np.int32)[graph.columns]
    keys.sort()
    return _of_keys(keys, graph.nodes)


def with_loops(graph: Csr) -> Csr:
    """The graph with an edge from every node to itself."""
    keys = np.empty(graph.edges + graph.nodes, dtype=np.int64)
    _keys(graph.rows(), graph.columns, graph.nodes, keys[: graph.edges])
    keys[graph.edges :] = np.arange(graph.nodes, dtype=np.int64) * (graph.nodes + 1)
    keys.sort()
    return _of_keys(keys, graph.nodes)


@dataclass(frozen=True)
class Matrix:
    """A sparse matrix over the graph's nodes: what a row's neighbours count in its sum."""

    pattern: Csr
    values: Floats

    def transposed(self) -> Matrix:
        """The matrix by columns: what the rows that read a node count of it."""
        order = np.argsort(self.pattern.columns, kind="stable")
        counts = np.bincount(self.pattern.columns, minlength=self.pattern.nodes)
        starts = np.concatenate([[0], np.cumsum(counts)])
        return Matrix(Csr(starts, self.pattern.rows()[order]), self.values[order])


def aggregation(graph: Csr, kind: str, dtype: str) -> Matrix:
    """The matrix of a kind of network: `gcn` the symmetrically normalised neighbours with the node
    itself, `sage` their mean, `gin` their sum and the node itself, `gat` ones with the node."""
    if kind == "sage":
        counts = np.maximum(graph.degrees, 1)
        return Matrix(graph, np.repeat(1 / counts, graph.degrees).astype(dtype))
    if kind == "gin":
        looped = with_loops(graph)
        values = np.ones(looped.edges, dtype)
        if looped.edges != graph.edges + graph.nodes:  # an edge to itself counts beside the node
            rows = graph.rows()
            own = rows[rows == graph.columns]
            is_loop = looped.columns == looped.rows()
            values[is_loop & np.isin(looped.columns, own)] = 2
        return Matrix(looped, values)
    looped = with_loops(graph)
    if kind == "gat":
        return Matrix(looped, np.ones(looped.edges, dtype))
    scale = looped.degrees.astype(np.float64) ** -0.5
    rows, values = looped.rows(), np.empty(looped.edges, dtype)
    for at in range(0, looped.edges, _AT_ONCE):
        some = slice(at, at + _AT_ONCE)
        values[some] = scale[rows[some]] * scale[looped.columns[some]]
    return Matrix(looped, values)
