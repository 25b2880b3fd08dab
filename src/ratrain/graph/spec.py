"""What GRAPH.toml holds: a graph, a network over it, how it is trained, and in how much memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

from ratrain.describe.amounts import (
    FileName,
    NotNegative,
    Part,
    Positive,
    RateBytesPerS,
    Seed,
    SizeBytes,
    Steps,
    Width,
)
from ratrain.describe.strict import Rule, load
from ratrain.errors import SpecError
from ratrain.readers.toml import read_toml

Nodes = Annotated[int, Rule(low=2, high=2**31 - 1, sample="100000")]
Processes = Annotated[int, Rule(low=1, high=64)]
Parts = Annotated[int, Rule(low=0, high=4096)]
UnitLayers = Annotated[int, Rule(low=1, high=64)]
Classes = Annotated[int, Rule(low=2, high=1 << 20)]
Heads = Annotated[int, Rule(low=1, high=64)]
Mode = Literal["auto", "cache", "lru", "bypass", "regather", "packed", "snapshots", "grinnder"]
MODE_NAMES: tuple[Mode, ...] = tuple(mode for mode in get_args(Mode) if mode != "auto")


@dataclass(frozen=True)
class GraphSource:
    """The graph: files of its own, or one that is generated from a seed."""

    edges: FileName | None = None  # .npy (2 rows, or rows of two), .parquet, or text: a pair a line
    directed: bool = False  # edges go from the first node to the second alone
    features: FileName | None = None  # .npy or .parquet, a row a node, of real numbers
    labels: FileName | None = None  # the same, a class a node; below 0: none
    train: FileName | None = None  # the same, ids of nodes whose labels are learned; else drawn
    train_part: Part = 0.6  # of the labelled nodes, where `train` names none
    generate: Literal["planted", "rmat"] | None = None  # communities; or a Kronecker graph
    nodes: Nodes = 10_000  # of a generated graph; rmat rounds up to a power of two
    degree: Positive = 8.0  # the mean of a generated graph
    mixing: Part = 0.3  # edges of a planted graph that leave their community
    features_width: Width = 128  # of a generated graph
    classes: Classes = 16  # of a generated graph
    seed: Seed = 1  # of what is generated and drawn

    def __post_init__(self) -> None:
        if (self.edges is None) == (self.generate is None):
            raise SpecError(
                "a graph is either read from `edges` or made by `generate`",
                fix='write edges = "edges.npy", or generate = "planted", and not both',
            )
        if self.edges is not None and (self.features is None or self.labels is None):
            raise SpecError(
                "a graph that is read needs features and labels",
                fix='add features = "features.npy" and labels = "labels.npy"',
            )


@dataclass(frozen=True)
class NetworkShape:
    """The network: layers of one kind, ReLU between them."""

    kind: Literal["gcn", "sage", "gin", "gat"] = "gcn"  # sage takes the mean; gin the sum
    layers: UnitLayers = 3
    hidden: Width = 128  # width of every layer but the last
    heads: Heads = 1  # of gat, in every layer but the last


@dataclass(frozen=True)
class TrainKeys:
    """How it is trained: all nodes at once, an optimizer step an epoch."""

    epochs: Steps = 10
    learning_rate: Positive = 0.01
    optimizer: Literal["adam", "sgd"] = "adam"
    weight_decay: NotNegative = 0.0
    seed: Seed = 1  # of the weights
    precision: Literal["float32", "float64"] = "float32"
    checkpoint_every: Steps = 1  # epochs
    keep: Steps = 2  # checkpoints


@dataclass(frozen=True)
class MemoryKeys:
    """In how much memory, and where what does not fit lies meanwhile."""

    budget_bytes: SizeBytes  # of the process, in all; of several each
    disk: FileName | None = None  # a folder for what does not fit; default: in the run's folder
    processes: Processes = 1  # of this machine, which divide the partitions
    parts: Parts = 0  # partitions of the nodes; 0: as the budget asks for
    partitioner: Literal["auto", "kaminpar", "metis", "own"] = "auto"  # auto: the first installed
    mode: Mode = "auto"  # how memory is used; auto: the one that moves the fewest bytes
    disk_read_bytes_per_s: RateBytesPerS = 1.7e9  # of the disk, for the predicted time
    disk_write_bytes_per_s: RateBytesPerS = 1.5e9  # the same of writing
    exchange_bytes_per_s: RateBytesPerS = 1.5e9  # from process to process, the same


@dataclass(frozen=True)
class GraphFile:
    """A GRAPH.toml file."""

    graph: GraphSource
    memory: MemoryKeys
    model: NetworkShape = field(default_factory=NetworkShape)
    train: TrainKeys = field(default_factory=TrainKeys)


def read_graph_file(path: Path) -> GraphFile:
    """The file, or a SpecError with all that is wrong with it."""
    table, place = read_toml(path)
    loaded = load(GraphFile, table, place)
    if loaded.model.kind == "gat" and loaded.model.hidden % loaded.model.heads:
        raise SpecError(
            f"{loaded.model.heads} heads do not divide a width of {loaded.model.hidden}",
            place=str(place.at("model", "heads")),
            fix="use heads that divide `hidden`",
        )
    return loaded
