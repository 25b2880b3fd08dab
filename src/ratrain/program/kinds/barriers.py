"""Barriers: they do nothing but wait. Plain trainers have them, passes take them away. And the
global norm, at which all ranks meet."""

from __future__ import annotations

from ratrain.program.binding import Binding
from ratrain.program.kind import Cost, Lane, Partners, Scope
from ratrain.program.kinds.compute import transit
from ratrain.program.rules import declare
from ratrain.program.uses import Ops


def _all_backward(b: Binding, ops: Ops) -> None:
    """AllBackward: reads every complete gradient of the rank; with sharded accumulation, those
    of one micro-batch and stage. Where backward sends them, none is left to read."""
    if b.setup.backward_sends:
        return
    if b.setup.per_micro_batch:
        ops = b.with_units_of_part(ops)
        ops = ops.where(b.unit.reduced[ops.unit])
        b.reads(ops, transit(b, ops))
    else:
        ops = b.with_trained_units(ops)
        ops = ops.where(b.unit.micro_batches[ops.unit] > 0)
        b.reads(ops, b.gradient(ops, b.unit.micro_batches[ops.unit]))


def _all_synced(b: Binding, ops: Ops) -> None:
    """AllSynced: reads every reduced gradient of the rank."""
    ops = b.with_trained_units(ops)
    b.reads(ops, b.reduced(ops))


def _all_updated(b: Binding, ops: Ops) -> None:
    """AllUpdated: reads every updated shard of the rank."""
    ops = b.with_units_of_rank(ops)
    ops = ops.where(b.gathered_per_step(ops.unit))
    b.reads(ops, b.reduced(ops).next())


def _all_ready(b: Binding, ops: Ops) -> None:
    """AllReady: reads the next step's view of every unit of the rank."""
    ops = b.with_units_of_rank(ops)
    b.reads(ops, b.new_view(ops))


def _clip_norm(b: Binding, ops: Ops) -> None:
    """ClipNorm: reads every reduced gradient of the rank, or waits until it is in another tier: its
    part of the norm is taken as it leaves. The one number that all ranks agree on is no state: the
    updates behind it on the lane take it."""
    ops = b.with_trained_units(ops)
    left = b.waits_for_norm(ops)
    b.reads(here := ops.where(~left), b.reduced(here))
    if left.any():
        b.reads(gone := ops.where(left), b.stored_sum(gone))


declare("AllBackward", Lane.REDUCE, Scope.RANK_REDUCTION, _all_backward, needs_whole_gradient=True)
declare("AllSynced", Lane.UPDATE, Scope.RANK, _all_synced, needs_whole_gradient=True)
declare("AllUpdated", Lane.GATHER, Scope.RANK, _all_updated)
declare("AllReady", Lane.COMPUTE, Scope.RANK, _all_ready)
declare(
    "ClipNorm",
    Lane.UPDATE,
    Scope.RANK,
    _clip_norm,
    partners=Partners.EVERYONE,
    cost=Cost.NORM,
    method="clip_norm",
    needs_whole_gradient=True,
)
