"""Trains a graph by its plan: the features to the disk, then epochs, each a run of the program and
a step of the optimizer, with checkpoints between them."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import resource
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ratrain.errors import SpecError, StorageError
from ratrain.graph.csr import Ints
from ratrain.graph.execute import Executor, key_of
from ratrain.graph.links import ALONE, Links
from ratrain.graph.network import Network, Parameters, parameters_of
from ratrain.graph.optimize import Optimizer
from ratrain.graph.plan import Laid
from ratrain.graph.program import GraphProgram
from ratrain.graph.saved import Saved, latest, restore, save, state_of
from ratrain.graph.spec import GraphFile
from ratrain.graph.trace import PACKED, Datum
from ratrain.readers.files import read_text
from ratrain.storage import TierStore
from ratrain.timeline.timeline import Timeline

Progress = Callable[[int, int], None]
CHECKPOINTS = "checkpoints"
AT_ONCE = 4096
"""Nodes whose features are read, or made, at once."""


@dataclass(frozen=True)
class Epoch:
    """What an epoch was, measured. Epochs count from 1."""

    number: int
    loss: float
    learned_right: float  # of the learned nodes
    others_right: float | None  # of labelled nodes that are not learned; None: there are none
    time_s: float
    computing_s: float
    waited_s: float  # of the compute lane, for the disk and for other processes
    read_bytes: int  # by all processes, as what follows
    written_bytes: int
    sent_bytes: int = 0


class Training:
    """A process's part of a training: made, then run epoch by epoch. `laid`: what the process has
    of the graph; `program`: its epoch; `links`: to the others, which do the same."""

    def __init__(
        self,
        spec: GraphFile,
        laid: Laid,
        program: GraphProgram,
        store: TierStore,
        links: Links = ALONE,
    ) -> None:
        self._spec, self._laid, self._program, self._store = spec, laid, program, store
        self._links, shape = links, laid.shape
        self.dtype: torch.dtype = getattr(torch, spec.train.precision)
        self.parameters: Parameters = parameters_of(shape.units, self.dtype, spec.train.seed)
        order = laid.partition.order
        self.network = Network(
            shape.units,
            self.parameters,
            laid.forward,
            laid.backward,
            torch.from_numpy(laid.data.labels[order]),
            torch.from_numpy(laid.data.is_train[order]),
            laid.partition.bounds.tolist(),
        )
        boundary = laid.division.boundary
        self.executor = Executor(
            program, self.network, store, self.dtype, boundary, links, laid.needed
        )
        self.optimizer = Optimizer(spec.train, self.parameters)
        self.epochs = 0
        self.peak_bytes = 0  # of the process that has had most, after an epoch

    def store_features(self, progress: Progress | None = None) -> None:
        """Makes the places on the disk, and writes the features, partition by partition; of another
        process's those of the rows that are needed here."""
        _return_memory()
        shape, features = self._laid.shape, self._program.features
        with _as_of_a_graph():
            self._store.reserve(
                {key_of(datum): shape.size_bytes(datum) for datum in self._program.on_disk}
            )
        for done, datum in enumerate(features):
            size = shape.size_bytes(datum)
            buffer = self.executor.buffers.take(size)
            for nodes, begin in self._nodes_in(datum):
                self._fill(buffer[begin : begin + len(nodes) * shape.row_bytes(datum)], nodes)
            with _as_of_a_graph():
                self._store.write(key_of(datum), buffer)
            self.executor.buffers.give_back(buffer)
            if progress is not None:
                progress(done + 1, len(features))

    def _nodes_in(self, datum: Datum) -> Iterator[tuple[Ints, int]]:
        """Whose features a file has, from which byte on."""
        nodes = self._laid.nodes_of(datum.part)
        if datum.to != PACKED:
            yield nodes, 0
            return
        assert self._laid.needed is not None
        for to, at, _ in self._laid.shape.segments(datum):
            yield nodes[self._laid.needed[0][datum.part, to]], at

    def _fill(self, buffer: memoryview, nodes: Ints) -> None:
        features = self._laid.data.features
        rows = np.frombuffer(buffer, self._spec.train.precision).reshape(-1, features.width)
        for at in range(0, len(rows), AT_ONCE):
            rows[at : at + AT_ONCE] = features.rows(nodes[at : at + AT_ONCE])

    def epoch(self, progress: Progress | None = None) -> Epoch:
        """One epoch, and the optimizer's step after it."""
        epoch = self.gradients(progress)
        self.optimizer.step()
        self.epochs += 1
        return replace(epoch, number=self.epochs)

    def gradients(self, progress: Progress | None = None) -> Epoch:
        """An epoch without the step: gradients are left in the parameters, the same in every
        process."""
        with _as_of_a_graph(), self._links.explained():
            return self._gradients(progress)

    def _gradients(self, progress: Progress | None) -> Epoch:
        self._links.begin(f"epoch {self.optimizer.steps + 1}")
        before, began_s = replace(self._store.traffic), time.perf_counter()
        sent_before = self._links.sent_bytes
        lanes = self.executor.epoch(progress)
        traffic = self._store.traffic
        moved = (
            traffic.read_bytes - before.read_bytes,
            traffic.written_bytes - before.written_bytes,
            self._links.sent_bytes - sent_before,
        )
        counted = np.array([*astuple(self.network.tally), *moved, peak_memory_bytes()])
        everywhere = np.stack(self._links.gather("figures", counted))
        self.peak_bytes = int(everywhere[:, -1].max())
        loss, *sums = everywhere[:, :-1].sum(0).tolist()
        learned, learned_right, others, others_right, *moved = map(int, sums)
        return Epoch(
            0,
            loss,
            learned_right / max(learned, 1),
            others_right / others if others else None,
            time.perf_counter() - began_s,
            lanes.busy_s[0],
            lanes.waited_s[0],
            *moved,
        )

    def timeline(self) -> Timeline:
        """The last epoch's ops as they ran."""
        return self.executor.timeline()

    # ---- checkpoints --------------------------------------------------------------------

    @property
    def _about(self) -> str:
        """What a checkpoint belongs to: all that changes weights, but for the number of epochs."""
        train = {k: v for k, v in asdict(self._spec.train).items() if k not in _MAY_CHANGE}
        words = repr((asdict(self._spec.graph), asdict(self._spec.model), train))
        return hashlib.sha256(words.encode()).hexdigest()[:32]

    def save(self, folder: Path) -> Path:
        """Writes a checkpoint of what has been trained."""
        tensors = state_of(self.parameters, self.optimizer)
        saved = Saved(self.epochs, tensors, self._about)
        return save(folder / CHECKPOINTS, saved, self._spec.train.keep)

    def resume(self, folder: Path) -> int:
        """Resumes from the latest checkpoint; how many epochs it has done."""
        saved = latest(folder / CHECKPOINTS, self._about)
        if saved is not None:
            restore(saved, self.parameters, self.optimizer)
            self.epochs = saved.epoch
        return self.epochs


