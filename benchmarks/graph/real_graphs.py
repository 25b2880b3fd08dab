"""Accuracy on graphs with real labels: ours in memory, ours beyond memory, and PyG's.

    python scripts/graph_data.py wordnet GRAPHS/wordnet
    python scripts/graph_data.py debian GRAPHS/debian
    pip install torch_geometric
    python benchmarks/graph/real_graphs.py GRAPHS/wordnet GRAPHS/debian [--kinds gcn,sage,gin,gat]

All begin with the same weights, learn the same nodes for as many epochs with the same Adam, and are
asked in the last epoch's forward. `beyond` has the budget of the graph's file and several
partitions. Accuracy is of the nodes that are not learned; `differs` is the largest difference of a
loss from PyG's in any epoch, over the loss. Seconds are an epoch's median, not of a quiet machine
unless you have one.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ratrain.describe.units import format_bytes
from ratrain.graph.network import Parameters, parameters_of
from ratrain.graph.plan import lay_out, planned
from ratrain.graph.read import NO_LABEL, graph_data
from ratrain.graph.run import open_run
from ratrain.graph.spec import GraphFile, MemoryKeys, NetworkShape, read_graph_file
from ratrain.graph.units import units_of

PARTS = 8


@dataclass(frozen=True)
class Trained:
    """What a contestant reached: of the last epoch's forward."""

    losses: tuple[float, ...]
    learned_right: float
    others_right: float
    epoch_s: float
    moved_bytes: int = 0


def ours(spec: GraphFile, folder: Path) -> Trained:
    """By partitions, or by one where it has the memory."""
    with tempfile.TemporaryDirectory(prefix="real-graph-", dir=folder) as run_folder:
        plan = planned(laid := lay_out(spec, folder), spec.memory, folder)
        del laid
        run, close = open_run(spec, plan, Path(run_folder), Path(run_folder))
        try:
            run.begin(resume=False)
            epochs = list(run.epochs())
        finally:
            close()
    last = epochs[-1]
    return Trained(
        tuple(epoch.loss for epoch in epochs),
        last.learned_right,
        last.others_right or 0.0,
        statistics.median(epoch.time_s for epoch in epochs),
        last.read_bytes + last.written_bytes,
    )


def in_memory(spec: GraphFile, folder: Path) -> Trained:
    return ours(replace(spec, memory=MemoryKeys(8_000_000_000, parts=1)), folder)


def beyond(spec: GraphFile, folder: Path) -> Trained:
    return ours(replace(spec, memory=replace(spec.memory, parts=PARTS, mode="bypass")), folder)


# ---- PyG --------------------------------------------------------------------------------------


def pyg(spec: GraphFile, folder: Path) -> Trained:
    """PyG's layers over the whole graph, from the weights that ours begin with."""
    data, dtype = graph_data(spec.graph, folder), getattr(torch, spec.train.precision)
    edges = torch.from_numpy(np.stack([data.graph.columns, data.graph.rows()]).astype(np.int64))
    features = torch.from_numpy(data.features.rows(np.arange(data.graph.nodes))).to(dtype)
    labels, learned = torch.from_numpy(data.labels), torch.from_numpy(data.is_train)
    others = (labels != NO_LABEL) & ~learned
    units = units_of(spec.model, data.features.width, data.classes)
    begin = parameters_of(units, dtype, spec.train.seed)
    layers = _layers(spec.model, features.shape[1], data.classes, begin, dtype)
    optimizer = torch.optim.Adam(layers.parameters(), spec.train.learning_rate)
    losses: list[float] = []
    times: list[float] = []
    right = torch.zeros(0)
    for _ in range(spec.train.epochs):
        began_s = time.perf_counter()
        rows = features
        for number, layer in enumerate(layers, 1):
            rows = layer(rows, edges)
            rows = rows.relu() if number < len(layers) else rows
        loss = torch.nn.functional.cross_entropy(rows[learned], labels[learned])
        right = rows.argmax(1) == labels
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        times.append(time.perf_counter() - began_s)
    of_learned, of_others = (float(right[some].double().mean()) for some in (learned, others))
    return Trained(tuple(losses), of_learned, of_others, statistics.median(times))


