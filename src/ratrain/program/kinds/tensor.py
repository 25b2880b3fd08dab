"""Tensor parallelism: the last sum of a unit over its tensor group, as an op of its own."""

from __future__ import annotations

from ratrain.program.binding import Binding
from ratrain.program.kind import Cost, Lane, Scope
from ratrain.program.kinds.inputs import (
    hand_on,
    hand_to_previous,
    partial_gradient,
    partial_output,
)
from ratrain.program.rules import declare
from ratrain.program.uses import Ops


def _sum_forward(b: Binding, ops: Ops) -> None:
    """AllReduce_F: partial sums in, from a slot that the forward after the next takes over; the
    unit's output out."""
    b.reads(ops, partial_output(b, ops))
    hand_on(b, ops)


def _sum_recovery(b: Binding, ops: Ops) -> None:
    """AllReduce_R: the sums of a recovered unit, in place; backward waits for them."""
    saved = b.cell("saved", ops)
    b.reads(ops, saved)
    b.writes(ops, saved.next())


def _sum_backward(b: Binding, ops: Ops) -> None:
    """AllReduce_B: partial input gradients in, from a slot; the gradient is handed back."""
    b.reads(ops, partial_gradient(b, ops))
    hand_to_previous(b, ops)


_SUM = Lane.TENSOR, Scope.UNIT_MICRO_BATCH
declare("AllReduce_F", *_SUM, _sum_forward, cost=Cost.TENSOR_SUM, method="sum_output")
declare("AllReduce_R", *_SUM, _sum_recovery, cost=Cost.RECOVERED_SUM)
declare("AllReduce_B", *_SUM, _sum_backward, cost=Cost.TENSOR_SUM, method="sum_gradient")