_MAY_CHANGE = ("epochs", "keep", "checkpoint_every")


def _return_memory() -> None:
    """Gives back to the system what reading and cutting the graph has freed: the C library keeps
    it, a few bytes an edge, beside what the plan counts."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)


def peak_memory_bytes() -> int:
    """The most memory that this process has had. What rusage says on Linux begins with that of the
    process which started it."""
    with suppress(SpecError):
        for line in read_text(Path("/proc/self/status")).splitlines():
            name, _, value = line.partition(":")
            if name == "VmHWM":
                return int(value.split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def store_of(disk: Path, run: Path, process: int = 0) -> TierStore:
    """A process's store of a run: its name follows from the run's folder, so two runs of one folder
    meet a lock."""
    name = f"{run.name}-{hashlib.sha256(str(run.absolute()).encode()).hexdigest()[:8]}"
    with _as_of_a_graph():
        return TierStore(disk, name, process)


@contextmanager
def _as_of_a_graph() -> Generator[None]:
    """A store's error names the key of a cluster file; here it is one of GRAPH.toml."""
    try:
        yield
    except StorageError as error:
        fix = error.fix
        if "[[device.tiers]]" in fix:
            lead = "make room, or name" if fix.startswith("make room") else "name"
            fix = f"{lead} another folder: `disk` in [memory] of GRAPH.toml"
        raise StorageError(error.what, place=error.place, fix=fix) from error
