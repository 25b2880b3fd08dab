"""What each kind of op does: one method a kind, called by its lane in the order of the program."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Protocol

import torch
from torch import Tensor

from ratrain.describe.train import TrainSpec
from ratrain.models.graphs import Graph, gradient_of_leaf, graph_of
from ratrain.models.rows import spread, summed
from ratrain.models.tensor_group import TensorGroup
from ratrain.models.units import MicroBatch
from ratrain.models.weights import Weights
from ratrain.program.kind import Kind, Lane
from ratrain.program.replicas import Stage
from ratrain.runtime.step.boundaries import BoundaryPart, receive_boundary, send_boundary
from ratrain.runtime.step.clipping import Clipping
from ratrain.runtime.step.network import Network
from ratrain.runtime.step.schedule import LocalOp, Schedule
from ratrain.runtime.step.state_ops import StateOps
from ratrain.runtime.step.states import RankStates, UnitState

_IN_BUCKETS = (Kind.B, Kind.W, Kind.GradSync)
"""Where backward sends: what fills buckets, and what empties them."""


class Batches(Protocol):
    """Where a replica's micro-batches come from."""

    def micro_batch(self, step: int, micro_batch: int, joined: int = 1) -> MicroBatch: ...


@dataclass(frozen=True)
class Sizes:
    """Shapes and counts that ops need."""

    boundary: tuple[int, int, int]  # micro-batch, sequence, hidden

    def of_joined(self, micro_batches: int) -> Sizes:
        """The same where so many micro-batches are computed at once."""
        size, length, hidden = self.boundary
        return Sizes((size * micro_batches, length, hidden))

    def rows_of(self, group: TensorGroup | None) -> tuple[int, ...]:
        """The shape of what a rank of a group has of a tensor between units."""
        if group is None or not group.divides_rows:
            return self.boundary
        sequences, length, hidden = self.boundary
        return sequences * length // group.division.degree, hidden


