"""Compute: forward, backward in one or in two halves, and recovery."""

from __future__ import annotations

import numpy as np

from ratrain.program.binding import Binding
from ratrain.program.kind import Cost, Kind, Lane, Scope
from ratrain.program.kinds.inputs import (
    hand_on,
    hand_to_previous,
    kept_input,
    let_view_go,
    made_input,
    partial_gradient,
    partial_output,
    read_view,
    saved_version,
)
from ratrain.program.replicas import Recovery
from ratrain.program.rules import declare
from ratrain.program.units import RECOVERY_CODE, Bools
from ratrain.program.uses import Ops, Ref


def _forward(b: Binding, ops: Ops) -> None:
    """F: view and input in; the next input out; what backward needs is saved unless recovered.
    Where there is no backward, the input is freed."""
    read_view(b, ops, Kind.Gather_F)
    given = ops.where(b.unit.has_input[ops.unit])
    b.reads(given, made_input(b, given))
    if b.setup.forward_only:
        b.frees(given, b.input(given))
    else:
        kept = ops.where(~b.unit.recovered[ops.unit])
        spilled = b.is_spilled(kept)
        b.writes(stays := kept.where(~spilled), b.cell("saved", stays))
        b.writes(leaves := kept.where(spilled), b.saved_out(leaves))
    summed = b.unit.tensor[ops.unit] > 1
    if summed.any():
        parts = ops.where(summed & b.unit.has_output[ops.unit])
        b.writes(parts, partial_output(b, parts))
    hand_on(b, ops.where(~summed))
    let_view_go(b, ops, Kind.Gather_F)


def _recover(b: Binding, ops: Ops) -> None:
    """R: view and checkpoint in, saved out. In backward-time recovery the gradient is awaited."""
    read_view(b, ops, Kind.Gather_B)
    given = ops.where(b.unit.has_input[ops.unit])
    b.reads(given, kept_input(b, given))
    b.writes(ops, b.cell("saved", ops))
    late = b.unit.recovery[ops.unit] == RECOVERY_CODE[Recovery.BACKWARD]
    awaiting = ops.where(late & b.unit.has_output[ops.unit])
    b.reads(awaiting, b.outgrad(awaiting))


def _backward(b: Binding, ops: Ops) -> None:
    """B: everything of the micro-batch in and freed; a gradient added, and one handed back."""
    saved = kept_activations(b, ops)
    b.reads(filled := ops.where(b.is_spilled(ops)), b.saved_in(filled))
    read_view(b, ops, Kind.Gather_B)
    _read_activations(b, ops, saved)
    _hand_back(b, ops)
    _free_activations(b, ops, saved)
    _accumulate(b, ops)
    let_view_go(b, ops, Kind.Gather_B)


def _input_gradient(b: Binding, ops: Ops) -> None:
    """I: hands the input's gradient back; keeps what the weight gradient needs (saved, + 1)."""
    saved = kept_activations(b, ops)
    b.reads(filled := ops.where(b.is_spilled(ops)), b.saved_in(filled))
    read_view(b, ops, Kind.Gather_B)
    _read_activations(b, ops, saved)
    b.writes(ops, saved.next())
    _hand_back(b, ops)
    let_view_go(b, ops, Kind.Gather_B)


def _weight_gradient(b: Binding, ops: Ops) -> None:
    """W: adds the weight gradient and frees what I kept for it."""
    saved = kept_activations(b, ops).next()
    _read_activations(b, ops, saved)
    _free_activations(b, ops, saved)
    _accumulate(b, ops)


def kept_activations(b: Binding, ops: Ops) -> Ref:
    """What forward, or recovery, has kept for backward: in its place, or filled again."""
    kept, spilled = b.cell("saved", ops), b.is_spilled(ops)
    state = (
        np.where(spilled, b.cell("refilled", ops).state, kept.state)
        if spilled.any()
        else kept.state
    )
    return Ref(state, saved_version(b, ops))


def _read_activations(b: Binding, ops: Ops, saved: Ref) -> None:
    b.reads(ops, saved)
    given = ops.where(b.unit.has_input[ops.unit])
    b.reads(given, kept_input(b, given))
    passed = ops.where(b.unit.has_output[ops.unit])
    b.reads(passed, b.outgrad(passed))


def _free_activations(b: Binding, ops: Ops, saved: Ref) -> None:
    b.frees(ops, saved)
    here = ops.where(b.unit.has_input[ops.unit] & ~b.unit.waits("input")[ops.unit])
    b.frees(here, b.input(here))
    passed = ops.where(b.unit.has_output[ops.unit] & ~b.arrives_in_slot(ops.unit))
    b.frees(passed, b.outgrad(passed))


def _accumulate(b: Binding, ops: Ops) -> None:
    """Gradients add up in the order of micro-batches, whatever the schedule: version place + 1.
    Where backward sends, its GradSync happens beside it, and the buckets between them are theirs
    alone: the next backward's GradSync comes behind this one's. Frozen units have none."""
    ops = ops.where(b.unit.trained[ops.unit])
    sharded = b.reduced_per_micro_batch(ops.unit)
    if sharded.any() and not b.setup.backward_sends:
        passing = ops.where(sharded)
        b.writes(passing, transit(b, passing))
    whole = ops.where(~sharded)
    place = b.unit.place(whole.unit, whole.micro_batch)
    b.reads(further := whole.where(place > 0), b.gradient_before(further))
    b.writes(whole, b.gradient_before(whole).next())


def transit(b: Binding, ops: Ops) -> Ref:
    """The slot that an unreduced gradient passes on its way to its owners."""
    return b.rank_slot("transit", ops, _makes_gradient)


def _makes_gradient(b: Binding) -> Bools:
    return b.where("adds_gradient") & b.unit.trained[b.every().unit]


def _hand_back(b: Binding, ops: Ops) -> None:
    summed = b.unit.tensor[ops.unit] > 1
    if summed.any():
        parts = ops.where(summed & b.unit.has_input[ops.unit])
        b.writes(parts, partial_gradient(b, parts))
    hand_to_previous(b, ops.where(~summed))


_CELL = Lane.COMPUTE, Scope.UNIT_MICRO_BATCH
declare(
    "F",
    *_CELL,
    _forward,
    cost=Cost.FORWARD,
    method="forward",
    words="forward",
    picture_width=1,
    is_forward=True,
)
declare(
    "B",
    *_CELL,
    _backward,
    cost=Cost.BACKWARD,
    method="backward",
    words="backward",
    picture_width=2,
    adds_gradient=True,
)
declare(
    "I",
    *_CELL,
    _input_gradient,
    cost=Cost.INPUT_GRADIENT,
    method="input_gradient",
    words="input gradients",
    picture_width=1,
)
declare(
    "W",
    *_CELL,
    _weight_gradient,
    cost=Cost.WEIGHT_GRADIENT,
    method="weight_gradient",
    words="weight gradients",
    picture_width=1,
    adds_gradient=True,
)
declare(
    "R",
    *_CELL,
    _recover,
    cost=Cost.RECOVERY,
    method="recover",
    words="recovery",
    picture_width=1,
)
