"""How nodes are cut into partitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ratrain.graph.csr import csr_of
from ratrain.graph.partition import SLACK, partitioned
from ratrain.graph.read import graph_data
from ratrain.graph.spec import GraphSource


@pytest.mark.parametrize("how", ["own", "kaminpar"])
def test_a_partition_has_every_node_once_and_is_even_and_the_same_each_time(
    how: str, tmp_path: Path
) -> None:
    if how == "kaminpar":
        pytest.importorskip("kaminpar")
    graph = graph_data(GraphSource(generate="planted", nodes=3000), tmp_path).graph
    one, by = partitioned(graph, 8, how, 3, directed=False)
    two, _ = partitioned(graph, 8, how, 3, directed=False)
    assert by == how
    assert np.array_equal(one.order, two.order)
    assert np.array_equal(np.sort(one.order), np.arange(graph.nodes))
    assert one.sizes.max() <= np.ceil((1 + SLACK) * graph.nodes / 8) + 1
    part = np.searchsorted(one.bounds, one.new_of_old, "right") - 1
    assert np.mean(part[graph.rows()] != part[graph.columns]) < 0.8  # at random: 7 of 8


@pytest.mark.parametrize("how", ["own", "kaminpar"])
@pytest.mark.parametrize("directed", [False, True])
def test_edges_of_a_node_to_itself_change_no_partition(how: str, directed: bool) -> None:
    if how == "kaminpar":
        pytest.importorskip("kaminpar")
    draw = np.random.default_rng(4)
    ends = draw.integers(0, 300, (2, 900))
    ends = ends[:, ends[0] != ends[1]]
    more = np.hstack([ends, [[7, 9], [7, 9]]])
    plain = csr_of(ends[0], ends[1], 300, directed=directed)
    looped = csr_of(more[0], more[1], 300, directed=directed)
    assert looped.edges == plain.edges + 2
    one, two = (partitioned(g, 4, how, 3, directed=directed)[0] for g in (plain, looped))
    assert np.array_equal(one.order, two.order)
