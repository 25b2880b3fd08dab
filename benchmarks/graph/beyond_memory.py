"""A graph trained in memory, from mapped files and by partitions, each in its own process.

    python benchmarks/graph/beyond_memory.py --nodes 1000000 --budget 1.6GB --cap 1.8GB

`ours`, `mapped`, `grinnder` and `hongtu` run in a control group with the cap (version 1, as root);
`memory` (torch's autograd) and `pyg` (PyG's GCNConv, where torch_geometric is installed) run
without. `grinnder` and `hongtu` are ours with their ways of using memory, so that nothing else
differs: the modes `grinnder` (its caches of layers or partitions, without the fault of its
evictions) and `snapshots` (all rows that a sum was made of are written, and read for backward).
Contestants
take turns, `--rounds` times. Of each: the group's or the process's largest memory, the median of
its epochs, the bytes that the kernel counted as read from and written to the disk.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ratrain.describe.units import format_bytes, parse_bytes
from ratrain.errors import Infeasible
from ratrain.graph.blocks import Block
from ratrain.graph.csr import aggregation
from ratrain.graph.network import parameters_of
from ratrain.graph.plan import lay_out, planned
from ratrain.graph.process import begun
from ratrain.graph.read import graph_data
from ratrain.graph.reference import InMemory, largest_error
from ratrain.graph.run import open_run
from ratrain.graph.spec import (
    MODE_NAMES,
    GraphFile,
    GraphSource,
    MemoryKeys,
    Mode,
    NetworkShape,
    TrainKeys,
)
from ratrain.graph.spmm import add_product
from ratrain.graph.units import units_of

GROUPS = Path("/sys/fs/cgroup/memory")
CAPPED = ("ours", "mapped", "grinnder", "hongtu")


def spec_of(options: argparse.Namespace) -> GraphFile:
    source = GraphSource(
        generate=options.generate,
        nodes=options.nodes,
        degree=options.degree,
        features_width=options.width,
    )
    memory = MemoryKeys(
        int(parse_bytes(options.budget)),
        mode=options.mode,
        parts=options.parts,
        processes=options.processes,
    )
    shape = NetworkShape(options.kind, hidden=options.width, layers=3)
    return GraphFile(source, memory, shape, TrainKeys(epochs=options.epochs))


# ---- contestants --------------------------------------------------------------------------


def ours(spec: GraphFile, folder: Path, told: dict[str, object]) -> list[float]:
    """By partitions."""
    began_s = time.perf_counter()
    laid = lay_out(spec, folder)
    told["cutting_s"] = time.perf_counter() - began_s
    plan = planned(laid, spec.memory, folder)
    layout = plan.program.layout
    told["plan"] = f"{laid.shape.parts} parts, {layout.mode}, {layout.group} sums open"
    told["planned_bytes"] = [plan.read_bytes, plan.written_bytes]
    told["planned_peak_bytes"], told["planned_epoch_s"] = plan.peak_bytes, plan.epoch_s
    told["largest_before_training_bytes"] = peak_bytes()
    run, close = open_run(spec, plan, folder, folder)
    try:
        run.begin(resume=False)
        used_s = time.process_time()
        epochs = list(run.epochs())
        told["cpu_s_per_epoch"] = round((time.process_time() - used_s) / len(epochs), 2)
    finally:
        close()
    told["moved_bytes"] = [epochs[-1].read_bytes, epochs[-1].written_bytes]
    told["waited_s"] = [round(epoch.waited_s, 2) for epoch in epochs]
    told["losses"] = [epoch.loss for epoch in epochs]
    return [epoch.time_s for epoch in epochs]


def memory(spec: GraphFile, folder: Path, told: dict[str, object]) -> list[float]:
    """Torch's autograd over the whole graph."""
    data = graph_data(spec.graph, folder)
    units = units_of(spec.model, data.features.width, data.classes)
    whole = InMemory(data, spec.model.kind, units, spec.train.precision)
    parameters = parameters_of(units, torch.float32, spec.train.seed)
    told["losses"] = losses = []
    return timed(spec.train.epochs, lambda: losses.append(whole.gradients(parameters)), told)


