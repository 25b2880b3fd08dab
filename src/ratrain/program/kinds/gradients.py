"""State work of a step: gradients to their owners, updates, and new views to everybody."""

from __future__ import annotations

import numpy as np

from ratrain.program.binding import Binding
from ratrain.program.kind import Cost, Kind, Lane, Partners, Scope
from ratrain.program.kinds.compute import transit
from ratrain.program.rules import declare
from ratrain.program.setup import Averages
from ratrain.program.units import Ints
from ratrain.program.uses import Ops, Ref


def _grad_sync(b: Binding, ops: Ops) -> None:
    """GradSync: once a step, in place, where a member without a micro-batch begins with zeros; or
    once a micro-batch, from transit into the shard, behind its backward, or beside it."""
    sharded = b.reduced_per_micro_batch(ops.unit)
    if sharded.any():
        each = ops.where(sharded)
        place = b.unit.place(each.unit, each.micro_batch)
        if not b.setup.backward_sends:
            b.reads(each, transit(b, each))
        further = each.where(place > 0)
        b.reads(further, b.of_unit("shard", further, place[place > 0]))
        b.writes(each, b.of_unit("shard", each, place + 1))
    once = ops.where(~sharded)
    complete = b.unit.micro_batches[once.unit]
    b.reads(made := once.where(complete > 0), b.gradient(made, complete[complete > 0]))
    b.writes(once, b.gradient(once, complete + 1))
    if b.setup.error_feedback:
        _feed_back(b, ops.where(b.unit.reduced[ops.unit]))


def _feed_back(b: Binding, ops: Ops) -> None:
    """GradSync with error feedback: the residual in, and the new one out over it; or, where the
    step may be skipped, beside it."""
    residual, turn = b.lasting("residual", ops), _turn(b, ops)
    if b.setup.error_feedback == 1:
        b.reads(ops, Ref(residual.state, turn))
        b.writes(ops, Ref(residual.state, turn + 1))
        return
    following = b.lasting("residual_next", ops)
    is_first = turn == 0
    b.reads(ops.where(is_first), Ref(residual.state[is_first], residual.version[is_first]))
    b.reads(ops.where(~is_first), Ref(following.state[~is_first], turn[~is_first]))
    b.writes(ops, Ref(following.state, turn + 1))


def _turn(b: Binding, ops: Ops) -> Ints:
    """How often a GradSync's unit has been reduced before, in its step."""
    sharded = b.reduced_per_micro_batch(ops.unit)
    return np.where(sharded, b.unit.place(ops.unit, ops.micro_batch), 0)


def _syncs(b: Binding, ops: Ops) -> Ints:
    """How often an op's unit is reduced in a step."""
    sharded = b.reduced_per_micro_batch(ops.unit)
    return np.where(sharded, b.unit.micro_batches[ops.unit], 1)


def new_residual(b: Binding, ops: Ops) -> Ref:
    """The residual as the ops' step leaves it."""
    residual = b.lasting("residual", ops)
    if b.setup.error_feedback == 2:
        return residual.next()
    return Ref(residual.state, _syncs(b, ops))


def _update_shard(b: Binding, ops: Ops) -> None:
    """UpdateShard: gradient and optimizer in; new optimizer out, and the new weights: as a whole
    view, as a shard of it (level 3), or in the gradient's place until PrefetchW gathers them. Where
    the step may be skipped: the step's residual in, over the one before. Where it is the unit's
    turn: the mean of copies of its weights in, with which it begins."""
    gradient, optimizer = b.reduced(ops), b.optimizer(ops)
    b.reads(ops, gradient)
    b.reads(ops, optimizer)
    b.writes(ops, optimizer.next())
    gathered = b.gathered_per_step(ops.unit)
    apart = ops.where(gathered)
    b.writes(apart, b.reduced(apart).next())
    here = ops.where(~gathered)
    b.writes(here, _renewed_view(b, here))
    b.frees(goes := here.where(~b.unit.waits("gradient")[here.unit]), b.reduced(goes))
    if b.setup.averages is Averages.EARLY_START:
        begun = ops.where(b.takes_turn(Kind.AverageCopy, ops))
        b.reads(begun, b.of_unit("averaged", begun, 2))
        b.frees(begun, b.of_unit("averaged", begun, 2))
    if b.setup.error_feedback == 2:
        sent = ops.where(b.unit.reduced[ops.unit])
        b.reads(sent, Ref(b.lasting("residual_next", sent).state, _syncs(b, sent)))
        b.writes(sent, new_residual(b, sent))


def _renewed_view(b: Binding, ops: Ops) -> Ref:
    """Where the new weights are made: over the old ones, or on their way to another tier."""
    there = Ref(b.kept_view(ops).state, b.averaged_before("view", ops).next().version)
    waits = b.unit.waits("view")[ops.unit]
    if not waits.any():
        return there
    made = b.made_view(ops)
    return Ref(
        np.where(waits, made.state, there.state), np.where(waits, made.version, there.version)
    )


def _prefetch_view(b: Binding, ops: Ops) -> None:
    """PrefetchW: updated shards in and freed; the next step's view out, over the old one."""
    updated = b.reduced(ops).next()
    b.reads(ops, updated)
    b.writes(ops, _renewed_view(b, ops))
    b.frees(goes := ops.where(~b.unit.waits("gradient")[ops.unit]), b.reduced(goes).next())


declare(
    "GradSync",
    Lane.REDUCE,
    Scope.UNIT_REDUCTION,
    _grad_sync,
    partners=Partners.PEERS,
    cost=Cost.REDUCE,
    method="grad_sync",
    needs_whole_gradient=True,
    synchronises=("gradient", "shard"),
)
declare(
    "UpdateShard",
    Lane.UPDATE,
    Scope.UNIT,
    _update_shard,
    cost=Cost.UPDATE,
    method="update_shard",
    needs_whole_gradient=True,
    renews=("optimizer", "view", "shard_view"),
)
declare(
    "PrefetchW",
    Lane.GATHER,
    Scope.UNIT,
    _prefetch_view,
    partners=Partners.PEERS,
    cost=Cost.GATHER,
    method="prefetch_view",
    synchronises=("view",),
)
