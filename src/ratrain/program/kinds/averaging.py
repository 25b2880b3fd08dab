"""Partial synchronisation: replicas update alone, and average their weights once a period."""

from __future__ import annotations

from ratrain.program.binding import Binding, Ops
from ratrain.program.kind import Cost, Lane, Partners, Scope
from ratrain.program.rules import declare


def _average(b: Binding, ops: Ops) -> None:
    """AverageW: updated weights and moments in, their mean over all holders out, and a view of it.
    It changes what training means: see `passes/averaging.py`."""
    for family in ("optimizer", "view"):
        updated = b.lasting(family, ops).next()
        b.reads(ops, updated)
        b.writes(ops, updated.next())


declare(
    "AverageW",
    Lane.REDUCE,
    Scope.UNIT,
    _average,
    partners=Partners.HOLDERS,
    cost=Cost.AVERAGE,
    method="average_weights",
    renews=("optimizer", "view"),
    synchronises=("optimizer", "view"),
)