def pyg(spec: GraphFile, folder: Path, told: dict[str, object]) -> list[float]:
    """PyG's own layers, full batch."""
    layers: Any = import_module("torch_geometric.nn")

    data = graph_data(spec.graph, folder)
    edges = torch.from_numpy(np.stack([data.graph.columns, data.graph.rows()]).astype(np.int64))
    features = torch.from_numpy(data.features.rows(np.arange(data.graph.nodes)))
    labels, learned = torch.from_numpy(data.labels), torch.from_numpy(data.is_train)
    hidden = spec.model.hidden
    widths = [features.shape[1], hidden, hidden, data.classes]

    def layer(a: int, b: int) -> torch.nn.Module:
        if spec.model.kind == "gin":
            parts = torch.nn.Linear(a, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, b)
            return layers.GINConv(torch.nn.Sequential(*parts))
        return {"gcn": layers.GCNConv, "sage": layers.SAGEConv}[spec.model.kind](a, b)

    layers = [layer(a, b) for a, b in itertools.pairwise(widths)]

    def epoch() -> None:
        rows = features
        for at, one in enumerate(layers):
            rows = one(rows, edges)
            rows = rows.relu() if at < 2 else rows
        torch.nn.functional.cross_entropy(rows[learned], labels[learned]).backward()

    return timed(spec.train.epochs, epoch, told)


def mapped(spec: GraphFile, folder: Path, told: dict[str, object]) -> list[float]:
    """The whole graph at once, every layer's rows in a file that is mapped: what is not used leaves
    as the kernel sees fit. The same sums as ours, forward and backward."""
    data = graph_data(spec.graph, folder)
    nodes, classes = data.graph.nodes, data.classes
    matrix = aggregation(data.graph, "gcn", "float32")
    every = np.arange(nodes, dtype=np.int32)
    starts = matrix.pattern.starts.astype(np.int32)
    block = Block(every, starts, matrix.pattern.columns, matrix.values)
    units = units_of(spec.model, data.features.width, classes)
    parameters = parameters_of(units, torch.float32, spec.train.seed)
    labels, learned = torch.from_numpy(data.labels), torch.from_numpy(data.is_train)

    def rows_in_file(name: str, width: int) -> torch.Tensor:
        path = str(folder / name)
        return torch.from_file(path, shared=True, size=nodes * width).view(nodes, width)

    width = spec.model.hidden  # of the features too
    acts = [rows_in_file(f"a{u}", w) for u, w in enumerate((width, width, width, classes))]
    grads = [rows_in_file(f"g{u}", w) for u, w in enumerate((width, width, width, classes))]
    sums = rows_in_file("sums", width)
    for at in range(0, nodes, 1 << 16):
        ids = np.arange(at, min(at + (1 << 16), nodes))
        acts[0][at : at + len(ids)] = torch.from_numpy(data.features.rows(ids))
    told["losses"] = losses = []

    @torch.no_grad()
    def epoch() -> None:
        for unit in units:
            u = unit.number
            sums.zero_()
            add_product(sums, block, block.values, acts[u - 1])
            torch.addmm(parameters[f"{u}.bias"], sums, parameters[f"{u}.weight"], out=acts[u])
            if unit.relu:
                acts[u].relu_()
        logs = torch.log_softmax(acts[3], 1)
        losses.append(float(-logs[learned, labels[learned]].mean()))
        grads[3].copy_(logs.exp_())
        grads[3][torch.arange(nodes)[learned], labels[learned]] -= 1
        grads[3][~learned] = 0
        grads[3].div_(float(learned.sum()))
        for unit in reversed(units):
            u, summed = unit.number, sums.view(-1)[: nodes * unit.width].view(nodes, unit.width)
            summed.zero_()
            add_product(summed, block, block.values, grads[u])  # symmetric
            parameters[f"{u}.weight"].grad = acts[u - 1].T @ summed
            if u > 1:
                torch.mm(summed, parameters[f"{u}.weight"].T, out=grads[u - 1])
                grads[u - 1].masked_fill_(acts[u - 1] <= 0, 0)

    return timed(spec.train.epochs, epoch, told)


def timed(epochs: int, epoch: Callable[[], object], told: dict[str, object]) -> list[float]:
    times: list[float] = []
    used_s = time.process_time()
    for _ in range(epochs):
        began_s = time.perf_counter()
        epoch()
        times.append(time.perf_counter() - began_s)
        gc.collect()
    told["cpu_s_per_epoch"] = round((time.process_time() - used_s) / epochs, 2)
    return times


def in_mode(mode: Mode) -> Contestant:
    """By partitions, in another way of using memory."""

    def contestant(spec: GraphFile, folder: Path, told: dict[str, object]) -> list[float]:
        return ours(replace(spec, memory=replace(spec.memory, mode=mode)), folder, told)

    return contestant


