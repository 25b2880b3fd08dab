"""The compute ops of a rank's own step, played in their order and timed.

Nothing is sent or received: what comes from other stages are stand-ins. As many micro-batches are
in flight as in the step, so caches and the allocator are as warm as they will be and no more.
Gradients add up over micro-batches and stay from step to step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ratrain.devices import Memory
from ratrain.models.functions.rows import own_rows, spread
from ratrain.models.graphs import Graph, gradient_of_leaf, graph_of
from ratrain.models.tensor_group import TensorGroup
from ratrain.models.units import MicroBatch
from ratrain.models.weights import Weights
from ratrain.program.kind import Kind, Lane
from ratrain.runtime.rank.calibration.timers import Timer
from ratrain.runtime.step.schedule import LocalOp, Schedule
from ratrain.runtime.step.states import RankStates
from ratrain.runtime.step.unit_state import UnitState

PLAYED = Kind.F, Kind.R, Kind.B, Kind.I, Kind.W
MOST_TOGETHER = 16
"""Micro-batches of a step that take part: where all are in flight at once, more are no colder."""


@dataclass
class Passed:
    """One micro-batch's way through the rank: seconds of each op, by its kind and unit."""

    took_s: dict[tuple[Kind, int], float] = field(default_factory=dict)


class Rehearsal:
    """Plays a rank's compute ops, and keeps what each of its units' backwards needed beside its
    states. `timer` times the ops of the first micro-batch; `timer_after`, where there is one, all
    that follow."""

    def __init__(
        self,
        schedule: Schedule,
        states: RankStates,
        boundary: tuple[int, ...],
        batch: MicroBatch,
        allocator: Memory,
        group: TensorGroup | None,
        timer: Timer,
        timer_after: Timer | None = None,
    ) -> None:
        self._states, self._batch, self._group = states, batch, group
        self._boundary, self._allocator = boundary, allocator
        self._timed, self._timer_after = timer, timer_after or timer
        self._ops = _of_first(schedule.of_step(Lane.COMPUTE, 0), MOST_TOGETHER)
        self._each_sent = schedule.program.setup.per_micro_batch
        self._stand_in = torch.full(boundary, 1e-6, dtype=states.dtype, device=states.device)
        self._seed = torch.tensor(1e-6, device=states.device)
        self._inputs: dict[tuple[int, int], Tensor] = {}
        self._graphs: dict[tuple[int, int], Graph] = {}
        self._deferred: dict[tuple[int, int], list[Callable[[], None]]] = {}
        self._gradients: dict[int, Tensor] = {}
        self._room = _room(states)
        self.scratch_bytes: dict[int, int] = defaultdict(int)
        self.making_s: dict[int, list[float]] = defaultdict(list)
        """Of each unit's gradients, where they are made."""

    def passes(self) -> Iterator[Passed]:
        """Each micro-batch that has gone forward and back, step after step without end; none where
        the rank computes nothing."""
        left = Counter(op.micro_batch for op in self._ops)
        for unit in self._states.units:
            if unit.view is None:
                unit.attach_gathered(self._room[: unit.gathered_elements])
        while self._ops:
            to_come, passing = left.copy(), defaultdict[int, Passed](Passed)
            for op in self._ops:
                passing[op.micro_batch].took_s[op.kind, op.unit] = self._play(op)
                to_come[op.micro_batch] -= 1
                if not to_come[op.micro_batch]:
                    yield passing.pop(op.micro_batch)
                    self._timed = self._timer_after

    def close(self) -> None:
        """Lets all go, and times making the gradients that stayed."""
        for states in (self._inputs, self._graphs, self._deferred):
            states.clear()
        for unit in self._states.units:
            if unit.view is None:
                unit.attach_gathered(None)
        for index in list(self._gradients):
            del self._gradients[index]
            self._made(index)

    def _play(self, op: LocalOp) -> float:
        """Does the op's work; its seconds."""
        key = op.unit, op.micro_batch
        match op.kind:
            case Kind.F:
                return self._forward(op)
            case Kind.R:
                recovered = partial(self._run, op.unit, self._inputs.get(key, self._stand_in), True)
                took_s, (_, self._graphs[key]) = self._timed(recovered)
                return took_s
            case Kind.W:
                return self._add(op.unit, partial(Weights.play, self._deferred.pop(key)))
            case _:
                return self._backward(op)

    def _forward(self, op: LocalOp) -> float:
        unit, key = self._states.units[op.unit], (op.unit, op.micro_batch)
        if key not in self._inputs:
            self._inputs[key] = self._from_elsewhere(unit)
        run = partial(self._run, op.unit, self._inputs[key], not unit.local.recovered)
        took_s, (output, graph) = self._timed(run)
        if graph is not None and "saved_out" not in op.writes:  # else it waits elsewhere
            self._graphs[key] = graph
        if unit.local.waits("input"):  # its memory is counted elsewhere
            del self._inputs[key]
        if unit.local.next_is_local:
            # A part of their sum, which is made elsewhere.
            mine = own_rows(output, self._group).view(self._boundary)
            self._inputs[op.unit + 1, op.micro_batch] = mine
        return took_s

    def _from_elsewhere(self, unit: UnitState) -> Tensor:
        if unit.local.first:
            return torch.empty(0, dtype=self._states.dtype, device=self._states.device)
        return self._stand_in if unit.local.waits("input") else self._stand_in.clone()

    def _run(self, index: int, x: Tensor, keep: bool) -> tuple[Tensor, Graph | None]:
        unit = self._states.units[index]
        leaf = (x if unit.local.first else spread(x, self._group)).detach()
        if not keep:
            with torch.no_grad():
                return unit.unit.forward(unit.weights, leaf, self._batch), None
        leaf.requires_grad_()
        output = unit.unit.forward(unit.weights, leaf, self._batch)
        return output.detach(), graph_of(output, leaf)

    def _backward(self, op: LocalOp) -> float:
        """Both gradients, or the input's alone, which is dropped."""
        unit, key = self._states.units[op.unit], (op.unit, op.micro_batch)
        graph = self._graphs.pop(key) if key in self._graphs else self._made_again(key)
        self._inputs.pop(key, None)
        output_gradient = self._seed if unit.local.last else spread(self._stand_in, self._group)
        work = partial(gradient_of_leaf, graph, output_gradient)
        before_bytes = self._allocator.held_bytes
        self._allocator.reset_peak()
        if op.kind is Kind.I:
            self._deferred[key] = unit.weights.defer()
            took_s, _ = self._timed(work)
            unit.weights.stop_deferring()
        else:
            took_s = self._add(op.unit, work)
        scratch_bytes = self._allocator.peak_bytes - before_bytes
        self.scratch_bytes[op.unit] = max(self.scratch_bytes[op.unit], scratch_bytes)
        return took_s

    def _made_again(self, key: tuple[int, int]) -> Graph:
        """What backward needs and waits elsewhere."""
        index, _ = key
        _, graph = self._run(index, self._inputs.get(key, self._stand_in), True)
        assert graph is not None
        return graph

    def _add(self, index: int, work: Callable[[], Any]) -> float:
        """Seconds of what makes a unit's weight gradients. Where they add up over a step's
        micro-batches they stay; a step of one micro-batch makes them each time."""
        unit = self._states.units[index]
        if self._states.buckets is not None:
            unit.weights.attach_sink(self._states.buckets.refilled())
        elif not self._each_sent:
            unit.weights.attach_gradient(self._place(index))
        took_s, _ = self._timed(partial(self._emptied, index, work) if self._each_sent else work)
        unit.weights.attach_sink(None)
        unit.weights.attach_gradient(None)
        return took_s

    def _place(self, index: int) -> Tensor:
        local = self._states.units[index].local
        if local.micro_batches < 2:
            return self._made(index)
        if local.waits("view"):  # where memory is short: one unit's at a time
            for other in [each for each in self._gradients if each != index]:
                del self._gradients[other]
        if index not in self._gradients:
            self._gradients[index] = self._states.new_gradient(self._states.units[index])
        return self._gradients[index]

    def _made(self, index: int) -> Tensor:
        unit = self._states.units[index]
        took_s, gradient = self._timed(lambda: self._states.new_gradient(unit))
        self.making_s[index].append(took_s)
        return gradient

    def _emptied(self, index: int, work: Callable[[], Any]) -> None:
        """The work, into a slot that is emptied for each micro-batch."""
        unit = self._states.units[index]
        if self._states.buckets is None:
            slot = self._states.transit[0]
            unit.weights.attach_gradient(slot[: unit.padded].zero_())
        work()


def _of_first(ops: tuple[LocalOp, ...], micro_batches: int) -> tuple[LocalOp, ...]:
    """What the micro-batches that come first, so many, compute."""
    computing = [op for op in ops if op.kind in PLAYED]
    first = set(islice(dict.fromkeys(op.micro_batch for op in computing), micro_batches))
    return tuple(op for op in computing if op.micro_batch in first)


def _room(states: RankStates) -> Tensor:
    """Where a view is gathered to; what is gathered for a whole pass has no slot that stays."""
    if states.gathered:
        return states.gathered[0]
    largest = max((u.gathered_elements for u in states.units if u.view is None), default=0)
    return torch.zeros(largest, dtype=states.dtype, device=states.device)
