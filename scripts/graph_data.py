"""Graphs of others as files that a GRAPH.toml names.

    python scripts/graph_data.py wordnet FOLDER [--from DICT]
    python scripts/graph_data.py debian FOLDER [--from PACKAGES]
    python scripts/graph_data.py ogb FOLDER --from DATASET
    python scripts/graph_data.py pyg FOLDER --from DATA.pt

`wordnet`: WordNet's synsets and pointers (`apt-get install wordnet-base`; DICT is the folder of
`data.noun` and the others). A node's class is its lexicographer file, its features the words of its
gloss. `debian`: packages, and what each depends on, recommends and suggests (PACKAGES is a file of
that name, as mirrors have it; left out, what apt has). A node's class is its section, its features
the words of its description. Of both half of the nodes are learned, drawn by a seed. `ogb`: a
folder of a node data set of the Open Graph Benchmark (`raw`, `split`). `pyg`: the file of one graph
that PyG has saved (`processed/data.pt`), read by PyG: a pickle, so only of whom you trust. FOLDER
gets edges.npy, features.npy, labels.npy, train.npy and a graph.toml that names them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

WIDTH = 128
"""Columns that words are hashed into."""
DICT = Path("/usr/share/wordnet")
LISTS = Path("/var/lib/apt/lists")
HELPER = "/usr/lib/apt/apt-helper"
POINTERS = ("Pre-Depends", "Depends", "Recommends", "Suggests")
TOML = """[graph]
edges = "edges.npy"
directed = {directed}
features = "features.npy"
labels = "labels.npy"
{train}
[model]
kind = "gcn"
layers = 3
hidden = 64
[train]
epochs = 100
learning_rate = 0.01
[memory]
budget = "{budget}"
"""


@dataclass(frozen=True)
class Graph:
    """What is written. `edges`: two rows; `train`: ids, or true and false; None: drawn later."""

    edges: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    train: np.ndarray | None

    @property
    def directed(self) -> bool:
        """Whether an edge has none back."""
        nodes = len(self.labels)
        there, back = (np.unique(a * nodes + b) for a, b in (self.edges, self.edges[::-1]))
        return not np.array_equal(there, back)


# ---- texts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """`to`: names of nodes that it points to, which may not exist."""

    name: str
    label: str
    words: str
    to: tuple[str, ...]


def wordnet(folder: Path) -> Iterator[Node]:
    """Synsets, by part of speech and offset."""
    for part in ("noun", "verb", "adj", "adv"):
        path = folder / f"data.{part}"
        if not path.exists():
            sys.exit(f"{path}: not there; install wordnet-base, or name its folder with --from")
        for line in path.read_text("latin-1").splitlines():
            if not line.startswith(" "):  # of the licence ahead
                yield _synset(line)


def _synset(line: str) -> Node:
    fields, _, gloss = line.partition(" | ")
    words = fields.split()
    offset, file, kind, count = words[0], words[1], words[2], int(words[3], 16)
    at = 4 + 2 * count
    pointers = [words[at + 1 + 4 * n : at + 5 + 4 * n] for n in range(int(words[at]))]
    to = tuple(f"{_part(part)}{offset}" for _, offset, part, _ in pointers)
    return Node(f"{_part(kind)}{offset}", file, gloss, to)


def _part(kind: str) -> str:
    return "a" if kind == "s" else kind  # an adjective's satellite


def debian(path: Path | None) -> Iterator[Node]:
    """Packages of a mirror's index; the first of a name counts."""
    seen: set[str] = set()
    for stanza in _index(path).split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", stanza, re.MULTILINE))
        name = fields.get("Package", "")
        if not name or name in seen:
            continue
        seen.add(name)
        pointers = ",".join(fields.get(each, "") for each in POINTERS)
        names = re.findall(r"(?:^|[,|])\s*([a-z0-9+.-]+)", pointers)
        section = fields.get("Section", "unknown").rpartition("/")[2]
        yield Node(name, section, fields.get("Description", ""), tuple(names))


def _index(path: Path | None) -> str:
    if path is not None:
        return path.read_text("utf-8", errors="replace")
    found = [p for p in LISTS.glob("*_main_binary-*_Packages*") if "security" not in p.name]
    if not found:
        sys.exit(f"{LISTS}: apt has no list of packages; run apt-get update, or name one: --from")
    largest = max(found, key=lambda p: p.stat().st_size)
    command = [HELPER, "cat-file", str(largest)]
    return subprocess.run(command, check=True, capture_output=True).stdout.decode()


