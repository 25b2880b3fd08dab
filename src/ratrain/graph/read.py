"""The graph of a GRAPH.toml: read from its files, or generated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ratrain.errors import SpecError
from ratrain.graph.csr import Csr, Floats, Ints, csr_of
from ratrain.graph.generate import DrawnFeatures, planted, rmat
from ratrain.graph.parquet import parquet_array, parquet_on_disk
from ratrain.graph.spec import GraphSource
from ratrain.readers.arrays import map_array
from ratrain.readers.files import read_text
from ratrain.readers.limits import PROGRAM_BYTES

NO_LABEL = -1


class Features(Protocol):
    """Features of nodes, read when they are asked for."""

    @property
    def width(self) -> int: ...

    def rows(self, nodes: Ints) -> Floats: ...


@dataclass(frozen=True)
class MappedFeatures:
    """Those of a file."""

    array: npt.NDArray[Any]
    path: Path

    def __reduce__(self) -> tuple[Callable[[Path], MappedFeatures], tuple[Path]]:
        """To another process goes the file's name, which it maps itself."""
        return mapped_features, (self.path,)

    @property
    def width(self) -> int:
        return int(self.array.shape[1])

    def rows(self, nodes: Ints) -> Floats:
        """Those of some nodes; a SpecError where one is no finite number."""
        rows = np.asarray(self.array[nodes], dtype=np.result_type(self.array.dtype, np.float32))
        bad = np.flatnonzero(~np.isfinite(rows).all(1))
        if len(bad):
            raise SpecError(
                f"the features of node {nodes[bad[0]]} are not all finite numbers",
                place=str(self.path),
                fix="replace what is missing, as with numpy.nan_to_num",
            )
        return rows


def mapped_features(path: Path) -> MappedFeatures:
    """The features of a file."""
    if path.suffix == ".parquet":
        return MappedFeatures(parquet_on_disk(path), path)
    return MappedFeatures(map_array(path, "numbers", 2), path)


def _column(path: Path, kind: str) -> npt.NDArray[Any]:
    """The array of a file, or the first column of a table."""
    if path.suffix != ".parquet":
        return map_array(path, kind, 1)
    array = parquet_array(path, 1)[:, 0]
    if array.dtype.kind not in "biu":
        what = f"its first column holds {array.dtype}, not {kind}"
        raise SpecError(what, place=str(path), fix=f"save {kind}, and none missing")
    return array


@dataclass(frozen=True)
class GraphData:
    """A graph with what is learned of it."""

    graph: Csr
    features: Features
    labels: Ints  # NO_LABEL where a node has none
    is_train: npt.NDArray[np.bool_]  # nodes whose labels are learned
    classes: int


def graph_data(spec: GraphSource, folder: Path) -> GraphData:
    """What the file describes; names in it are of files beside it, in `folder`."""
    if spec.edges is None:
        graph, community = planted(spec) if spec.generate == "planted" else (rmat(spec), None)
        if community is None:
            community = np.random.default_rng(spec.seed).permutation(graph.nodes)
        labels = community % spec.classes
        features: Features = DrawnFeatures(labels, spec.features_width, spec.seed, spec.classes)
        classes = spec.classes
    else:
        assert spec.features is not None and spec.labels is not None
        features_at, labels_at = folder / spec.features, folder / spec.labels
        features = mapped_features(features_at)
        nodes = len(features.array)
        if nodes < 2 or not features.width:
            raise SpecError("no features of two nodes", place=str(features_at), fix="add nodes")
        labels = _labels(labels_at, nodes)
        classes = int(labels.max()) + 1
        graph = _edges(folder / spec.edges, nodes, spec)
    is_train = _learned(spec, folder, labels)
    return GraphData(graph, features, labels, is_train, classes)


