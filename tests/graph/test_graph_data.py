"""Graphs of others, as `scripts/graph_data.py` makes files of them that a GRAPH.toml names."""

from __future__ import annotations

import gzip
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratrain.graph.read import GraphData, graph_data
from ratrain.graph.spec import read_graph_file

SCRIPT = Path(__file__).parents[2] / "scripts" / "graph_data.py"


@pytest.fixture(name="script", scope="module")
def script_module() -> Any:
    spec = spec_from_file_location("graph_data", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = sys.modules["graph_data"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_back(script: Any, kind: str, source: Path, folder: Path) -> GraphData:
    """What ratrain reads of a graph that the script has written."""
    script.write(script.made(kind, source), folder, "500MB")
    return graph_data(read_graph_file(folder / "graph.toml").graph, folder)


def edges_of(data: GraphData) -> set[tuple[int, int]]:
    """(from, to)"""
    return set(zip(data.graph.columns.tolist(), data.graph.rows().tolist(), strict=True))


SYNSETS = {
    "noun": "  1 a licence\n"
    "00000001 03 n 02 thing 0 object 1 002 @ 00000002 n 0000 + 00000001 v 0101 | a thing\n"
    "00000002 04 n 01 all 0 000 | everything there is\n",
    "verb": "00000001 29 v 01 be 0 001 + 00000001 n 0101 01 + 02 00 | be\n",
    "adj": "00000005 00 s 01 big 0 001 & 00000007 a 0000 | large\n"
    "00000007 00 a 01 large 0 000 | big\n",
    "adv": "00000001 02 r 01 so 0 000 | so\n",
}


def test_synsets_are_nodes_and_pointers_edges(script: Any, tmp_path: Path) -> None:
    for part, text in SYNSETS.items():
        (tmp_path / f"data.{part}").write_text(text, "latin-1")
    data = read_back(script, "wordnet", tmp_path, tmp_path / "graph")
    both = {(0, 1), (0, 2), (3, 4)}
    assert edges_of(data) == both | {(b, a) for a, b in both}
    assert data.labels.tolist() == [2, 3, 4, 0, 0, 1]  # 03, 04, 29, 00, 00, 02
    assert data.is_train.sum() == 3
    rows = data.features.rows(np.arange(6))
    assert np.allclose(np.linalg.norm(rows, axis=1), 1)
    assert not np.allclose(rows[3], rows[4])


PACKAGES = """Package: a
Depends: b (>= 1.0) | c, missing
Section: libs
Description: one thing

Package: b
Section: contrib/net
Suggests: c
Description: another

Package: c
Section: net
"""


def test_packages_are_nodes_and_dependencies_edges(script: Any, tmp_path: Path) -> None:
    (tmp_path / "Packages").write_text(PACKAGES)
    data = read_back(script, "debian", tmp_path / "Packages", tmp_path / "graph")
    both = {(0, 1), (0, 2), (1, 2)}
    assert edges_of(data) == both | {(b, a) for a, b in both}
    assert data.labels.tolist() == [0, 1, 1]
    assert not data.features.rows(np.array([2])).any()


def test_a_folder_of_ogb_keeps_its_split_and_the_direction_of_its_edges(
    script: Any, tmp_path: Path
) -> None:
    files = {
        "raw/edge": "0,1\n1,2\n3,0\n",
        "raw/node-feat": "0.5,1\n2,3\n4,5\n6,7\n",
        "raw/node-label": "0\n1\nnan\n1\n",
        "split/time/train": "0\n3\n",
    }
    for name, text in files.items():
        path = tmp_path / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))
    data = read_back(script, "ogb", tmp_path, tmp_path / "graph")
    assert edges_of(data) == {(0, 1), (1, 2), (3, 0)}
    assert data.labels.tolist() == [0, 1, -1, 1]
    assert data.is_train.tolist() == [True, False, False, True]
    assert data.features.rows(np.array([0]))[0].tolist() == [0.5, 1.0]


@pytest.mark.slow
def test_a_graph_that_pyg_saved_is_read_as_pyg_has_it(script: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    data_of = pytest.importorskip("torch_geometric.data").Data
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    saved = data_of(x=torch.eye(3), edge_index=edges, y=torch.tensor([1, 0, 1]))
    saved.train_mask = torch.tensor([True, False, True])
    for number, value in enumerate((saved, (saved.to_dict(), None, data_of))):
        torch.save(value, tmp_path / f"data{number}.pt")
        data = read_back(script, "pyg", tmp_path / f"data{number}.pt", tmp_path / f"g{number}")
        assert edges_of(data) == {(0, 1), (1, 0), (1, 2), (2, 1)}
        assert data.labels.tolist() == [1, 0, 1]
        assert data.is_train.tolist() == [True, False, True]


@pytest.mark.parametrize("kind", ["wordnet", "ogb", "pyg"])
def test_what_is_not_there_is_said_with_what_brings_it(
    script: Any, kind: str, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=r"--from"):
        script.made(kind, None if kind == "pyg" else tmp_path)
