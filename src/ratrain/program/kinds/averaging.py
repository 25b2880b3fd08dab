"""Partial synchronisation: replicas update alone, and average their weights once a period."""

from __future__ import annotations

from ratrain.program.binding import Binding
from ratrain.program.kind import Cost, Lane, Partners, Scope
from ratrain.program.rules import declare
from ratrain.program.setup import Averages
from ratrain.program.uses import Ops


def _average(b: Binding, ops: Ops) -> None:
    """AverageW: weights in, their mean over all holders out in their place, and a view of it:
    after the update with the moments (local SGD), or ahead of it, where the view's last reader of
    the step has ended. It changes what training means: see `passes/averaging.py`."""
    for found in (b.lasting("optimizer", ops), b.kept_view(ops)):
        if b.setup.averages is Averages.LOCAL_SGD:
            found = found.next()
        b.reads(ops, found)
        b.writes(ops, found.next())


def _copy(b: Binding, ops: Ops) -> None:
    """CopyW: weights in as the step begins, a copy out; or what they have learnt since the last
    outer step."""
    b.reads(ops, b.lasting("optimizer", ops))
    if b.setup.outer:
        b.reads(ops, b.lasting("outer", ops))
    b.writes(ops, b.of_unit("averaged", ops, 1))


def _average_copy(b: Binding, ops: Ops) -> None:
    """AverageCopy: a copy in, the mean of all holders' out in its place, or what an outer step
    makes of it and of its own states; an update takes it."""
    b.reads(ops, b.of_unit("averaged", ops, 1))
    b.writes(ops, b.of_unit("averaged", ops, 2))
    if b.setup.outer:
        b.reads(ops, b.lasting("outer", ops))
        b.writes(ops, b.lasting("outer", ops).next())


declare(
    "AverageW",
    Lane.AVERAGE,
    Scope.UNIT,
    _average,
    partners=Partners.HOLDERS,
    cost=Cost.AVERAGE,
    method="average_weights",
    renews=("optimizer", "view", "shard_view"),
    synchronises=("optimizer", "view", "shard_view"),
)
declare("CopyW", Lane.UPDATE, Scope.UNIT, _copy, cost=Cost.COPY_WEIGHTS, method="copy_weights")
declare(
    "AverageCopy",
    Lane.AVERAGE,
    Scope.UNIT,
    _average_copy,
    partners=Partners.HOLDERS,
    cost=Cost.AVERAGE,
    method="average_copy",
    renews=("outer",),
    synchronises=("optimizer", "view", "shard_view"),
)