def _labels(path: Path, nodes: int) -> Ints:
    labels = np.asarray(_column(path, "whole numbers"), dtype=np.int64)
    if len(labels) != nodes:
        raise SpecError(
            f"has {len(labels):,} labels for {nodes:,} nodes",
            place=str(path),
            fix="save a label for each row of the features; -1 where there is none",
        )
    labels = np.maximum(labels, NO_LABEL)
    if labels.max() < 1 or labels.max() >= 1 << 20:
        raise SpecError(
            f"its largest class is {labels.max()}", place=str(path), fix="number classes from 0"
        )
    return labels


def _learned(spec: GraphSource, folder: Path, labels: Ints) -> npt.NDArray[np.bool_]:
    is_train = np.zeros(len(labels), bool)
    if spec.train is None:
        labelled = np.flatnonzero(labels != NO_LABEL)
        count = max(1, round(spec.train_part * len(labelled)))
        drawn = np.random.default_rng(spec.seed).permutation(labelled)[:count]
        is_train[drawn] = True
        return is_train
    path = folder / spec.train
    ids = np.asarray(_column(path, "whole numbers or true and false"))
    if ids.dtype.kind == "b":
        if len(ids) != len(labels):
            what = f"has {len(ids):,} values for {len(labels):,} nodes"
            raise SpecError(what, place=str(path), fix="save one for each node")
        ids = np.flatnonzero(ids)
    _check_ids(ids, len(labels), path)
    is_train[ids] = True
    is_train &= labels != NO_LABEL
    if not is_train.any():
        what = "none of its nodes has a label"
        raise SpecError(what, place=str(path), fix="name nodes with labels")
    return is_train


def _edges(path: Path, nodes: int, spec: GraphSource) -> Csr:
    pairs = _pairs(path)
    _check_ids(pairs, nodes, path)
    return csr_of(pairs[0], pairs[1], nodes, directed=spec.directed)


def _check_ids(ids: npt.NDArray[Any], nodes: int, path: Path) -> None:
    if ids.size and not (ids.min() >= 0 and ids.max() < nodes):
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise SpecError(
            f"names node {wrong}, and the features have {nodes:,} rows",
            place=str(path),
            fix="number nodes from 0, by the rows of the features",
        )


def _pairs(path: Path) -> Ints:
    """Two rows: where edges begin, and where they end."""
    if path.suffix == ".npy":
        array = map_array(path, "whole numbers", 2)
        if array.shape[0] == 2:
            return np.asarray(array, dtype=np.int64)
        if array.shape[1] == 2:
            return np.ascontiguousarray(np.asarray(array, dtype=np.int64).T)
        what = f"an array of {array.shape[0]} x {array.shape[1]} is no list of pairs"
        raise SpecError(what, place=str(path), fix="save two rows, or rows of two")
    if path.suffix == ".parquet":
        return _parquet_pairs(path)
    return _text_pairs(read_text(path, PROGRAM_BYTES), str(path))


def _parquet_pairs(path: Path) -> Ints:
    pairs = parquet_array(path, 2)
    if pairs.dtype.kind not in "iu" or pairs.shape[1] < 2:
        what = "its first two columns are not whole numbers"
        raise SpecError(what, place=str(path), fix="put source and target first")
    return np.ascontiguousarray(pairs[:, :2].T, dtype=np.int64)


def _text_pairs(text: str, file: str) -> Ints:
    """Of a text with a pair of numbers a line; # and % begin a comment."""
    words: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        pair = line.replace(",", " ").split()
        if not pair or pair[0][0] in "#%":
            continue
        if len(pair) != 2 or not all(word.isascii() and word.isdigit() for word in pair):
            raise SpecError(
                f"{line.strip()[:60]!r} is no edge",
                place=f"{file}:{number}",
                fix="write two numbers of nodes a line; # begins a comment",
            )
        words += pair
    try:
        return np.array(words, dtype=np.int64).reshape(-1, 2).T.copy()
    except OverflowError:
        raise SpecError("a number is too large", place=file, fix="number nodes from 0") from None
