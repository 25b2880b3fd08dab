"""Training in memory beside training by partitions, epoch by epoch from the same weights."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ratrain.errors import Infeasible
from ratrain.graph.network import Parameters
from ratrain.graph.plan import Laid, planned
from ratrain.graph.process import begun
from ratrain.graph.reference import InMemory, largest_error
from ratrain.graph.run import disk_of
from ratrain.graph.spec import GraphFile, Mode
from ratrain.graph.train import Training


@dataclass(frozen=True)
class Compared:
    """A mode beside training in memory. `worst_error`: of any parameter's gradient in any epoch,
    over the largest entry of it. `why` the mode does not fit, "" where it does."""

    mode: str
    group: int = 0
    worst_error: float = 0.0
    losses: tuple[float, ...] = ()
    in_memory_losses: tuple[float, ...] = ()
    epoch_s: float = 0.0
    in_memory_epoch_s: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    planned_read_bytes: int = 0
    planned_written_bytes: int = 0
    why: str = ""


def compared(
    spec: GraphFile, laid: Laid, base: Path, folder: Path, epochs: int, modes: tuple[Mode, ...]
) -> Iterator[Compared]:
    """Each mode in turn. Both sides compute gradients with the weights of the partitioned one."""
    kind, precision = spec.model.kind, spec.train.precision
    whole = InMemory(laid.data, kind, laid.shape.units, precision)
    for mode in modes:
        memory = replace(spec.memory, mode=mode)
        try:
            yield _mode(replace(spec, memory=memory), laid, whole, base, folder, epochs)
        except Infeasible as error:
            yield Compared(mode, why=error.what)


def _mode(
    spec: GraphFile, laid: Laid, whole: InMemory, base: Path, folder: Path, epochs: int
) -> Compared:
    disk = disk_of(spec, base, folder)
    plan = planned(laid, spec.memory, disk)
    crew = begun(spec, plan, disk, folder)
    try:
        crew.training.store_features()
        rows = [_epoch(crew.training, whole) for _ in range(epochs)]
    finally:
        crew.close()
    errors, losses, in_memory, times, in_memory_times, read, written = zip(*rows, strict=True)
    return Compared(
        plan.program.layout.mode,
        plan.program.layout.group,
        max(errors),
        losses,
        in_memory,
        sorted(times)[epochs // 2],
        sorted(in_memory_times)[epochs // 2],
        max(read),
        max(written),
        plan.read_bytes,
        plan.written_bytes,
    )


def _epoch(
    training: Training, whole: InMemory
) -> tuple[float, float, float, float, float, int, int]:
    copies: Parameters = {
        name: value.detach().clone().requires_grad_() for name, value in training.parameters.items()
    }
    epoch = training.gradients()
    began_s = time.perf_counter()
    loss = whole.gradients(copies)
    took_s = time.perf_counter() - began_s
    error = largest_error(training.parameters, copies)
    training.optimizer.step()
    moved = epoch.read_bytes, epoch.written_bytes
    return error, epoch.loss, loss, epoch.time_s, took_s, *moved
