"""What ops on states do: gradients are reduced, weights updated, gathered and saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ratrain.cost.scratch import pieces_on
from ratrain.describe.train import TrainSpec
from ratrain.program.kind import Lane
from ratrain.program.setup import Setup
from ratrain.runtime.step.clipping import Clipping, is_finite
from ratrain.runtime.step.exchange.buckets import Buckets, Span
from ratrain.runtime.step.exchange.narrowing import narrowed, narrowed_place, widen_from_front
from ratrain.runtime.step.mirror import Mirror
from ratrain.runtime.step.network.broadcast import summed
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.schedule import LocalOp, Schedule
from ratrain.runtime.step.states import RankStates
from ratrain.runtime.step.tied import add_here, counted_once, tied_gradients
from ratrain.runtime.step.unit_state import TORN, UnitState

PASSING = ("passing_f", "passing_b")
"""Views that are gathered once for a whole pass."""


class Saver(Protocol):
    """Writes a unit's own part to a checkpoint, in steps that save."""

    def save(self, unit: UnitState, step: int) -> None: ...


class StateOps:
    """The ops of one rank on what outlives a micro-batch: gradients, weights, optimizer states."""

    def __init__(
        self,
        schedule: Schedule,
        states: RankStates,
        network: Network,
        train: TrainSpec,
        clipping: Clipping,
    ) -> None:
        self._setup: Setup = schedule.program.setup
        self._states, self._held = states, states.held
        self.network = network
        self._train = train
        self.clipping = clipping
        self.savers: tuple[Saver, ...] = ()
        self.saves_later: Callable[[int], bool] = lambda _: False
        """Whether a step is saved once it is over, with weights that it does not leave."""
        self.gradient_norm: dict[int, float] = {}
        self._left: dict[int, Tensor] = {}
        """Of units whose reduced gradients wait elsewhere for the norm, their parts of it."""
        self.skipped_updates: Counter[int] = Counter()

    def grad_sync(self, op: LocalOp, step: int) -> None:
        unit = self.unit(op)
        if self._states.buckets is not None:
            self._sync_buckets(unit, op, self._states.buckets)
            return
        if not self._setup.per_micro_batch:
            if not unit.local.micro_batches:
                unit.gradient = self._states.new_gradient(unit)
            assert unit.gradient is not None
            gradient = unit.gradient = self._to_send(unit, op, unit.gradient)
            unit.reduce(self.network, gradient)
            if not self._setup.sharding:
                unit.gather(self.network, Lane.REDUCE, gradient)
            else:
                self._agree_on_overflow(unit)
            return
        flat = self._states.transit[op.transit][: unit.padded]
        flat = self._to_send(unit, op, flat)
        unit.reduce(self.network, flat)
        if op.place == 0:
            unit.shard = self._states.new_shard(unit)
        assert unit.shard is not None
        for share, window in unit.windows:
            if op.place == 0:
                unit.shard[window] = flat[share]
            else:
                unit.shard[window] += flat[share]
        if op.place == unit.local.micro_batches - 1:
            self._agree_on_overflow(unit)

    def _sync_buckets(self, unit: UnitState, op: LocalOp, buckets: Buckets) -> None:
        """Reduces a unit's gradient bucket by bucket, while its backward fills them. A bucket's
        elements belong to a few holders, so each holder adds up a part of it and sends that on:
        every element is summed once, in the order of holders, wherever bucket or part begin."""
        owned, first = unit.owned, op.place == 0
        if first:
            unit.shard = self._states.new_shard(unit)
        assert unit.shard is not None
        place, count = unit.place, len(unit.holders)
        for bucket in buckets.filled():
            flat = self._to_send(unit, op, bucket.filled(count), bucket.spans)
            self.network.reduce(flat, flat.view(count, -1)[place], unit.holders)
            self.network.gather(Lane.REDUCE, flat, unit.holders)
            bucket.add_to(unit.shard, owned, flat, first=first)
        if op.place == unit.local.micro_batches - 1:
            self._agree_on_overflow(unit)

    def _to_send(
        self, unit: UnitState, op: LocalOp, wide: Tensor, spans: Sequence[Span] | None = None
    ) -> Tensor:
        """What leaves of a unit's gradient, in the dtype in which it is sent; with error feedback,
        with what rounding took away from what left before. `spans`: as in `Residual.narrowed`."""
        dtype = self._states.wire.gradients
        if unit.residual is None:
            return narrowed(wide, dtype)
        first = not self._setup.per_micro_batch or op.place == 0
        return unit.residual.narrowed(wide, dtype, spans, first=first, scale=self.clipping.scale)

    def _agree_on_overflow(self, unit: UnitState) -> None:
        """Where units decide by themselves: whether any owner's part of the sum has overflowed."""
        if not self.clipping.by_unit:
            return
        flags = torch.zeros(len(unit.holders), device=self._states.device)
        flags[unit.place] = float(not all(map(is_finite, self._sums(unit))))
        self.network.gather(Lane.REDUCE, flags, unit.holders)
        unit.overflowed = bool(flags.any())

    def tie_sync(self, op: LocalOp, step: int) -> None:
        unit, last = self.unit(op), self._states.units[-1]
        self._narrow(unit)  # on one rank too, so that a pipeline's depth changes no bit
        if unit.local.first and last.local.last:
            self._narrow(last)
            add_here(tied_gradients(unit), tied_gradients(last))
        else:
            self.network.add_copies(tied_gradients(unit))

    def average_weights(self, op: LocalOp, step: int) -> None:
        """Master weights become their mean over the replicas, in local SGD the optimizer's states
        too, and the view follows."""
        unit = self.unit(op)
        by_turns = self._setup.averages.by_turns
        for buffer in (unit.own_master(),) if by_turns else unit.averaged():
            unit.weigh(buffer)
            self.average(unit, buffer)
        if not self._setup.gathers:  # else they follow once they are updated
            self.show(unit)

    def copy_weights(self, op: LocalOp, step: int) -> None:
        """A copy of master weights, for others to average while the replica computes with them."""
        unit = self.unit(op)
        weights = unit.own_master()
        copy = weights.clone() if unit.outer is None else unit.outer.learnt(weights)
        unit.weigh(copy)
        self._held.write(op, copy, "averaged")

    def average_copy(self, op: LocalOp, step: int) -> None:
        """The copy becomes the mean of all replicas' copies, or what the outer step makes of it."""
        unit, copy = self.unit(op), self._held.read(op, "averaged")
        rate = self._train.outer_learning_rate
        if unit.outer is None or rate is None:
            self.average(unit, copy)
            return
        if self._states.wire.averages is not None:
            unit.average_learnt(self.network, self._states.wire.averages, copy)
        else:
            sent = unit.outer.sent(copy)
            self.average(unit, sent)
            widen_from_front(copy, sent)
        unit.outer.step(copy, rate, self._train.outer_momentum)

    def average(self, unit: UnitState, buffer: Tensor) -> None:
        """A unit's flat tensor becomes its mean over the replicas, or sites: each share is added up
        in their order by its owner, so all have the same bits."""
        if unit.across is not None:
            unit.average(self.network, buffer)
            return
        unit.reduce(self.network, buffer)
        for share in unit.shares:
            buffer[share] /= unit.replicas
        unit.gather(self.network, Lane.REDUCE, buffer)

    def _narrow(self, unit: UnitState) -> Tensor:
        """A unit's gradient in the dtype in which it is sent."""
        assert unit.gradient is not None
        unit.gradient = gradient = narrowed(unit.gradient, self._states.wire.gradients)
        return gradient

    def clip_norm(self, op: LocalOp, step: int) -> None:
        """The global norm: each part's sum of squares, added in the order of units and parts."""
        squares = torch.stack([self._square_of(unit) for unit in self._states.units]).cpu()
        total = self.network.combine(Lane.UPDATE, squares, summed)
        self.gradient_norm[step] = self.clipping.settle(step, float(total))

    def _square_of(self, unit: UnitState) -> Tensor:
        """The same, of one that has left as it was when it did."""
        left = self._left.pop(unit.local.index, None)
        return self._square(unit) if left is None else left

    def _square(self, unit: UnitState) -> Tensor:
        """The sum of squares of what this rank counts of its share of a unit's gradient: a tied
        matrix counts once, as embedding; a part that a whole tensor group has, on one of it."""
        total = torch.zeros((), dtype=torch.float64, device=self._states.device)
        # At once as many as, in fp64 and with their squares, are what the optimizer widens later.
        elements = pieces_on(total.device.type).update // 4
        tied = self._setup.tied and unit.local.last
        for piece in counted_once(unit) if tied else unit.counted:
            for part in self._reduced(unit, piece).split(elements):
                total = total + _squares(part)
        return total

    def update_shard(self, op: LocalOp, step: int) -> None:
        unit = self.unit(op)
        clipping, unit.version = self.clipping, TORN
        mean: Tensor | None = self._held.read(op, "averaged")
        if mean is not None:
            first = unit.parts[0].begin  # of what this rank updates, which is all that was copied
            for part in unit.parts:
                part.weights.copy_(mean[part.begin - first : part.end - first])
        skipped = self._skips(unit, step)
        if unit.residual is not None:
            unit.residual.settle(skipped=skipped)
        if not skipped:
            done = clipping.updates_before(step)
            for part in unit.parts:
                gradient = self._reduced(unit, slice(part.begin, part.end))
                part.update(gradient, self._train, step, done, clipping.factor)
        self._make_weights(unit, op)
        unit.version = step + 1

    def mirror_gradient(self, op: LocalOp, step: int) -> None:
        unit = self.unit(op)
        (own,) = self._sums(unit)
        mirror_of(unit).swap(self.network, unit.holders, own)

    def commit(self, op: LocalOp, step: int) -> None:
        """All ranks have come here: each gradient of the step is on two of them."""
        self.network.combine(Lane.UPDATE, torch.zeros(1, dtype=torch.float64), summed)

    def mirror_update(self, op: LocalOp, step: int) -> None:
        mirror = mirror_of(self.unit(op))
        mirror.version = TORN
        mirror.update(self._train, step, self.clipping)
        mirror.version = step + 1

    def _make_weights(self, unit: UnitState, op: LocalOp) -> None:
        """What compute reads, of the updated master weights: over what it has read; or, where that
        waits elsewhere, in a slot on the way there, or until it is gathered in the gradient's
        place."""
        view, share = unit.view, unit.shard_view
        if "view_made" in op.writes:
            made = self._states.away["view"].flat(op.unit, op.writes["view_made"])
            view, share = (None, made) if unit.local.gathered else (made, None)
        elif unit.local.waits("view"):
            share = torch.empty(
                unit.owned_elements, dtype=self._states.dtype, device=self._states.device
            )
        self._round_weights(unit, view, share)
        if unit.local.waits("view") and "view_made" not in op.writes:
            unit.updated = share

    def show(self, unit: UnitState) -> None:
        """What this rank's parts of the view follow from their master weights."""
        self._round_weights(unit, unit.view, unit.shard_view)

    def _round_weights(self, unit: UnitState, view: Tensor | None, share: Tensor | None) -> None:
        for part in unit.parts:
            run = slice(part.begin, part.end)
            target = view[run] if view is not None else _of(share)[unit.in_shard(run)]
            if target.data_ptr() != part.weights.data_ptr():
                target.copy_(part.weights)

    def _skips(self, unit: UnitState, step: int) -> bool:
        """Whether a unit's update is left out because a gradient overflowed: any, or its own."""
        if not self.clipping.by_unit:
            return self.clipping.skips
        shared, unit.overflowed = unit.overflowed, None
        overflowed = not all(map(is_finite, self._sums(unit))) if shared is None else shared
        self.skipped_updates[step] += overflowed
        return overflowed

    def _sums(self, unit: UnitState) -> list[Tensor]:
        """The reduced gradient of what this rank updates."""
        return [self._reduced(unit, slice(part.begin, part.end)) for part in unit.parts]

    def _reduced(self, unit: UnitState, piece: slice) -> Tensor:
        """A piece of the reduced gradient, of what this rank updates."""
        if unit.shard is not None:
            return unit.shard[unit.in_shard(piece)]
        assert unit.gradient is not None
        return unit.gradient[piece]

    def fetch(self, op: LocalOp, step: int) -> None:
        """A unit's states of the kind's sort come into the slot that the op writes."""
        (slot,) = op.writes.values()
        self._states.away[op.kind.moves].fetch(op.unit, slot)

    def store(self, op: LocalOp, step: int) -> None:
        """They leave the one that it reads."""
        (slot,) = op.reads.values()
        self._states.away[op.kind.moves].store(op.unit, slot)

    def store_sum(self, op: LocalOp, step: int) -> None:
        self._left[op.unit] = self._square(self.unit(op))
        self._states.away[op.kind.moves].store(op.unit, op.reads["gradient_slot"])

    def fetch_sum(self, op: LocalOp, step: int) -> None:
        slot, unit = op.writes["gradient_slot"], self.unit(op)
        self._states.away[op.kind.moves].fetch(op.unit, slot)
        wide = self._states.gradient_in(unit, slot)
        unit.gradient = narrowed_place(wide, _of(unit.gradient).dtype)

    def _fetched_view(self, op: LocalOp) -> Tensor:
        """A unit's view, or a rank's share of it, from another tier."""
        return self._states.away["view"].flat(op.unit, op.reads["view_slot"])

    def prefetch_view(self, op: LocalOp, step: int) -> None:
        unit, view = self.unit(op), self.unit(op).view
        if "view_made" in op.writes:
            view = self._states.away["view"].flat(op.unit, op.writes["view_made"])
            for share, window in unit.windows:
                view[share] = _of(unit.updated)[window]
            unit.updated = None
        unit.gather_view(self.network, Lane.GATHER, _of(view))

    def gather(self, op: LocalOp, step: int) -> None:
        unit = self.unit(op)
        own = self._fetched_view(op) if "view_slot" in op.reads else _of(unit.shard_view)
        if self._setup.gathers_per_pass:
            slot = torch.empty(
                unit.gathered_elements, dtype=self._states.dtype, device=self._states.device
            )
            self._held.write(op, slot, *PASSING)
        else:
            slot = self._states.gathered[op.gathered]
        if unit.trained:
            trained = slot[: unit.padded]
            for share, window in unit.windows:
                trained[share] = own[window]
            unit.gather_view(self.network, Lane.GATHER, trained)
        if unit.frozen_share is not None:
            frozen = unit.frozen_share.buffer(slot[unit.padded : unit.gathered_elements])
            unit.frozen_share.gather(self.network, frozen, unit.by.gathers)

    def save(self, op: LocalOp, step: int) -> None:
        if not self.saves_later(step):
            self.save_unit(self.unit(op), step)

    def save_unit(self, unit: UnitState, step: int) -> None:
        for saver in self.savers:
            saver.save(unit, step)

    def unit(self, op: LocalOp) -> UnitState:
        """The unit that an op is about."""
        return self._states.units[op.unit]


def mirror_of(unit: UnitState) -> Mirror:
    assert unit.mirror is not None
    return unit.mirror


def _of(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


def _squares(part: Tensor) -> Tensor:
    """The sum of squares in fp64; on a GPU, where that takes five times as long, each piece's is
    in fp32."""
    if part.device.type == "cuda":
        return torch.linalg.vector_norm(part, dtype=torch.float32).double().square()
    return part.double().square().sum()
