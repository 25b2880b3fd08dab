"""Small graphs that tests draw, laid out and trained."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratrain.graph.csr import Ints, csr_of
from ratrain.graph.network import Parameters
from ratrain.graph.partition import of_labels
from ratrain.graph.plan import PROCESS_BYTES, Laid, Plan, cut, in_order, planned
from ratrain.graph.process import begun
from ratrain.graph.program import MODES, ONE_SUM, Layout, build, cell_bytes_of
from ratrain.graph.prove import Columns, require_sound
from ratrain.graph.read import GraphData
from ratrain.graph.reference import InMemory, largest_error
from ratrain.graph.spec import GraphFile, GraphSource, MemoryKeys, NetworkShape, TrainKeys
from ratrain.graph.train import Training

KINDS = ("gcn", "sage", "gin", "gat")
OF_SEVERAL = tuple(mode for mode in MODES if mode not in ONE_SUM)
"""Ways of using memory for several processes, and for several open sums."""


@dataclass(frozen=True)
class GivenFeatures:
    """Features that are at hand."""

    array: np.ndarray

    @property
    def width(self) -> int:
        return self.array.shape[1]

    def rows(self, nodes: Ints) -> Any:
        return self.array[nodes]


def drawn_graph(
    seed: int,
    *,
    nodes: int = 60,
    edges: int = 150,
    width: int = 5,
    classes: int = 3,
    directed: bool = False,
) -> GraphData:
    """A graph with isolated nodes, edges of nodes to themselves and labels that are missing."""
    draw = np.random.default_rng(seed)
    ends = draw.integers(0, max(1, nodes * 4 // 5), (2, edges))
    graph = csr_of(ends[0], ends[1], nodes, directed=directed)
    labels = draw.integers(-1, classes, nodes)
    labels[:2] = 0, classes - 1
    is_train = (labels >= 0) & (draw.random(nodes) < 0.6)
    is_train[0] = True
    features = GivenFeatures(draw.standard_normal((nodes, width)))
    return GraphData(graph, features, labels, is_train, classes)


def file_of(kind: str, **more: Any) -> GraphFile:
    """A GRAPH.toml of a small network in float64."""
    train = TrainKeys(precision=more.pop("precision", "float64"), learning_rate=0.05)
    memory = MemoryKeys(1 << 40, **more.pop("memory", {}))
    source = GraphSource(generate="planted", directed=more.pop("directed", False))
    shape: Any = {"kind": kind, "layers": 3, "hidden": 6, "heads": 2, **more}
    return GraphFile(source, memory, NetworkShape(**shape), train)


def laid_out(spec: GraphFile, data: GraphData, parts: int, seed: int = 0) -> Laid:
    """A graph in random partitions, of which some may be empty."""
    labels = np.random.default_rng(seed).integers(0, parts, len(data.labels))
    partition = of_labels(labels, parts)
    return cut(spec, data, in_order(spec, data.graph, partition), partition, "drawn")


def tight(laid: Laid, mode: str, group: int, cells: int | None = None) -> Columns:
    """The proved program in so few cells that data leave and come back. `laid`: in the mode."""
    cell = cell_bytes_of(laid.shape)
    layout = Layout(mode, 1 if mode in ONE_SUM else group, cells or 64, cell)
    shapes = [laid.shape.of(process) for process in range(laid.shape.processes)]
    programs = [build(shape, layout) for shape in shapes]
    return require_sound(programs, {"host": layout.cells * cell})


@contextmanager
def training(spec: GraphFile, laid: Laid, columns: Columns, folder: Path) -> Generator[Training]:
    """A program's training, its features on the disk."""
    crew = begun(spec, plan_of(spec, laid, columns), folder / "tier", folder)
    try:
        crew.training.store_features()
        yield crew.training
    finally:
        crew.close()


def worst_error(spec: GraphFile, laid: Laid, columns: Columns, folder: Path) -> float:
    """Of three epochs' gradients; the bytes moved are held to the plan's."""
    whole = InMemory(laid.data, spec.model.kind, laid.shape.units, spec.train.precision)
    worst = 0.0
    with training(spec, laid, columns, folder) as made:
        for _ in range(3):
            copies: Parameters = {
                name: value.detach().clone().requires_grad_()
                for name, value in made.parameters.items()
            }
            epoch = made.epoch()
            loss = whole.gradients(copies)
            assert epoch.loss == pytest.approx(loss, rel=1e-6)
            for moved in ("read_bytes", "written_bytes", "sent_bytes"):
                planned = sum(getattr(program, moved) for program in columns.programs)
                assert getattr(epoch, moved) == planned, moved
            worst = max(worst, largest_error(made.parameters, copies))
    return worst


def plan_of(spec: GraphFile, laid: Laid, columns: Columns) -> Plan:
    """A plan of a program that was built by hand."""
    roomy = replace(spec.memory, budget_bytes=PROCESS_BYTES * 10, mode="cache")
    return replace(planned(laid, roomy, Path("/")), laid=laid, columns=columns)


def grid_edges(side: int) -> Ints:
    """Of nodes with four neighbours."""
    at = np.arange(side * side).reshape(side, side)
    pairs = (at[:, :-1], at[:, 1:]), (at[:-1], at[1:])
    return np.hstack([np.stack([one.ravel(), other.ravel()]) for one, other in pairs])