def _layers(
    shape: NetworkShape, width: int, classes: int, begin: Parameters, dtype: torch.dtype
) -> torch.nn.ModuleList:
    widths = [width, *[shape.hidden] * (shape.layers - 1), classes]
    made = [
        _LAYERS[shape.kind](shape, a, b, n == shape.layers - 1, n, begin)
        for n, (a, b) in enumerate(pairwise(widths))
    ]
    return torch.nn.ModuleList(made).to(dtype)


def _gcn(_: NetworkShape, a: int, b: int, _last: bool, n: int, begin: Parameters) -> Any:
    layer = import_module("torch_geometric.nn").GCNConv(a, b)
    return _begun(
        layer, {"lin.weight": (begin, f"{n + 1}.weight"), "bias": (begin, f"{n + 1}.bias")}
    )


def _sage(_: NetworkShape, a: int, b: int, _last: bool, n: int, begin: Parameters) -> Any:
    layer = import_module("torch_geometric.nn").SAGEConv(a, b)
    names = {"lin_l.weight": "weight", "lin_l.bias": "bias", "lin_r.weight": "own"}
    return _begun(layer, {to: (begin, f"{n + 1}.{name}") for to, name in names.items()})


def _gin(shape: NetworkShape, a: int, b: int, _last: bool, n: int, begin: Parameters) -> Any:
    first, second = torch.nn.Linear(a, shape.hidden), torch.nn.Linear(shape.hidden, b)
    layer = import_module("torch_geometric.nn").GINConv(
        torch.nn.Sequential(first, torch.nn.ReLU(), second)
    )
    names = {
        f"nn.{place}.{name}": (begin, f"{2 * n + unit}.{name}")
        for unit, place in ((1, 0), (2, 2))
        for name in ("weight", "bias")
    }
    return _begun(layer, names)


def _gat(shape: NetworkShape, a: int, b: int, last: bool, n: int, begin: Parameters) -> Any:
    heads = 1 if last else shape.heads
    layer = import_module("torch_geometric.nn").GATConv(a, b // heads, heads)
    product, attention = 2 * n + 1, 2 * n + 2
    names = {
        "lin.weight": f"{product}.weight",
        "att_src": f"{product}.source",
        "att_dst": f"{product}.target",
        "bias": f"{attention}.bias",
    }
    return _begun(layer, {to: (begin, name) for to, name in names.items()})


def _begun(layer: Any, names: dict[str, tuple[Parameters, str]]) -> Any:
    """A layer with our weights in the places of its own; PyG's matrices are transposed."""
    state = layer.state_dict()
    assert set(state) == set(names), (sorted(state), sorted(names))
    for to, (begin, name) in names.items():
        value = begin[name].detach()
        value = value.T if to.endswith(".weight") else value.reshape(state[to].shape)
        assert value.shape == state[to].shape, (to, value.shape, state[to].shape)
        state[to] = value.clone()
    layer.load_state_dict(state)
    return layer


_LAYERS: dict[str, Callable[..., Any]] = {"gcn": _gcn, "sage": _sage, "gin": _gin, "gat": _gat}


# ---- side by side -----------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--kinds", default="gcn,sage,gin,gat")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    contestants: dict[str, Callable[[GraphFile, Path], Trained]] = {
        "in memory": in_memory,
        "beyond": beyond,
    }
    if find_spec("torch_geometric") is None:
        print("without PyG: pip install torch_geometric")
    else:
        contestants = {"PyG": pyg, **contestants}
    for folder in asked.folders:
        for kind in asked.kinds.split(","):
            spec = read_graph_file(folder / "graph.toml")
            train = replace(spec.train, precision=asked.precision, seed=asked.seed)
            train = replace(train, epochs=asked.epochs or train.epochs)
            spec = replace(spec, model=replace(spec.model, kind=kind), train=train)
            first: Trained | None = None
            for name, contestant in contestants.items():
                done = contestant(spec, folder)
                first = first or done
                differs = max(
                    abs(a - b) / abs(b) for a, b in zip(done.losses, first.losses, strict=True)
                )
                print(
                    f"{folder.name:8} {kind:4} {name:9} loss {done.losses[-1]:.5f} "
                    f"(differs {differs:.1e}), right {done.learned_right:.2%} of learned, "
                    f"{done.others_right:.2%} of others; {done.epoch_s:.2f} s an epoch, "
                    f"{format_bytes(done.moved_bytes)} moved",
                    flush=True,
                )


if __name__ == "__main__":
    main()