class RankOps(StateOps):
    """All ops of one rank. `losses[step]` are sums over tokens, micro-batch by micro-batch;
    `counted(step)` is how many tokens count in a step, over all replicas that share its gradients:
    each has the same weight, whichever replica and micro-batch it is in."""

    def __init__(
        self,
        schedule: Schedule,
        states: RankStates,
        network: Network,
        batches: Batches,
        train: TrainSpec,
        sizes: Sizes,
        clipping: Clipping,
        counted: Callable[[int], int],
    ) -> None:
        super().__init__(schedule, states, network, train, clipping)
        self._batches = batches
        self._sizes = sizes
        self._group = network.tensor_group(Lane.COMPUTE)
        self._counted = counted
        self._stages = _stages(schedule)
        self._stage_units = _units_of_stages(schedule)
        self._joined = {stage: member.joined for stage, member in schedule.held}
        self._uses = threading.Lock()
        self._used_once: set[tuple[int, int]] = set()  # offloaded inputs with one use to come
        self.losses: dict[int, list[Tensor]] = {}
        self._do = {kind: self._method(kind) for kind in {op.kind for op in schedule.ops}}

    def execute(self, op: LocalOp, step: int) -> None:
        """Does an op's work; barriers do nothing but wait, and have waited by now."""
        work = self._do[op.kind]
        if work is not None:
            work(op, step)

    def _method(self, kind: Kind) -> Callable[[LocalOp, int], None] | None:
        """What runs a kind: a method of this class, or a third party's "module:function", which
        is called with this object too."""
        if ":" not in kind.method:
            return getattr(self, kind.method) if kind.method else None
        module, _, name = kind.method.partition(":")
        return partial(getattr(import_module(module), name), self)

    # ---- compute ------------------------------------------------------------------------

    def forward(self, op: LocalOp, step: int) -> None:
        unit = self.unit(op)
        key = op.unit, op.micro_batch
        keep = not (unit.local.recovered or self._setup.forward_only)
        output, graph = self._run(unit, op, step, keep=keep)
        if graph is not None:
            self._states.saved[key] = graph
        if self._setup.forward_only:
            self._states.inputs.pop(key, None)
        if unit.local.last:
            self.losses.setdefault(step, []).append(output.detach())
        elif unit.division.degree > 1:
            self._states.partial[key] = output.detach()
        else:
            self._hand_on(op, output.detach())
        if unit.local.offloaded and not self._setup.forward_only:
            self._let_input_go(key)
        self._let_view_go(unit, op, Kind.Gather_F)

    def _hand_on(self, op: LocalOp, output: Tensor) -> None:
        if self.unit(op).local.next_is_local:
            self._states.inputs[op.unit + 1, op.micro_batch] = output
        else:
            self._states.sendx[op.stage, op.micro_batch] = output

    def recover(self, op: LocalOp, step: int) -> None:
        _, graph = self._run(self.unit(op), op, step, keep=True)
        self._states.saved[op.unit, op.micro_batch] = graph

    def _run(
        self, unit: UnitState, op: LocalOp, step: int, *, keep: bool
    ) -> tuple[Tensor, Graph | None]:
        """A unit's forward, with the graph that backward needs or without."""
        self._attach_view(unit, op)
        batch = self._batches.micro_batch(step, op.micro_batch, self._joined[op.stage])
        away = unit.local.offloaded and op.kind is not Kind.F
        inputs = self._states.fetched if away else self._states.inputs
        given = inputs.get((op.unit, op.micro_batch))
        leaf = self._no_input() if given is None else spread(given.detach(), self._group)
        with nullcontext() if keep else torch.no_grad():
            if keep:
                leaf.requires_grad_()
            output = unit.unit.forward(unit.weights, leaf, batch)
        return output, graph_of(output, leaf) if keep else None

    def backward(self, op: LocalOp, step: int) -> None:
        unit = self.unit(op)
        self._attach_view(unit, op)
        with self._gradient_goes(unit, op):
            gradient = self._through_graph(op, step)
        self._hand_back(op, gradient)
        self._free_activations(op)
        self._let_view_go(unit, op, Kind.Gather_B)

    def input_gradient(self, op: LocalOp, step: int) -> None:
        unit = self.unit(op)
        self._attach_view(unit, op)
        deferred = unit.weights.defer()
        self._hand_back(op, self._through_graph(op, step))
        unit.weights.stop_deferring()
        self._states.saved[op.unit, op.micro_batch] = deferred
        self._let_view_go(unit, op, Kind.Gather_B)

    def weight_gradient(self, op: LocalOp, step: int) -> None:
        unit = self.unit(op)
        with self._gradient_goes(unit, op):
            Weights.play(self._states.saved.pop((op.unit, op.micro_batch)))
        self._free_activations(op)

    def _through_graph(self, op: LocalOp, step: int) -> Tensor | None:
        """The gradient of a unit's input; weight gradients go their own way."""
        graph: Graph = self._states.saved.pop((op.unit, op.micro_batch))
        if self.unit(op).local.last:
            tokens = max(1, self._counted(step))  # where none counts, every gradient is zero
            seed = torch.tensor(self.clipping.scale / tokens, device=self._states.device)
        else:
            seed = spread(self._states.outgrads[op.unit, op.micro_batch], self._group)
        return gradient_of_leaf(graph, seed)

    def _hand_back(self, op: LocalOp, gradient: Tensor | None) -> None:
        if self.unit(op).local.first:
            return
        assert gradient is not None
        if self.unit(op).division.degree > 1:
            self._states.partialb[op.unit, op.micro_batch] = gradient
        else:
            self._hand_to_previous(op, gradient)

    def _hand_to_previous(self, op: LocalOp, gradient: Tensor) -> None:
        if self.unit(op).local.previous_is_local:
            self._states.outgrads[op.unit - 1, op.micro_batch] = gradient
        else:
            self._states.sendg[op.stage, op.micro_batch] = gradient

    def _free_activations(self, op: LocalOp) -> None:
        key = op.unit, op.micro_batch
        self._states.inputs.pop(key, None)
        self._states.fetched.pop(key, None)
        self._states.outgrads.pop(key, None)

    @contextmanager
    def _gradient_goes(self, unit: UnitState, op: LocalOp) -> Generator[None]:
        """Where weight gradients go that are made inside: to a place for all of the unit's, or into
        buckets that leave meanwhile."""
        if self._states.buckets is None:
            unit.weights.attach_gradient(self._gradient_place(unit, op))
            yield
            unit.weights.attach_gradient(None)
            return
        filler = self._states.buckets.filler()
        unit.weights.attach_sink(filler)
        yield
        unit.weights.attach_sink(None)
        filler.finish()
        self._states.buckets.complete()

    def _gradient_place(self, unit: UnitState, op: LocalOp) -> Tensor:
        """Where this micro-batch's weight gradient goes: fresh for the first, else added to."""
        if self._setup.per_micro_batch:
            place = self._states.transit[op.transit][: unit.padded]
            return place.zero_()
        if op.place == 0:
            unit.gradient = self._states.new_gradient(unit)
        assert unit.gradient is not None
        return unit.gradient

    def _attach_view(self, unit: UnitState, op: LocalOp) -> None:
        if not unit.local.gathered:
            return
        if self._setup.gathers_per_pass:
            gather = Kind.Gather_F if op.kind is Kind.F else Kind.Gather_B
            unit.weights.attach_view(unit.passing[gather])
        else:
            unit.weights.attach_view(self._states.gathered[op.gathered][: unit.padded])

    def _let_view_go(self, unit: UnitState, op: LocalOp, gather: Kind) -> None:
        """After the last use in a pass of what was gathered for all of it."""
        is_last = op.place == unit.local.micro_batches - 1
        if self._setup.gathers_per_pass and unit.local.gathered and is_last:
            unit.weights.attach_view(None)
            del unit.passing[gather]

    def _no_input(self) -> Tensor:
        """A placeholder for the input of the model's first unit, which has none."""
        return torch.empty(0, dtype=self._states.dtype, device=self._states.device)

    # ---- sums over the tensor group -----------------------------------------------------
    # The last sum of a unit's forward, and of its backward. Sums in the middle of a unit block
    # its compute op. A recovered unit's last sum is its output, which backward does not read: so
    # `AllReduce_R` does nothing.

    def sum_output(self, op: LocalOp, step: int) -> None:
        self._hand_on(op, self._summed(self._states.partial, op))

    def sum_gradient(self, op: LocalOp, step: int) -> None:
        self._hand_to_previous(op, self._summed(self._states.partialb, op))

    def _summed(self, parts: dict[tuple[int, int], Tensor], op: LocalOp) -> Tensor:
        part = parts.pop((op.unit, op.micro_batch))
        return summed(part, self._network.tensor_group(Lane.TENSOR))

    # ---- messages -----------------------------------------------------------------------

    def meet(self, op: LocalOp) -> None:
        """A send and its receive happen together, in the program's proof of memory too: room for
        what arrives is taken when its sender is there, not when the lane is free to receive. With
        slots the memory is already there. So do a backward and the reduction of its buckets."""
        if op.kind in _IN_BUCKETS and self._states.buckets is not None:
            self._states.buckets.meet(op.lane)
        elif op.kind is Kind.RECV_F:
            self._network.await_sender(op.lane, self._rank_beside(op, -1))
        elif op.kind is Kind.RECV_B and self._arrives_apart:
            self._network.await_sender(op.lane, self._rank_beside(op, +1))

    def stop(self) -> None:
        """Lets nobody wait for buckets any more: a lane has failed."""
        if self._states.buckets is not None:
            self._states.buckets.stop()

    def take_stalled_s(self) -> float:
        """How long backward has waited for buckets since it was last asked."""
        return self._states.buckets.take_stalled_s() if self._states.buckets else 0.0

    def send_output(self, op: LocalOp, step: int) -> None:
        self._network.announce(op.lane, self._rank_beside(op, +1))
        tensor = self._leaving(self._states.sendx, op, +1)
        self._send(op, tensor, self._rank_beside(op, +1))

    def receive_input(self, op: LocalOp, step: int) -> None:
        first, _ = self._stage_units[op.stage]
        self._receive(op, -1, self._states.inputs, first)

    def send_gradient(self, op: LocalOp, step: int) -> None:
        if self._arrives_apart:
            self._network.announce(op.lane, self._rank_beside(op, -1))
        tensor = self._leaving(self._states.sendg, op, -1)
        self._send(op, tensor, self._rank_beside(op, -1))

    def receive_gradient(self, op: LocalOp, step: int) -> None:
        _, last = self._stage_units[op.stage]
        self._receive(op, +1, self._states.outgrads, last)

    def _rank_beside(self, op: LocalOp, ahead: int) -> int:
        """The rank of the replica that computes an op's micro-batch on a stage beside its own."""
        return self._stages[op.stage + ahead].member_for(op.micro_batch).rank

    def _send(self, op: LocalOp, tensor: Tensor, to: int) -> None:
        send_boundary(self._network, op.lane, tensor, to, self._states.wire.boundaries)

    def _leaving(self, slots: dict[tuple[int, int], Tensor], op: LocalOp, ahead: int) -> Tensor:
        """What a message has of the tensor in a slot, which the last one leaves empty."""
        part = self._part(op, ahead)
        key = op.stage, part.first
        tensor = slots.pop(key) if part.is_last else slots[key]
        return part.of(tensor)

    def _receive(
        self, op: LocalOp, ahead: int, into: dict[tuple[int, int], Tensor], unit: int
    ) -> None:
        """Fills a tensor, or the part of it that a message brings: the first makes the tensor."""
        part = self._part(op, ahead)
        key = unit, part.first
        if part.is_first:
            shape = self._sizes.of_joined(part.joined).rows_of(self._group)
            tensor = torch.empty(shape, dtype=self._states.dtype, device=self._states.device)
        else:
            tensor = into[key]
        sender, wire = self._rank_beside(op, ahead), self._states.wire.boundaries
        receive_boundary(self._network, op.lane, part.of(tensor), sender, wire)
        into[key] = tensor

    def _part(self, op: LocalOp, ahead: int) -> BoundaryPart:
        """What the message of an op has of the tensor between its stage and the one beside."""
        joined = self._joined[op.stage]
        beside = self._stages[op.stage + ahead].members[0].joined
        return BoundaryPart(joined, min(joined, beside), op.micro_batch)

    @property
    def _arrives_apart(self) -> bool:
        """Whether gradients that arrive take memory then: they have no slots."""
        return self._setup.split_backward or self._setup.arrival_places

    # ---- inputs in host memory ----------------------------------------------------------

    def offload_input(self, op: LocalOp, step: int) -> None:
        key = op.unit, op.micro_batch
        made = self._states.inputs[key]
        self._states.hosted[key] = made.to("cpu", copy=True)
        self._let_input_go(key)

    def fetch_input(self, op: LocalOp, step: int) -> None:
        key = op.unit, op.micro_batch
        hosted = self._states.hosted.pop(key)
        self._states.fetched[key] = hosted.to(self._states.device, copy=True)

    def _let_input_go(self, key: tuple[int, int]) -> None:
        """When forward has used an input and it has been copied, its slot is free."""
        with self._uses:
            if key in self._used_once:
                self._used_once.remove(key)
                del self._states.inputs[key]
            else:
                self._used_once.add(key)


def _stages(schedule: Schedule) -> tuple[Stage, ...]:
    """The stages of the rank's replica."""
    setup = schedule.program.setup
    return setup.replicas[setup.replica_of(schedule.rank)].stages


def _units_of_stages(schedule: Schedule) -> dict[int, tuple[int, int]]:
    """(first, last) unit index of each stage of the rank."""
    ends: dict[int, tuple[int, int]] = {}
    for unit in schedule.units:
        first, _ = ends.get(unit.stage, (unit.index, unit.index))
        ends[unit.stage] = first, unit.index
    return ends
