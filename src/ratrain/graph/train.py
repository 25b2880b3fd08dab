"""Trains a graph by its plan: the features to the disk, then epochs, each a run of the program and
a step of the optimizer, with checkpoints between them."""

from __future__ import annotations

import hashlib
import resource
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ratrain.errors import SpecError, StorageError
from ratrain.graph.execute import Executor, Lanes, key_of
from ratrain.graph.network import Network, Parameters, Tally, parameters_of
from ratrain.graph.optimize import Optimizer
from ratrain.graph.plan import Plan
from ratrain.graph.saved import Saved, latest, restore, save, state_of
from ratrain.graph.spec import GraphFile
from ratrain.graph.trace import ACTIVATION, Datum
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
    waited_s: float  # of the compute lane, for the disk
    read_bytes: int
    written_bytes: int


class Training:
    """A plan's training: made, then run epoch by epoch."""

    def __init__(self, spec: GraphFile, plan: Plan, store: TierStore) -> None:
        self._spec, self._plan, self._store = spec, plan, store
        laid, shape = plan.laid, plan.laid.shape
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
        self.executor = Executor(plan.columns, self.network, store, self.dtype)
        self.optimizer = Optimizer(spec.train, self.parameters)
        self.epochs = 0

    def store_features(self, progress: Progress | None = None) -> None:
        """Makes the places on the disk, and writes the features, partition by partition."""
        laid, shape = self._plan.laid, self._plan.laid.shape
        with _as_of_a_graph():
            self._store.reserve(
                {key_of(datum): shape.size_bytes(datum) for datum in self._plan.program.on_disk}
            )
        for part in range(shape.parts):
            datum = Datum(ACTIVATION, 0, part)
            size = shape.size_bytes(datum)
            if not size:
                continue
            buffer = self.executor.buffers.take(size)
            rows = np.frombuffer(buffer[:size], self._spec.train.precision)
            rows = rows.reshape(-1, laid.data.features.width)
            first = laid.partition.bounds[part]
            for at in range(0, len(rows), AT_ONCE):
                nodes = laid.partition.order[first + at : first + min(at + AT_ONCE, len(rows))]
                rows[at : at + AT_ONCE] = laid.data.features.rows(nodes)
            with _as_of_a_graph():
                self._store.write(key_of(datum), buffer)
            self.executor.buffers.give_back(buffer)
            if progress is not None:
                progress(part + 1, shape.parts)

    def epoch(self, progress: Progress | None = None) -> Epoch:
        """One epoch, and the optimizer's step after it."""
        epoch = self.gradients(progress)
        self.optimizer.step()
        self.epochs += 1
        return replace(epoch, number=self.epochs)

    def gradients(self, progress: Progress | None = None) -> Epoch:
        """An epoch without the step: gradients are left in the parameters."""
        before, began_s = replace(self._store.traffic), time.perf_counter()
        with _as_of_a_graph():
            lanes = self.executor.epoch(progress)
        traffic = self._store.traffic
        return _measured(
            self.network.tally,
            lanes,
            time.perf_counter() - began_s,
            traffic.read_bytes - before.read_bytes,
            traffic.written_bytes - before.written_bytes,
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


def _measured(tally: Tally, lanes: Lanes, time_s: float, read: int, written: int) -> Epoch:
    others = tally.others_right / tally.others if tally.others else None
    return Epoch(
        0,
        tally.loss,
        tally.learned_right / max(tally.learned, 1),
        others,
        time_s,
        lanes.busy_s[0],
        lanes.waited_s[0],
        read,
        written,
    )


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


def store_of(disk: Path, run: Path) -> TierStore:
    """The run's store: its name follows from its folder, so two runs of one folder meet a lock."""
    name = f"{run.name}-{hashlib.sha256(str(run.absolute()).encode()).hexdigest()[:8]}"
    with _as_of_a_graph():
        return TierStore(disk, name, 0)


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
