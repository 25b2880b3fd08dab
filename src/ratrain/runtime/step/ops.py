"""What each kind of op does: one method a kind, called by its lane in the order of the program."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from ratrain.cost.scratch import UPDATE_ELEMENTS
from ratrain.describe.train import TrainSpec
from ratrain.models.units import MicroBatch
from ratrain.models.weights import Weights
from ratrain.program.actions import Kind, Lane
from ratrain.program.setup import Setup, Stage
from ratrain.runtime.step.clipping import Clipping
from ratrain.runtime.step.network import Network
from ratrain.runtime.step.schedule import LocalOp, Schedule
from ratrain.runtime.step.states import Graph, RankStates, UnitState
from ratrain.runtime.step.tied import add_here, counted_once, tied_gradient

_SQUARED_ELEMENTS = UPDATE_ELEMENTS // 4
"""The norm takes so many at once: as fp64, with their squares, what the optimizer widens later."""


class Batches(Protocol):
    """Where a replica's micro-batches come from."""

    def micro_batch(self, step: int, micro_batch: int) -> MicroBatch: ...


class Saver(Protocol):
    """Writes a unit's own part to a checkpoint, in steps that save."""

    def save(self, unit: UnitState, step: int) -> None: ...


@dataclass(frozen=True)
class Sizes:
    """Shapes and counts that ops need."""

    boundary: tuple[int, int, int]  # micro-batch, sequence, hidden
    tokens: int  # counted in one step over all replicas


