"""The compute ops of a rank, timed as they will run: a micro-batch through all of its units.

A pass is one micro-batch forward through the rank's units and back, with the rank's own recovery
modes, so that caches and the allocator are as warm as they will be and no more. Gradients are
made again in each pass, as in each step; what that costs is shared among a step's micro-batches.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ratrain.describe.train import TrainSpec
from ratrain.models.rows import own_rows, spread
from ratrain.models.tensor_group import TensorGroup
from ratrain.models.units import MicroBatch
from ratrain.models.weights import Weights
from ratrain.runtime.rank.calibration import UnitTimes
from ratrain.runtime.step.allocator import Allocator
from ratrain.runtime.step.feedback import Residual
from ratrain.runtime.step.graphs import Graph, gradient_of_leaf, graph_of
from ratrain.runtime.step.narrowing import narrowed
from ratrain.runtime.step.optimizer import OwnedPart
from ratrain.runtime.step.schedule import Schedule
from ratrain.runtime.step.states import RankStates, UnitState

LEAST_PASSES, LEAST_S = 3, 1.0
"""Passes are repeated until both are reached; the first, with cold caches, does not count."""
MOST_PASSES = 32
"""Whose times are kept one by one."""
_UPDATED = 1 << 20
"""Elements of the piece on which the optimizer is timed."""

Timed = Callable[[str, int, Callable[[], Any]], Any]


def unit_times(
    schedule: Schedule,
    states: RankStates,
    train: TrainSpec,
    boundary: tuple[int, ...],
    batch: MicroBatch,
    allocator: Allocator,
    group: TensorGroup | None,
) -> tuple[UnitTimes, ...]:
    """The times of each unit of the rank; the ranks of a tensor group go through them together.
    `boundary`: the shape of what a rank has of a tensor between units."""
    rows: dict[tuple[str, int], list[float]] = defaultdict(list)
    scratch: dict[int, int] = defaultdict(int)

    def timed(kind: str, unit: int, work: Callable[[], Any]) -> Any:
        before_bytes = allocator.held_bytes
        allocator.reset_peak()
        began_s = time.perf_counter()
        result = work()
        rows[kind, unit].append(time.perf_counter() - began_s)
        if kind in ("B", "I"):
            scratch[unit] = max(scratch[unit], allocator.peak_bytes - before_bytes)
        return result

    splits = schedule.program.setup.split_backward
    began_s, passes = time.perf_counter(), 0
    while passes <= LEAST_PASSES or _of_first(time.perf_counter() - began_s, group) < LEAST_S:
        _pass(states, boundary, batch, timed, group, splits=splits)
        if passes == 0:
            rows.clear()
            began_s = time.perf_counter()
        passes += 1

    def mean(kind: str, unit: int) -> float:
        # A mean, not a median: under a quota an op runs through or is cut by a pause, and only
        # the mix of both is the rate.
        return fmean(rows[kind, unit]) if rows[kind, unit] else 0.0

    def passes_of(index: int) -> tuple[tuple[float, float], ...]:
        halves = zip(rows["I", index], rows["W", index], strict=True)
        back = rows["B", index] or [input_s + weight_s for input_s, weight_s in halves]
        return tuple(zip(rows["F", index], back, strict=True))[:MOST_PASSES]

    def of_unit(index: int, unit: UnitState) -> UnitTimes:
        made_s = mean("gradient", index) / max(1, unit.local.micro_batches)
        return UnitTimes(
            forward_s=mean("F", index),
            recovery_s=mean("R", index),
            backward_s=mean("B", index) + made_s,
            input_gradient_s=mean("I", index),
            weight_gradient_s=mean("W", index) + made_s,
            update_s=_update_s(unit, train),
            narrowing_s=_narrowing_s(unit, states),
            elements=unit.padded,
            scratch_bytes=scratch[index],
            passes=passes_of(index),
        )

    return tuple(of_unit(index, unit) for index, unit in enumerate(states.units))


def _of_first(value: float, group: TensorGroup | None) -> float:
    """The first rank's value: all ranks of a tensor group must decide alike."""
    if group is None:
        return value
    return float(group.gather(torch.tensor([value], dtype=torch.float64))[0])