def features_of(texts: Iterable[str]) -> np.ndarray:
    """Words hashed into columns, a row of length one a text; all zeros where it has none."""
    rows: list[np.ndarray] = []
    for text in texts:
        columns = [crc32(word.encode()) % WIDTH for word in re.findall(r"[a-z]+", text.lower())]
        rows.append(np.bincount(np.array(columns, dtype=np.int64), minlength=WIDTH))
    counts = np.log1p(np.array(rows, dtype=np.float32))
    lengths = np.linalg.norm(counts, axis=1, keepdims=True)
    return counts / np.maximum(lengths, 1e-6)


def of_nodes(nodes: list[Node]) -> Graph:
    """Edges between names, without those to itself; classes by the names of labels."""
    number = {node.name: n for n, node in enumerate(nodes)}
    pairs = {
        (min(here, there), max(here, there))
        for here, node in enumerate(nodes)
        for name in node.to
        if (there := number.get(name, here)) != here
    }
    edges = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T
    _, labels = np.unique([node.label for node in nodes], return_inverse=True)
    drawn = np.random.default_rng(1).permutation(len(nodes))[: len(nodes) // 2]
    both = np.hstack([edges, edges[::-1]])
    return Graph(both, features_of(node.words for node in nodes), labels, np.sort(drawn))


# ---- data sets --------------------------------------------------------------------------------


def ogb(folder: Path) -> Graph:
    """A node data set as `ogb` unpacks it; of several splits the first by name."""
    raw = folder / "raw"
    edges = _csv(raw / "edge.csv.gz", np.int64).T
    labels = _csv(raw / "node-label.csv.gz", np.float64)[:, 0]
    split = sorted((folder / "split").glob("*/train.csv.gz"))
    if not split:
        sys.exit(f"{folder / 'split'}: no train.csv.gz in any split")
    train = _csv(split[0], np.int64)[:, 0]
    features = _csv(raw / "node-feat.csv.gz", np.float32)
    return Graph(edges, features, np.nan_to_num(labels, nan=-1).astype(np.int64), train)


def _csv(path: Path, kind: type[np.generic]) -> np.ndarray:
    if not path.exists():
        sys.exit(f"{path}: not there; name the folder that has `raw` and `split`: --from")
    return np.loadtxt(path, dtype=kind, delimiter=",", ndmin=2)


def pyg(path: Path) -> Graph:
    """One graph that PyG has saved; of several masks the first."""
    files: Any = import_module("torch_geometric.io.fs")
    loaded: Any = files.torch_load(str(path))
    data = loaded[0] if isinstance(loaded, tuple) else loaded
    held: dict[str, Any] = data if isinstance(data, dict) else data.to_dict()
    for name in ("x", "edge_index", "y"):
        if held.get(name) is None:
            sys.exit(f"{path}: has no {name}")
    mask = held.get("train_mask")
    if mask is not None and mask.dim() > 1:
        mask = mask[:, 0]
    labels = held["y"].reshape(len(held["x"]), -1)[:, 0].long().numpy()
    features = held["x"].float().numpy()
    return Graph(
        held["edge_index"].numpy(), features, labels, None if mask is None else mask.numpy()
    )


# ---- files ------------------------------------------------------------------------------------


def write(graph: Graph, folder: Path, budget: str) -> str:
    """Writes a graph's files; what it is, in words."""
    directed, edges = graph.directed, graph.edges
    if not directed:
        edges = edges[:, edges[0] <= edges[1]]
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"edges": edges, "features": graph.features, "labels": graph.labels}
    if graph.train is not None:
        arrays["train"] = graph.train
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    train = 'train = "train.npy"' if graph.train is not None else ""
    text = TOML.format(budget=budget, directed=str(directed).lower(), train=train)
    (folder / "graph.toml").write_text(text)
    classes = len(np.unique(graph.labels[graph.labels >= 0]))
    return f"{len(graph.labels):,} nodes, {edges.shape[1]:,} edges, {classes} classes"


def made(kind: str, source: Path | None) -> Graph:
    """A graph by the name of its kind."""
    if kind == "wordnet":
        return of_nodes(list(wordnet(source or DICT)))
    if kind == "debian":
        return of_nodes(list(debian(source)))
    if source is None:
        sys.exit(f"{kind}: say where it is: --from")
    return ogb(source) if kind == "ogb" else pyg(source)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graph", choices=("wordnet", "debian", "ogb", "pyg"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--from", type=Path, dest="source")
    parser.add_argument("--budget", default="340MB")
    asked = parser.parse_args()
    print(write(made(asked.graph, asked.source), asked.folder, asked.budget))


if __name__ == "__main__":
    main()
