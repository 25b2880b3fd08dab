"""The compute ops of a rank, timed as they will run: a micro-batch through all of its units.

A pass is one micro-batch forward through the rank's units and back, with the rank's own recovery
modes, so that caches and the allocator are as warm as they will be and no more. Where backward is
split, input gradients go through all units before any weight gradient is made, of a micro-batch
that has waited as in the program: its activations are out of the caches by then. Gradients add up
over passes, as they do over a step's micro-batches, and are as cold as there; what making them
costs is shared among these.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ratrain.describe.train import TrainSpec
from ratrain.models.rows import own_rows, spread
from ratrain.models.tensor_group import TensorGroup
from ratrain.models.units import MicroBatch
from ratrain.models.weights import Weights
from ratrain.program.kind import Kind, Lane
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

_MOST_WAITING = 3
"""Micro-batches whose weight gradients wait meanwhile, at most: more leave caches no colder."""

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
    waiting = _Waiting(micro_batches_waiting(schedule)) if splits else None
    gradients = _Gradients(schedule, states, timed)
    cold = 1 + (waiting.count if waiting is not None else 0)
    began_s, passes = time.perf_counter(), -cold
    while passes < LEAST_PASSES or _of_first(time.perf_counter() - began_s, group) < LEAST_S:
        _pass(states, boundary, batch, timed, group, gradients, waiting)
        passes += 1
        if passes == 0:
            rows.clear()
            began_s = time.perf_counter()
    gradients.remake()

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


class _Waiting:
    """Weight gradients that are kept for later, micro-batch by micro-batch: of so many."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._kept: deque[list[tuple[int, list[Callable[[], None]]]]] = deque()

    def begin(self) -> None:
        """Another micro-batch."""
        self._kept.append([])

    def keep(self, index: int, deferred: list[Callable[[], None]]) -> None:
        """A unit's weight gradients of that micro-batch."""
        self._kept[-1].append((index, deferred))

    def due(self) -> list[tuple[int, list[Callable[[], None]]]]:
        """Those of all units of the micro-batch that has waited long enough, if any has."""
        return self._kept.popleft() if len(self._kept) > self.count else []


class _Gradients:
    """Where weight gradients go. Where they add up over a step's micro-batches they stay from pass
    to pass; a step of one micro-batch makes them each time."""

    def __init__(self, schedule: Schedule, states: RankStates, timed: Timed) -> None:
        self._states, self._timed = states, timed
        self._each_sent = schedule.program.setup.per_micro_batch
        self._kept: dict[int, Tensor] = {}

    def add(self, kind: str, index: int, work: Callable[[], Any]) -> None:
        """What makes a unit's weight gradients, timed as an op of that kind."""
        unit = self._states.units[index]
        if self._states.buckets is not None:
            unit.weights.attach_sink(self._states.buckets.refilled())
        elif not self._each_sent:
            unit.weights.attach_gradient(self._place(index))
        self._timed(kind, index, partial(self._emptied, index, work) if self._each_sent else work)
        unit.weights.attach_sink(None)
        unit.weights.attach_gradient(None)

    def remake(self) -> None:
        """Times making those that stayed."""
        for index in list(self._kept):
            del self._kept[index]
            self._made(index)

    def _place(self, index: int) -> Tensor:
        if self._states.units[index].local.micro_batches < 2:
            return self._made(index)
        if index not in self._kept:
            self._kept[index] = self._states.new_gradient(self._states.units[index])
        return self._kept[index]

    def _made(self, index: int) -> Tensor:
        unit = self._states.units[index]
        return self._timed("gradient", index, lambda: self._states.new_gradient(unit))

    def _emptied(self, index: int, work: Callable[[], Any]) -> None:
        """The work, into a slot that is emptied for each micro-batch."""
        unit = self._states.units[index]
        if self._states.buckets is None:
            slot = self._states.transit[0]
            unit.weights.attach_gradient(slot[: unit.padded].zero_())
        work()


def micro_batches_waiting(schedule: Schedule) -> int:
    """Behind the input gradients of how many further micro-batches weight gradients wait in a
    pass: of as many as in the schedule, within limits."""
    changes = {Kind.I: 1, Kind.W: -1}
    of_unit = (op.kind for op in schedule.lanes.get(Lane.COMPUTE, ()) if op.unit == 0)
    most = max(accumulate(changes.get(kind, 0) for kind in of_unit), default=1)
    # No more than a step has beside a whole gradient, so that memory is proved to suffice.
    fewest = min(unit.micro_batches for unit in schedule.units)
    return max(0, min(most - 1, _MOST_WAITING, fewest - 2))


def _pass(
    states: RankStates,
    boundary: tuple[int, ...],
    batch: MicroBatch,
    timed: Timed,
    group: TensorGroup | None,
    gradients: _Gradients,
    waiting: _Waiting | None,
) -> None:
    """One micro-batch forward and back; where backward is split, weight gradients are those of an
    earlier one."""
    inputs: list[Tensor] = []
    graphs: dict[int, Graph] = {}
    outgrad = torch.full(boundary, 1e-6, dtype=states.dtype, device=states.device)
    x, room = outgrad, _gathered(states)
    for index, unit in enumerate(states.units):
        if unit.view is None:
            unit.weights.attach_view(room[: unit.padded])
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
    if waiting is not None:
        waiting.begin()
    for index in reversed(range(len(states.units))):
        unit = states.units[index]
        if unit.local.recovered:
            _, graphs[index] = timed(
                "R", index, lambda i=index: _run(states, inputs, i, batch, True)
            )
        output_gradient = seed if unit.local.last else spread(outgrad, group)
        graph = graphs.pop(index)
        if waiting is not None:
            waiting.keep(index, _input_gradient(unit, index, graph, output_gradient, timed))
            continue
        gradients.add("B", index, partial(gradient_of_leaf, graph, output_gradient))
    for index, deferred in waiting.due() if waiting is not None else ():
        gradients.add("W", index, partial(Weights.play, deferred))
    for unit in states.units:
        if unit.view is None:
            unit.weights.attach_view(None)


def _gathered(states: RankStates) -> Tensor:
    """Where a view is gathered to; what is gathered for a whole pass has no slot that stays."""
    if states.gathered:
        return states.gathered[0]
    largest = max((unit.padded for unit in states.units if unit.view is None), default=0)
    return torch.zeros(largest, dtype=states.dtype, device=states.device)


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


def _input_gradient(
    unit: UnitState, index: int, graph: Graph, output_gradient: Tensor, timed: Timed
) -> list[Callable[[], None]]:
    """A unit's input gradient, which is dropped. Returns what makes its weight gradients."""
    deferred = unit.weights.defer()
    timed("I", index, lambda: gradient_of_leaf(graph, output_gradient))
    unit.weights.stop_deferring()
    return deferred


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