def _pass(
    states: RankStates,
    boundary: tuple[int, ...],
    batch: MicroBatch,
    timed: Timed,
    group: TensorGroup | None,
    *,
    splits: bool,
) -> None:
    """One micro-batch forward and back."""
    inputs: list[Tensor] = []
    graphs: dict[int, Graph] = {}
    outgrad = torch.full(boundary, 1e-6, dtype=states.dtype, device=states.device)
    x = outgrad
    viewless = [unit for unit in states.units if unit.view is None]
    slot = _slot_for_views(states, viewless)
    for unit in viewless:
        unit.weights.attach_view(slot[: unit.padded])
    for index, unit in enumerate(states.units):
        first = torch.empty(0, dtype=states.dtype, device=states.device)
        inputs.append(first if unit.local.first else spread(x, group))
        keep = not unit.local.recovered
        x, graph = timed(
            "F", index, lambda i=index, keep=keep: _run(states, inputs, i, batch, keep)
        )
        if not unit.local.last:
            x = own_rows(x, group).view(boundary)  # a part of their sum, which is made elsewhere
        if graph is not None:
            graphs[index] = graph
    seed = torch.tensor(1e-6, device=states.device)
    for index in reversed(range(len(states.units))):
        unit = states.units[index]
        if unit.local.recovered:
            _, graphs[index] = timed(
                "R", index, lambda i=index: _run(states, inputs, i, batch, True)
            )
        output_gradient = seed if unit.local.last else spread(outgrad, group)
        _back(states, unit, index, graphs.pop(index), output_gradient, timed, splits=splits)
    for unit in viewless:
        unit.weights.attach_view(None)


def _slot_for_views(states: RankStates, viewless: Sequence[UnitState]) -> Tensor:
    """Where the views are that exist only while they are used: a slot for gathered ones, or where
    those come and go with a pass and have none, one of their own."""
    if states.gathered:
        return states.gathered[0]
    size = max((unit.padded for unit in viewless), default=0)
    return torch.zeros(size, dtype=states.dtype, device=states.device)


def _run(
    states: RankStates, inputs: list[Tensor], index: int, batch: MicroBatch, keep: bool
) -> tuple[Tensor, Graph | None]:
    unit = states.units[index]
    leaf = inputs[index].detach()
    if not keep:
        with torch.no_grad():
            return unit.unit.forward(unit.weights, leaf, batch), None
    leaf.requires_grad_()
    output = unit.unit.forward(unit.weights, leaf, batch)
    return output.detach(), graph_of(output, leaf)


def _back(
    states: RankStates,
    unit: UnitState,
    index: int,
    graph: Graph,
    seed: Tensor,
    timed: Timed,
    *,
    splits: bool,
) -> None:
    """A unit's backward into a gradient of its own, which is dropped."""
    if states.buckets is not None:
        unit.weights.attach_sink(states.buckets.refilled())
    else:
        gradient = timed("gradient", index, lambda: states.new_gradient(unit))
        unit.weights.attach_gradient(gradient)

    def back() -> None:
        gradient_of_leaf(graph, seed)

    if splits:
        deferred = unit.weights.defer()
        timed("I", index, back)
        unit.weights.stop_deferring()
        timed("W", index, lambda: Weights.play(deferred))
    else:
        timed("B", index, back)
    unit.weights.attach_sink(None)
    unit.weights.attach_gradient(None)


def _narrowing_s(unit: UnitState, states: RankStates) -> float:
    """Rounding a piece of a gradient for the network, with its residual where errors are fed back;
    linearly extrapolated to the whole."""
    if states.gradient_dtype == states.wire.gradients:
        return 0.0
    count = min(_UPDATED, unit.padded)
    wire, residual = states.wire.gradients, None
    if unit.residual is not None:
        residual = Residual(torch.zeros(count, device=states.device))
    took_s: list[float] = []
    for _ in range(LEAST_PASSES + 1):
        piece = torch.zeros(count, dtype=states.gradient_dtype, device=states.device)
        began_s = time.perf_counter()
        if residual is None:
            narrowed(piece, wire)
        else:
            residual.narrowed(piece, wire, first=True, scale=1.0)
        took_s.append(time.perf_counter() - began_s)
    return fmean(took_s[1:]) * unit.padded / count


def _update_s(unit: UnitState, train: TrainSpec) -> float:
    """The optimizer on copies of a piece of the largest part, linearly extrapolated to all."""
    part = max(unit.parts, key=lambda part: part.end - part.begin)
    count = min(_UPDATED, part.end - part.begin)
    copies = [tensor[:count].clone() for tensor in (part.weights, part.moment1, part.moment2)]
    piece = OwnedPart(0, count, count, *copies)
    gradient = torch.zeros(count, dtype=torch.float32, device=part.weights.device)
    took_s: list[float] = []
    for _ in range(LEAST_PASSES + 1):
        began_s = time.perf_counter()
        piece.update(gradient, train, 0, 0, 1.0)
        took_s.append(time.perf_counter() - began_s)
    return fmean(took_s[1:]) * sum(part.end - part.begin for part in unit.parts) / count
