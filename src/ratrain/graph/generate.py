"""Graphs, features and labels out of a seed: the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratrain.graph.csr import Csr, Floats, Ints, csr_of
from ratrain.graph.spec import GraphSource

RMAT = (0.57, 0.19, 0.19)
"""Odds of three quarters of an adjacency matrix, as Graph500 has them."""
TAIL, MOST_DEGREE = 2.5, 2000
"""The exponent of a planted graph's degrees and of its communities' sizes; the largest degree."""
NOISE = 1.5
"""Of a feature, beside the centre of its class."""


def planted(spec: GraphSource) -> tuple[Csr, Ints]:
    """A graph of communities with power-law sizes and degrees, and each node's community. Of the
    edges a part `mixing` leaves its community."""
    draw = np.random.default_rng(spec.seed)
    n = spec.nodes
    community = _communities(draw, n, spec.classes)
    low = spec.degree * (TAIL - 2) / (TAIL - 1)
    degrees = low * (1 - draw.random(n)) ** (-1 / (TAIL - 1))
    ends = np.repeat(
        np.arange(n, dtype=np.int64),
        np.minimum(np.floor(degrees + draw.random(n)), min(MOST_DEGREE, n - 1)).astype(np.int64),
    )
    leaves = draw.random(len(ends)) < spec.mixing
    outside, inside = draw.permutation(ends[leaves]), draw.permutation(ends[~leaves])
    inside = inside[np.argsort(community[inside], kind="stable")]
    pairs = np.concatenate([outside[: len(outside) // 2 * 2], inside[: len(inside) // 2 * 2]])
    source, target = pairs[::2], pairs[1::2]
    apart = source != target
    return csr_of(source[apart], target[apart], n, directed=False), community


def _communities(draw: np.random.Generator, nodes: int, classes: int) -> Ints:
    """Of each node its community: sizes by a power law, at least four for each class."""
    count = max(classes * 4, nodes // 500)
    sizes = (1 - draw.random(count)) ** (-1 / (TAIL - 1))
    edges = np.cumsum(sizes / sizes.sum())
    return np.minimum(np.searchsorted(edges, draw.random(nodes)), count - 1)


def rmat(spec: GraphSource) -> Csr:
    """A Kronecker graph: every edge falls into a quarter of the matrix, of that into a quarter, and
    so on. Its nodes are a power of two, and many of them have no edge."""
    draw = np.random.default_rng(spec.seed)
    bits = max(1, (spec.nodes - 1).bit_length())
    count = int(spec.degree * (1 << bits) / 2)
    source, target = np.zeros((2, count), np.int32)
    a, b, c = RMAT
    for _ in range(bits):
        odds = draw.random(count, dtype=np.float32)
        right = ((odds >= a) & (odds < a + b)) | (odds >= a + b + c)
        source <<= 1
        source += odds >= a + b
        target <<= 1
        target += right
    apart = source != target
    shuffled = draw.permutation(1 << bits).astype(np.int32)
    source = shuffled[source[apart]]
    target = shuffled[target[apart]]
    return csr_of(source, target, 1 << bits, directed=False)


@dataclass(frozen=True)
class DrawnFeatures:
    """Features of nodes by their numbers, never held as a whole: the centre of the node's class and
    noise of its own."""

    classes: Ints
    width: int
    seed: int
    count: int  # classes

    def rows(self, nodes: Ints) -> Floats:
        """Those of some nodes."""
        draw = np.random.default_rng(self.seed)
        centres = draw.standard_normal((self.count, self.width), dtype=np.float32)
        cells = nodes[:, None].astype(np.uint64) * np.uint64(self.width)
        cells = cells + np.arange(self.width, dtype=np.uint64)
        noise = _uniform(cells, np.uint64(self.seed)) * np.float32(NOISE)
        return centres[self.classes[nodes]] + noise


def _uniform(cells: np.ndarray, seed: np.uint64) -> Floats:
    """A number between -1 and 1 for each counter (splitmix64)."""
    with np.errstate(over="ignore"):
        x = (cells + seed * np.uint64(0x2545F4914F6CDD1D)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23)) - np.float32(1)
