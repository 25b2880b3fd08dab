"""How nodes are cut into partitions."""

from __future__ import annotations

from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest

from ratrain.errors import SpecError
from ratrain.graph.csr import csr_of
from ratrain.graph.partition import PARTITIONERS, SLACK, partitioned
from ratrain.graph.read import graph_data
from ratrain.graph.spec import GraphSource, MemoryKeys


def needs_package_of(how: str) -> None:
    if not PARTITIONERS[how].installed:
        pytest.skip(f"{PARTITIONERS[how].package} is not installed")


@pytest.mark.parametrize("how", PARTITIONERS)
def test_a_partition_has_every_node_once_and_is_even_and_the_same_each_time(
    how: str, tmp_path: Path
) -> None:
    needs_package_of(how)
    graph = graph_data(GraphSource(generate="planted", nodes=3000), tmp_path).graph
    one, by = partitioned(graph, 8, how, 3, directed=False)
    two, _ = partitioned(graph, 8, how, 3, directed=False)
    assert by == how
    assert np.array_equal(one.order, two.order)
    assert np.array_equal(np.sort(one.order), np.arange(graph.nodes))
    assert one.sizes.max() <= np.ceil((1 + SLACK) * graph.nodes / 8) + 1
    part = np.searchsorted(one.bounds, one.new_of_old, "right") - 1
    assert np.mean(part[graph.rows()] != part[graph.columns]) < 0.8  # at random: 7 of 8


@pytest.mark.parametrize("how", PARTITIONERS)
@pytest.mark.parametrize("directed", [False, True])
def test_edges_of_a_node_to_itself_change_no_partition(how: str, directed: bool) -> None:
    needs_package_of(how)
    draw = np.random.default_rng(4)
    ends = draw.integers(0, 300, (2, 900))
    ends = ends[:, ends[0] != ends[1]]
    more = np.hstack([ends, [[7, 9], [7, 9]]])
    plain = csr_of(ends[0], ends[1], 300, directed=directed)
    looped = csr_of(more[0], more[1], 300, directed=directed)
    assert looped.edges == plain.edges + 2
    one, two = (partitioned(g, 4, how, 3, directed=directed)[0] for g in (plain, looped))
    assert np.array_equal(one.order, two.order)


@pytest.mark.parametrize("how", [name for name, by in PARTITIONERS.items() if by.package])
def test_a_partitioner_that_is_not_installed_is_refused_with_what_installs_it(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ratrain.graph.partition.find_spec", lambda _: None)
    graph = csr_of(np.arange(9), np.arange(1, 10), 10, directed=False)
    with pytest.raises(SpecError, match=PARTITIONERS[how].package) as caught:
        partitioned(graph, 2, how, 1, directed=False)
    assert f'pip install "ratrain[{PARTITIONERS[how].extra}]"' in caught.value.fix
    assert partitioned(graph, 2, "auto", 1, directed=False)[1] == "own"


def test_a_graph_file_may_name_each_partitioner_that_there_is() -> None:
    hint = get_type_hints(MemoryKeys)["partitioner"]
    assert set(get_args(hint)) == {"auto", *PARTITIONERS}
