"""GRAPH.toml and the files that it names: what is read, and what is said of what is wrong."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratrain.errors import SpecError
from ratrain.graph.read import graph_data
from ratrain.graph.spec import GraphSource, read_graph_file

NAMES: dict[str, Any] = {"edges": "edges.npy", "features": "features.npy", "labels": "labels.npy"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A path of five nodes."""
    np.save(tmp_path / "edges.npy", np.array([[0, 1, 2, 3], [1, 2, 3, 4]]))
    np.save(tmp_path / "features.npy", np.arange(15, dtype=np.float32).reshape(5, 3))
    np.save(tmp_path / "labels.npy", np.array([0, 1, -1, 2, 0]))
    return tmp_path


def test_the_same_edges_are_read_from_every_format(folder: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pairs = np.load(folder / "edges.npy")
    np.save(folder / "rows.npy", np.vstack([pairs.T, [[0, 1]]]))  # one of them twice
    lines = "\n".join(f"{a}\t{b}" for a, b in pairs.T)
    (folder / "edges.tsv").write_text(f"# a comment\n{lines}\n\n")
    (folder / "edges.csv").write_text(lines.replace("\t", ","))
    parquet.write_table(arrow.table({"a": pairs[0], "b": pairs[1]}), folder / "edges.parquet")
    for name in ("edges.npy", "rows.npy", "edges.tsv", "edges.csv", "edges.parquet"):
        data = graph_data(GraphSource(**{**NAMES, "edges": name}), folder)
        assert data.graph.columns.tolist() == [1, 0, 2, 1, 3, 2, 4, 3], name
    assert (data.classes, data.is_train.sum()) == (3, 2)
    assert not data.is_train[2]


@pytest.mark.parametrize("form", ["columns", "lists"])
def test_features_labels_and_what_is_learned_are_read_from_parquet_too(
    form: str, folder: Path
) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    np.save(folder / "train.npy", np.array([1, 3]))
    features = np.load(folder / "features.npy")
    columns = {
        "columns": {f"f{n}": features[:, n] for n in range(3)},
        "lists": {"f": arrow.FixedSizeListArray.from_arrays(features.ravel(), 3)},
    }
    tables = {
        "features": columns[form],
        "labels": {"label": np.load(folder / "labels.npy")},
        "train": {"node": np.load(folder / "train.npy")},
    }
    for name, table in tables.items():
        parquet.write_table(arrow.table(table), folder / f"{name}.parquet", row_group_size=2)
    one, two = (
        graph_data(GraphSource("edges.npy", **{n: f"{n}.{end}" for n in tables}), folder)  # type: ignore[arg-type]
        for end in ("npy", "parquet")
    )
    every = np.arange(5)
    assert np.array_equal(one.features.rows(every), two.features.rows(every))
    assert one.labels.tolist() == two.labels.tolist()
    assert one.is_train.tolist() == two.is_train.tolist()
    again = pickle.loads(pickle.dumps(two.features))  # as it goes to another process
    assert np.array_equal(again.rows(every), features)
    assert len(list(folder.iterdir())) == 7  # what it was unpacked to has no name


@pytest.mark.parametrize(
    ("name", "table", "said"),
    [
        ("features", {"a": ["x", "y", "z", "u", "v"]}, "holds string, not numbers"),
        ("features", {"a": [[1.0], [2.0, 3.0], [1.0], [1.0], [1.0]]}, "no Parquet file of numbers"),
        ("labels", {"a": [0, 1, None, 2, 0]}, "holds float64, not whole numbers"),
        ("edges", {"a": [0, 1], "b": [0.5, 1]}, "first two columns are not whole numbers"),
        ("features", None, "no Parquet file of numbers"),
    ],
)
def test_a_parquet_file_that_is_wrong_is_named_with_what_is_wrong(
    name: str, table: dict[str, Any] | None, said: str, folder: Path
) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = folder / f"{name}.parquet"
    if table is None:
        path.write_bytes(b"PAR1 and no more")
    else:
        parquet.write_table(arrow.table(table), path)
    with pytest.raises(SpecError, match=said) as error:
        graph_data(GraphSource(**{**NAMES, name: path.name}), folder)
    assert error.value.place == str(path)
    assert error.value.fix


def test_directed_edges_are_summed_where_they_end(folder: Path) -> None:
    data = graph_data(GraphSource(**NAMES, directed=True), folder)
    assert data.graph.degrees.tolist() == [0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("edges.npy", np.array([[0, 9], [1, 2]]), "names node 9"),
        ("edges.npy", np.array([[0.5, 1], [1, 2]]), "not whole numbers"),
        ("edges.npy", np.zeros((3, 3), int), "no list of pairs"),
        ("edges.npy", b"not numpy", "no array"),
        ("edges.npy", None, "cannot be read"),
        ("features.npy", np.zeros(5), "1 dimensions"),
        ("labels.npy", np.zeros(4, int), "4 labels for 5 nodes"),
        ("labels.npy", np.zeros(5, int), "largest class is 0"),
        ("train.npy", np.array([2]), "none of its nodes has a label"),
        ("train.npy", np.array([7]), "names node 7"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_what_is_wrong(
    name: str, content: np.ndarray | bytes | None, said: str, folder: Path
) -> None:
    path = folder / name
    path.unlink(missing_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content)
    train = "train.npy" if name == "train.npy" else None
    with pytest.raises(SpecError, match=said) as error:
        graph_data(GraphSource(**NAMES, train=train), folder)
    assert error.value.place == str(path)
    assert error.value.fix


def test_features_that_are_no_numbers_are_found_when_they_are_read(folder: Path) -> None:
    features = np.load(folder / "features.npy")
    features[3, 1] = np.nan
    np.save(folder / "features.npy", features)
    data = graph_data(GraphSource(**NAMES), folder)
    with pytest.raises(SpecError, match="node 3"):
        data.features.rows(np.arange(5))


def test_an_edge_that_is_none_is_named_by_its_line(folder: Path) -> None:
    (folder / "edges.txt").write_text("0 1\n1 x\n")
    with pytest.raises(SpecError, match="no edge") as error:
        graph_data(GraphSource(**{**NAMES, "edges": "edges.txt"}), folder)
    assert error.value.place.endswith("edges.txt:2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[graph]\n[memory]\nbudget='1GB'", "either read from `edges` or made"),
        ("[graph]\ngenerate='planted'", '"memory" is missing'),
        ("[graph]\nedges='e.npy'\n[memory]\nbudget='1GB'", "needs features and labels"),
        ("[graph]\ngenerate='rmta'\n[memory]\nbudget='1GB'", "not an allowed value"),
        ("[graph]\ngenerate='rmat'\n[memory]\nbudget=5", "quantity"),
        (
            "[graph]\ngenerate='rmat'\n[memory]\nbudget='1GB'\n[model]\nkind='gat'\nheads=3",
            "3 heads do not divide",
        ),
    ],
)
def test_what_is_wrong_with_a_graph_file_is_said_with_its_place(
    text: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "graph.toml"
    path.write_text(text)
    with pytest.raises(SpecError, match=said) as error:
        read_graph_file(path)
    assert str(path) in error.value.place


@pytest.mark.parametrize("kind", ["planted", "rmat"])
def test_a_generated_graph_follows_from_its_seed(kind: str, tmp_path: Path) -> None:
    source = GraphSource(generate=kind, nodes=500, seed=5)  # type: ignore[arg-type]
    one, two = graph_data(source, tmp_path), graph_data(source, tmp_path)
    assert one.graph.columns.tolist() == two.graph.columns.tolist()
    every = np.arange(one.graph.nodes)
    assert (one.features.rows(every)[7] == two.features.rows(np.array([7]))[0]).all()
    mean = one.graph.edges / one.graph.nodes
    assert 4 < mean < 10
