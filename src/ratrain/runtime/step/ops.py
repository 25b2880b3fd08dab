"""What each kind of op does: one method a kind, called by its lane in the order of the program."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ratrain.describe.train import TrainSpec
from ratrain.models.functions.dropout import Drawn
from ratrain.models.functions.rows import spread, summed
from ratrain.models.graphs import Graph, gradient_of_leaf, graph_of
from ratrain.models.tensor_group import TensorGroup
from ratrain.models.units import MicroBatch
from ratrain.models.weights import Weights
from ratrain.plugins import named
from ratrain.program.kind import Kind, Lane
from ratrain.program.replicas import Stage
from ratrain.program.tiers import waiting_families
from ratrain.runtime.step.clipping import Clipping
from ratrain.runtime.step.exchange.boundaries import BoundaryPart, receive_boundary, send_boundary
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.schedule import LocalOp, Schedule
from ratrain.runtime.step.spilled import Cell, KeptTensors
from ratrain.runtime.step.state_ops import PASSING, StateOps
from ratrain.runtime.step.states import RankStates
from ratrain.runtime.step.unit_state import UnitState

# Families that a unit's tensors may be of: an op reads or writes one of them, as the program says.
INPUTS = ("input", "staged", "arrived", "fetched")
_OUTPUTS = ("input", "staged", "sendx")
_KEPT = ("saved", "refilled")
OUTPUT_GRADIENTS = ("outgrad", "recvg")
_INPUT_GRADIENTS = ("outgrad", "sendg")


class Batches(Protocol):
    """Where a replica's micro-batches come from."""

    def micro_batch(self, step: int, micro_batch: int, joined: int = 1) -> MicroBatch: ...

    def drawn(self, step: int, micro_batch: int, train: TrainSpec) -> Drawn | None: ...


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
        self.batches = batches
        self._seed: Tensor | None = None  # of the loss' gradient, where it stays in one place
        self._sizes = sizes
        self._group = network.tensor_group(Lane.COMPUTE)
        self._counted = counted
        self._stages = _stages(schedule)
        self._joined = {stage: member.joined for stage, member in schedule.held}
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
        if ":" in kind.method:
            return partial(named(kind.method), self)
        return getattr(self, kind.method) if kind.method else None

    # ---- compute ------------------------------------------------------------------------

    def forward(self, op: LocalOp, step: int) -> None:
        unit = self.unit(op)
        keep = not (unit.local.recovered or self._setup.forward_only)
        output, graph = self._run(unit, op, step, keep=keep)
        if graph is not None:
            self._held.write(op, graph, "saved", "saved_out")
        if unit.local.last:
            self.losses.setdefault(step, []).append(output.detach())
        else:
            self._held.write(op, output.detach(), "partial", *_OUTPUTS)
        self._let_view_go(unit, op)

    def recover(self, op: LocalOp, step: int) -> None:
        _, graph = self._run(self.unit(op), op, step, keep=True)
        self._held.write(op, graph, "saved")

    def _run(
        self, unit: UnitState, op: LocalOp, step: int, *, keep: bool
    ) -> tuple[Tensor, Graph | None]:
        """A unit's forward, with the graph that backward needs or without."""
        self._attach_view(unit, op)
        batch = replace(
            self.batches.micro_batch(step, op.micro_batch, self._joined[op.stage]),
            loss_weight=self._loss_weight(step),
            drawn=None
            if self._setup.forward_only
            else self.batches.drawn(step, op.micro_batch, self._train),
        )
        given = self._held.read(op, *INPUTS)
        leaf = self._no_input() if given is None else spread(given.detach(), self._group)
        kept = KeptTensors(leaf) if "saved_out" in op.writes else None
        with nullcontext() if keep else torch.no_grad(), kept.taken() if kept else nullcontext():
            if keep:
                leaf.requires_grad_()
            output = unit.unit.forward(unit.weights, leaf, batch)
        return output, graph_of(output, leaf, kept) if keep else None

    def backward(self, op: LocalOp, step: int) -> None:
        unit = self.unit(op)
        self._attach_view(unit, op)
        with self._gradient_goes(unit, op):
            gradient = self._through_graph(op, step)
        self._hand_back(op, gradient)
        self._let_view_go(unit, op)

    def input_gradient(self, op: LocalOp, step: int) -> None:
        unit = self.unit(op)
        self._attach_view(unit, op)
        deferred = unit.weights.defer()
        self._hand_back(op, self._through_graph(op, step))
        unit.weights.stop_deferring()
        self._held.write(op, deferred, *_KEPT)
        self._let_view_go(unit, op)

    def weight_gradient(self, op: LocalOp, step: int) -> None:
        unit = self.unit(op)
        with self._gradient_goes(unit, op):
            Weights.play(self._held.read(op, *_KEPT))

    def _through_graph(self, op: LocalOp, step: int) -> Tensor | None:
        """The gradient of a unit's input; weight gradients go their own way."""
        graph: Graph = self._held.read(op, *_KEPT)
        if self.unit(op).local.last:
            seed = self._seed
            if seed is None:
                seed = torch.full((), self._loss_weight(step), device=self._states.device)
        else:
            seed = spread(self._held.read(op, *OUTPUT_GRADIENTS), self._group)
        return gradient_of_leaf(graph, seed)

    def _loss_weight(self, step: int) -> float:
        """What each token's loss is multiplied by; where none counts, every gradient is zero."""
        return self.clipping.scale / max(1, self._counted(step))

    # ---- ops that are recorded (`captured`) ----------------------------------------------

    def keep_in_place(self) -> None:
        """From now on what ops read of a step, and gradients, stay in the same memory."""
        self._seed = torch.zeros((), device=self._states.device)
        self._states.keep_gradients()

    def prepare(self, op: LocalOp, step: int) -> None:
        """Fills what an op reads of its step."""
        assert self._seed is not None
        self.batches.micro_batch(step, op.micro_batch, self._joined[op.stage])
        if self.unit(op).local.last and op.kind is Kind.B:
            self._seed.fill_(self._loss_weight(step))

    def add_loss(self, step: int, loss: Tensor) -> None:
        """One more micro-batch's loss, of a place that is written again in the next step."""
        self.losses.setdefault(step, []).append(loss.clone())

    def give_gradient(self, op: LocalOp) -> None:
        """A unit's gradient is there, after a backward that was replayed."""
        unit = self.unit(op)
        if op.place == 0 and not self._setup.per_micro_batch and unit.trained:
            unit.gradient = self._states.kept_gradient(unit)

    def _hand_back(self, op: LocalOp, gradient: Tensor | None) -> None:
        if self.unit(op).local.first:
            return
        assert gradient is not None
        self._held.write(op, gradient, "partialb", *_INPUT_GRADIENTS)

    @contextmanager
    def _gradient_goes(self, unit: UnitState, op: LocalOp) -> Generator[None]:
        """Where weight gradients go that are made inside: to a place for all of the unit's, or into
        buckets that leave meanwhile."""
        if not unit.trained:
            yield
            return
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
        if "gradient_slot" in op.writes:
            place = unit.gradient = self._states.gradient_in(unit, op.writes["gradient_slot"])
            return place.zero_() if op.place == 0 else place
        if op.place == 0:
            unit.gradient = self._states.new_gradient(unit)
        assert unit.gradient is not None
        return unit.gradient

    def _attach_view(self, unit: UnitState, op: LocalOp) -> None:
        if not unit.local.gathered:
            if "view_slot" in op.reads:
                unit.attach_gathered(self._fetched_view(op))
            return
        if self._setup.gathers_per_pass:
            unit.attach_gathered(self._held.read(op, *PASSING))
        else:
            unit.attach_gathered(self._states.gathered[op.gathered][: unit.gathered_elements])

    def _let_view_go(self, unit: UnitState, op: LocalOp) -> None:
        """After the last use in a pass of what was gathered for all of it."""
        if any(state.family in PASSING for state in op.deaths):
            unit.attach_gathered(None)

    def _no_input(self) -> Tensor:
        """A placeholder for the input of the model's first unit, which has none."""
        return torch.empty(0, dtype=self._states.dtype, device=self._states.device)

    # ---- sums over the tensor group -----------------------------------------------------
    # The last sum of a unit's forward, and of its backward. Sums in the middle of a unit block
    # its compute op. A recovered unit's last sum is its output, which backward does not read: so
    # `AllReduce_R` does nothing.

    def sum_output(self, op: LocalOp, step: int) -> None:
        self._held.write(op, self._summed(op, "partial"), *_OUTPUTS)

    def sum_gradient(self, op: LocalOp, step: int) -> None:
        self._held.write(op, self._summed(op, "partialb"), *_INPUT_GRADIENTS)

    def _summed(self, op: LocalOp, family: str) -> Tensor:
        return summed(self._held.read(op, family), self.network.tensor_group(Lane.TENSOR))

    # ---- messages -----------------------------------------------------------------------

    def meet(self, op: LocalOp) -> None:
        """A send and its receive happen together, in the program's proof of memory too: room for
        what arrives is taken when its sender is there, not when the lane is free to receive. With
        slots the memory is already there. So do a backward and the reduction of its buckets."""
        if op.kind.uses_buckets and self._states.buckets is not None:
            if self.unit(op).trained:
                self._states.buckets.meet(op.lane)
        elif op.kind is Kind.RECV_F:
            self.network.await_sender(op.lane, self._rank_beside(op, -1))
        elif op.kind is Kind.RECV_B and self._arrives_apart:
            self.network.await_sender(op.lane, self._rank_beside(op, +1))

    def stop(self) -> None:
        """Lets nobody wait for buckets any more: a lane has failed."""
        if self._states.buckets is not None:
            self._states.buckets.stop()

    def take_stalled_s(self) -> float:
        """How long backward has waited for buckets since it was last asked."""
        return self._states.buckets.take_stalled_s() if self._states.buckets else 0.0

    def send_output(self, op: LocalOp, step: int) -> None:
        self._send(op, +1, "sendx")

    def receive_input(self, op: LocalOp, step: int) -> None:
        self._receive(op, -1, *INPUTS)

    def send_gradient(self, op: LocalOp, step: int) -> None:
        self._send(op, -1, "sendg")

    def receive_gradient(self, op: LocalOp, step: int) -> None:
        self._receive(op, +1, *OUTPUT_GRADIENTS)

    def _rank_beside(self, op: LocalOp, ahead: int) -> int:
        """The rank of the replica that computes an op's micro-batch on a stage beside its own."""
        return self._stages[op.stage + ahead].member_for(op.micro_batch).rank

    def _send(self, op: LocalOp, ahead: int, family: str) -> None:
        """Sends a tensor, or what a message has of it."""
        tensor = self._part(op, ahead).of(self._held.read(op, family))
        to, wire = self._rank_beside(op, ahead), self._states.wire.boundaries
        send_boundary(self.network, op.lane, tensor, to, wire)

    def _receive(self, op: LocalOp, ahead: int, *families: str) -> None:
        """Fills a tensor, or the part of it that a message brings: the first makes the tensor."""
        part = self._part(op, ahead)
        if part.is_first:
            shape = self._sizes.of_joined(part.joined).rows_of(self._group)
            tensor = torch.empty(shape, dtype=self._states.dtype, device=self._states.device)
        else:
            tensor = self._held.read(op, *families)
        sender, wire = self._rank_beside(op, ahead), self._states.wire.boundaries
        receive_boundary(self.network, op.lane, part.of(tensor), sender, wire)
        self._held.write(op, tensor, *families)

    def _part(self, op: LocalOp, ahead: int) -> BoundaryPart:
        """What the message of an op has of the tensor between its stage and the one beside."""
        joined = self._joined[op.stage]
        beside = self._stages[op.stage + ahead].members[0].joined
        return BoundaryPart(joined, min(joined, beside), op.micro_batch)

    @property
    def _arrives_apart(self) -> bool:
        """Whether gradients that arrive take memory then: they have no slots."""
        return self._setup.split_backward or self._setup.arrival_places

    # ---- activations in other tiers -----------------------------------------------------

    def offload_input(self, op: LocalOp, step: int) -> None:
        made: Tensor = self._held.read(op, *INPUTS)
        raw = made.contiguous().flatten().view(torch.uint8)

        def copied(room: Tensor) -> None:
            room[: len(raw)].copy_(raw)

        places = self._states.places["input", op.unit]
        places.store(self._cell(op), len(raw), copied, self._states.bounce)
        self._held.write(op, made.shape, *waiting_families("input"))

    def fetch_input(self, op: LocalOp, step: int) -> None:
        shape: torch.Size = self._held.read(op, *waiting_families("input"))
        places = self._states.places["input", op.unit]
        room = places.fetch(self._cell(op))
        size = shape.numel() * self._states.dtype.itemsize
        self._held.write(op, room[:size].view(self._states.dtype).view(shape), "fetched")

    def spill(self, op: LocalOp, step: int) -> None:
        graph: Graph = self._held.read(op, "saved_out")
        kept: KeptTensors = graph.kept
        places = self._states.places["saved", op.unit]
        places.store(self._cell(op), kept.size_bytes, kept.leave, self._states.bounce)
        self._held.write(op, graph, *waiting_families("saved"))

    def fill(self, op: LocalOp, step: int) -> None:
        graph: Graph = self._held.read(op, *waiting_families("saved"))
        graph.kept.return_in(self._states.places["saved", op.unit].fetch(self._cell(op)))
        self._held.write(op, graph, "refilled")

    @staticmethod
    def _cell(op: LocalOp) -> Cell:
        return op.unit, op.micro_batch


def _stages(schedule: Schedule) -> tuple[Stage, ...]:
    """The stages of the rank's replica."""
    setup = schedule.program.setup
    return setup.replicas[setup.replica_of(schedule.rank)].stages