Contestant = Callable[[GraphFile, Path, dict[str, object]], list[float]]
CONTESTANTS: dict[str, Contestant] = {
    "ours": ours,
    "memory": memory,
    "mapped": mapped,
    "pyg": pyg,
    "grinnder": in_mode("grinnder"),
    "hongtu": in_mode("snapshots"),
}


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def moved_bytes() -> list[int]:
    """Of this process, to and from disks, as the kernel counts."""
    lines = Path("/proc/self/io").read_text().splitlines()
    counts = dict(line.split(": ") for line in lines)
    return [int(counts["read_bytes"]), int(counts["write_bytes"])]


# ---- errors of gradients ------------------------------------------------------------------


def errors(spec: GraphFile, folder: Path) -> None:
    """The worst gradient error of every mode against memory in fp32, and of both against memory in
    fp64, over three epochs."""
    laid = lay_out(spec, folder, whole=True)
    whole, exact = (
        InMemory(laid.data, spec.model.kind, laid.shape.units, precision)
        for precision in ("float32", "float64")
    )
    for mode in MODE_NAMES:
        try:
            plan = planned(laid, replace(spec.memory, mode=mode), folder)
        except Infeasible as error:
            print(f"{mode:9} does not fit: {error.what}", flush=True)
            continue
        crew = begun(spec, plan, folder, folder)
        training = crew.training
        training.store_features()
        for epoch in range(3):
            copies, exact_copies = (
                {
                    name: value.detach().to(dtype, copy=True).requires_grad_()
                    for name, value in training.parameters.items()
                }
                for dtype in (torch.float32, torch.float64)
            )
            done = training.gradients()
            whole.gradients(copies)
            exact.gradients(exact_copies)
            worst = largest_error(training.parameters, copies)
            ours, torchs = (
                largest_error(got, exact_copies) for got in (training.parameters, copies)
            )
            equal = [done.read_bytes, done.written_bytes] == [
                plan.read_bytes,
                plan.written_bytes,
            ]
            read, written = format_bytes(done.read_bytes), format_bytes(done.written_bytes)
            print(
                f"{mode:9} epoch {epoch}: gradient error {worst:.1e} (of fp64: {ours:.1e}, torch "
                f"in memory {torchs:.1e}); {read} read, {written} written, "
                f"{'as' if equal else 'NOT as'} planned; {done.time_s:.1f} s",
                flush=True,
            )
            training.optimizer.step()
        crew.close()


# ---- turns --------------------------------------------------------------------------------


def one(name: str, options: argparse.Namespace) -> None:
    """A contestant, in this process: its figures as JSON."""
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="graph-") as folder:
        told: dict[str, object] = {}
        before = moved_bytes()
        times = CONTESTANTS[name](spec_of(options), Path(folder), told)
        after = moved_bytes()
    told["epoch_s"] = [round(time_s, 2) for time_s in times]
    told["peak_rss_bytes"] = peak_bytes()
    told["kernel_bytes"] = [b - a for a, b in zip(before, after, strict=True)]
    print(json.dumps(told))


def turn(name: str, options: argparse.Namespace, words: list[str]) -> None:
    """A contestant in a process of its own, in its group."""
    group = GROUPS / f"ratrain-bench-{os.getpid()}" if name in CAPPED and options.cap else None
    if group is not None:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(int(parse_bytes(options.cap))))

    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    command = [sys.executable, "-W", "ignore", __file__, *words, "--one", name]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=enter, check=False)
    peak = ""
    if group is not None:
        largest = int((group / "memory.max_usage_in_bytes").read_text())
        peak = f" group {format_bytes(largest)}"
        group.rmdir()
    if done.returncode:
        print(f"{name}: ended with {done.returncode}{peak}: {done.stderr[-300:]}", flush=True)
    else:
        print(f"{name}:{peak} {done.stdout.strip()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--degree", type=float, default=8.0)
    parser.add_argument("--generate", default="planted")
    parser.add_argument("--kind", default="gcn")
    parser.add_argument("--budget", default="1.6GB")
    parser.add_argument("--cap", default="1.8GB")
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--parts", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--width", type=int, default=128, help="of features and layers")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--folder", default=".")
    parser.add_argument("--only", default="memory,ours,mapped,pyg")
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--one")
    options = parser.parse_args()
    if options.one:
        one(options.one, options)
    elif options.errors:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="graph-") as folder:
            errors(spec_of(options), Path(folder))
    else:
        for _ in range(options.rounds):
            for name in options.only.split(","):
                turn(name, options, sys.argv[1:])


if __name__ == "__main__":
    main()