class RankOps:
    """The ops of one rank. `losses[step]` are sums over tokens, micro-batch by micro-batch."""

    def __init__(
        self,
        schedule: Schedule,
        states: RankStates,
        network: Network,
        batches: Batches,
        train: TrainSpec,
        sizes: Sizes,
        clipping: Clipping,
    ) -> None:
        self._setup: Setup = schedule.program.setup
        self._states = states
        self._network = network
        self._batches = batches
        self.saver: Saver | None = None
        self._train = train
        self._sizes = sizes
        self.clipping = clipping
        self._rank_of_stage = _rank_of_stage(schedule)
        self._stage_units = _units_of_stages(schedule)
        self.losses: dict[int, list[Tensor]] = {}
        self.gradient_norm: dict[int, float] = {}
        self._do: dict[Kind, Callable[[LocalOp, int], None]] = {
            Kind.F: self._forward,
            Kind.R: self._recover,
            Kind.B: self._backward,
            Kind.I: self._input_gradient,
            Kind.W: self._weight_gradient,
            Kind.SEND_F: self._send_forward,
            Kind.RECV_F: self._receive_forward,
            Kind.SEND_B: self._send_backward,
            Kind.RECV_B: self._receive_backward,
            Kind.GradSync: self._grad_sync,
            Kind.UpdateShard: self._update_shard,
            Kind.PrefetchW: self._prefetch_view,
            Kind.AllReduce_F: self._sum_outputs,
            Kind.AllReduce_B: self._sum_gradients,
            Kind.Gather_F: self._gather,
            Kind.Gather_B: self._gather,
            Kind.ClipNorm: self._clip_norm,
            Kind.Save: self._save,
            Kind.TieSync: self._tie_sync,
        }

    def execute(self, op: LocalOp, step: int) -> None:
        """Does an op's work; barriers do nothing but wait, and have waited by now."""
        work = self._do.get(op.kind)
        if work is not None:
            work(op, step)

    # ---- compute ------------------------------------------------------------------------

    def _forward(self, op: LocalOp, step: int) -> None:
        unit = self._unit(op)
        key = op.unit, op.micro_batch
        output, graph = self._run(unit, op, step, keep=not unit.local.recovered)
        if graph is not None:
            self._states.saved[key] = graph
        if unit.local.last:
            self.losses.setdefault(step, []).append(output.detach())
        elif self._setup.tensor > 1:
            self._states.partial[key] = output.detach()
        else:
            self._hand_on(op, output.detach())

    def _hand_on(self, op: LocalOp, output: Tensor) -> None:
        if self._unit(op).local.next_is_local:
            self._states.inputs[op.unit + 1, op.micro_batch] = output
        else:
            self._states.sendx[op.stage, op.micro_batch] = output

    def _recover(self, op: LocalOp, step: int) -> None:
        _, graph = self._run(self._unit(op), op, step, keep=True)
        self._states.saved[op.unit, op.micro_batch] = graph

    def _run(
        self, unit: UnitState, op: LocalOp, step: int, *, keep: bool
    ) -> tuple[Tensor, Graph | None]:
        """A unit's forward, with the graph that backward needs or without."""
        self._attach_view(unit, op)
        batch = self._batches.micro_batch(step, op.micro_batch)
        given = self._states.inputs.get((op.unit, op.micro_batch))
        leaf = self._no_input() if given is None else given.detach()
        with nullcontext() if keep else torch.no_grad():
            if keep:
                leaf.requires_grad_()
            output = unit.unit.forward(unit.weights, leaf, batch)
        return output, Graph(get_gradient_edge(output), leaf) if keep else None

    def _backward(self, op: LocalOp, step: int) -> None:
        unit = self._unit(op)
        self._attach_view(unit, op)
        unit.weights.attach_gradient(self._gradient_place(unit, op))
        self._hand_back(op, self._through_graph(op))
        unit.weights.attach_gradient(None)
        self._free_activations(op)

    def _input_gradient(self, op: LocalOp, step: int) -> None:
        unit = self._unit(op)
        self._attach_view(unit, op)
        deferred = unit.weights.defer()
        self._hand_back(op, self._through_graph(op))
        unit.weights.stop_deferring()
        self._states.saved[op.unit, op.micro_batch] = deferred

    def _weight_gradient(self, op: LocalOp, step: int) -> None:
        unit = self._unit(op)
        unit.weights.attach_gradient(self._gradient_place(unit, op))
        Weights.play(self._states.saved.pop((op.unit, op.micro_batch)))
        unit.weights.attach_gradient(None)
        self._free_activations(op)

    def _through_graph(self, op: LocalOp) -> Tensor | None:
        """The gradient of a unit's input; weight gradients go their own way."""
        graph: Graph = self._states.saved.pop((op.unit, op.micro_batch))
        if self._unit(op).local.last:
            seed = torch.tensor(
                self.clipping.scale / self._sizes.tokens, device=self._states.device
            )
        else:
            seed = self._states.outgrads[op.unit, op.micro_batch]
        (gradient,) = torch.autograd.grad([graph.edge], [graph.leaf], [seed], allow_unused=True)
        return gradient

    def _hand_back(self, op: LocalOp, gradient: Tensor | None) -> None:
        if self._unit(op).local.first:
            return
        assert gradient is not None
        if self._setup.tensor > 1:
            self._states.partialb[op.unit, op.micro_batch] = gradient
        else:
            self._hand_to_previous(op, gradient)

    def _hand_to_previous(self, op: LocalOp, gradient: Tensor) -> None:
        if self._unit(op).local.previous_is_local:
            self._states.outgrads[op.unit - 1, op.micro_batch] = gradient
        else:
            self._states.sendg[op.stage, op.micro_batch] = gradient

    def _free_activations(self, op: LocalOp) -> None:
        key = op.unit, op.micro_batch
        self._states.inputs.pop(key, None)
        self._states.outgrads.pop(key, None)

    def _gradient_place(self, unit: UnitState, op: LocalOp) -> Tensor:
        """Where this micro-batch's weight gradient goes: fresh for the first, else added to."""
        if self._setup.per_micro_batch:
            place = self._states.transit[op.transit][: unit.padded]
            return place.zero_()
        if op.micro_batch == 0:
            unit.gradient = self._states.new_gradient(unit)
        assert unit.gradient is not None
        return unit.gradient

    def _attach_view(self, unit: UnitState, op: LocalOp) -> None:
        if self._setup.gathers_per_use:
            unit.weights.attach_view(self._states.gathered[op.gathered][: unit.padded])

    def _no_input(self) -> Tensor:
        """Stands in for the input of the model's first unit, which has none."""
        return torch.empty(0, dtype=self._states.dtype, device=self._states.device)

    # ---- sums over the tensor group -----------------------------------------------------
    # The last sum of a unit's forward, and of its backward. Sums in the middle of a unit block
    # its compute op. A recovered unit's last sum is its output, which backward does not read: so
    # AllReduce_R does nothing.

    def _sum_outputs(self, op: LocalOp, step: int) -> None:
        self._hand_on(op, self._summed(self._states.partial, op))

    def _sum_gradients(self, op: LocalOp, step: int) -> None:
        self._hand_to_previous(op, self._summed(self._states.partialb, op))

    def _summed(self, parts: dict[tuple[int, int], Tensor], op: LocalOp) -> Tensor:
        part = parts.pop((op.unit, op.micro_batch))
        group = self._network.tensor_group(Lane.TENSOR)
        assert group is not None
        group.sum_(part)
        return part

    # ---- messages -----------------------------------------------------------------------

    def meet(self, op: LocalOp) -> None:
        """A send and its receive happen together, in the program's proof of memory too: room for
        what arrives is taken when its sender is there, not when the lane is free to receive. With
        slots the room is there already."""
        if op.kind is Kind.RECV_F:
            self._network.await_sender(op.lane, self._rank_of_stage[op.stage - 1])
        elif op.kind is Kind.RECV_B and self._setup.split_backward:
            self._network.await_sender(op.lane, self._rank_of_stage[op.stage + 1])

    def _send_forward(self, op: LocalOp, step: int) -> None:
        self._network.announce(op.lane, self._rank_of_stage[op.stage + 1])
        tensor = self._states.sendx.pop((op.stage, op.micro_batch))
        self._network.send(op.lane, tensor, self._rank_of_stage[op.stage + 1])

    def _receive_forward(self, op: LocalOp, step: int) -> None:
        tensor = self._boundary()
        self._network.receive(op.lane, tensor, self._rank_of_stage[op.stage - 1])
        first, _ = self._stage_units[op.stage]
        self._states.inputs[first, op.micro_batch] = tensor

    def _send_backward(self, op: LocalOp, step: int) -> None:
        if self._setup.split_backward:
            self._network.announce(op.lane, self._rank_of_stage[op.stage - 1])
        tensor = self._states.sendg.pop((op.stage, op.micro_batch))
        self._network.send(op.lane, tensor, self._rank_of_stage[op.stage - 1])

    def _receive_backward(self, op: LocalOp, step: int) -> None:
        tensor = self._boundary()
        self._network.receive(op.lane, tensor, self._rank_of_stage[op.stage + 1])
        _, last = self._stage_units[op.stage]
        self._states.outgrads[last, op.micro_batch] = tensor

    def _boundary(self) -> Tensor:
        return torch.empty(
            self._sizes.boundary, dtype=self._states.dtype, device=self._states.device
        )

    # ---- states -------------------------------------------------------------------------

    def _grad_sync(self, op: LocalOp, step: int) -> None:
        unit = self._unit(op)
        if not self._setup.per_micro_batch:
            assert unit.gradient is not None
            self._network.reduce(unit.gradient, unit.gradient[unit.own])
            if not self._setup.sharding:
                self._network.gather(Lane.REDUCE, unit.gradient)
            return
        flat = self._states.transit[op.transit][: unit.padded]
        own = flat[unit.own]
        self._network.reduce(flat, own)
        if op.micro_batch == 0:
            unit.shard = own.clone()
        else:
            assert unit.shard is not None
            unit.shard += own

    def _tie_sync(self, op: LocalOp, step: int) -> None:
        unit, last = self._unit(op), self._states.units[-1]
        own = tied_gradient(unit)
        if unit.local.first and last.local.last:
            add_here(own, tied_gradient(last))
        elif len(own):  # the last owner's part may be all padding, at both ends
            self._network.add_copies(own)

    def _clip_norm(self, op: LocalOp, step: int) -> None:
        """The global norm: each part's sum of squares, added in the order of units and parts."""
        squares = torch.stack([self._square(unit) for unit in self._states.units]).cpu()
        total = sum(float(value) for row in self._exchanged(squares) for value in row)
        self.gradient_norm[step] = self.clipping.settle(step, total)

    def _square(self, unit: UnitState) -> Tensor:
        """The sum of squares of what this rank counts of its share of a unit's gradient: a tied
        matrix counts once, as embedding; a part that a whole tensor group has, on one of it."""
        share, total = self._reduced(unit, own=True), torch.zeros((), dtype=torch.float64)
        tied = self._setup.tied and unit.local.last
        for piece in counted_once(unit) if tied else unit.counted:
            for part in share[piece].split(_SQUARED_ELEMENTS):
                total = total.to(share.device) + part.double().square().sum()
        return total

    def _exchanged(self, squares: Tensor) -> list[list[float]]:
        """All ranks' sums, padded to one length for the exchange."""
        longest = self._network.exchange(Lane.UPDATE, torch.tensor([len(squares)]))
        padded = torch.zeros(int(max(longest)), dtype=torch.float64)
        padded[: len(squares)] = squares
        return [row.tolist() for row in self._network.exchange(Lane.UPDATE, padded)]

    def _update_shard(self, op: LocalOp, step: int) -> None:
        unit = self._unit(op)
        clipping = self.clipping
        if not clipping.skips:
            done = clipping.updates_before(step)
            unit.part.update(self._reduced(unit), self._train, step, done, clipping.factor)
        target = unit.shard_view
        if unit.view is not None:
            target = unit.view[unit.part.begin : unit.part.end]
        assert target is not None
        if target.data_ptr() != unit.part.weights.data_ptr():
            target.copy_(unit.part.weights)
        # From here on the new weights stand for the gradient: it is not read again.
        unit.gradient = unit.shard = None

    def _reduced(self, unit: UnitState, *, own: bool = False) -> Tensor:
        """The reduced gradient of the part that this rank updates, or only of its own share."""
        if unit.shard is not None:
            return unit.shard
        assert unit.gradient is not None
        return unit.gradient[unit.own if own else slice(unit.part.begin, unit.part.end)]

    def _prefetch_view(self, op: LocalOp, step: int) -> None:
        unit = self._unit(op)
        assert unit.view is not None
        self._network.gather(Lane.GATHER, unit.view)

    def _gather(self, op: LocalOp, step: int) -> None:
        unit = self._unit(op)
        assert unit.shard_view is not None
        slot = self._states.gathered[op.gathered][: unit.padded]
        slot[unit.own] = unit.shard_view
        self._network.gather(Lane.GATHER, slot)

    def _save(self, op: LocalOp, step: int) -> None:
        if self.saver is not None:
            self.saver.save(self._unit(op), step)

    def _unit(self, op: LocalOp) -> UnitState:
        return self._states.units[op.unit]


def _rank_of_stage(schedule: Schedule) -> list[int]:
    """The pipeline rank of each stage."""
    setup = schedule.program.setup
    stages: tuple[Stage, ...] = setup.replicas[setup.replica_of(schedule.rank)].stages
    return [stage.rank for stage in stages]


def _units_of_stages(schedule: Schedule) -> dict[int, tuple[int, int]]:
    """(first, last) unit index of each stage of the rank."""
    found: dict[int, tuple[int, int]] = {}
    for unit in schedule.units:
        first, _ = found.get(unit.stage, (unit.index, unit.index))
        found[unit.stage] = first, unit.index
    return found
