"""Tied embeddings: one matrix, of which two ranks hold a copy."""

from __future__ import annotations

from ratrain.program.binding import Binding
from ratrain.program.kind import Cost, Lane, Partners, Scope
from ratrain.program.rules import declare
from ratrain.program.uses import Ops


def _tie_sync(b: Binding, ops: Ops) -> None:
    """TieSync: reduced gradients of two copies of one matrix in; their sum out, the same bits in
    both. One op on each of two ranks, at the same moment; one op where a rank has both copies."""
    other = b.unit.tied_to[ops.unit]
    here = b.unit.rank[other] == b.unit.rank[ops.unit]
    for copy in (ops, ops.about(other).where(here)):
        gradient = b.of_all_replicas(copy)
        b.reads(copy, gradient)
        b.writes(copy, gradient.next())


declare(
    "TieSync",
    Lane.REDUCE,
    Scope.UNIT,
    _tie_sync,
    partners=Partners.TIED,
    cost=Cost.TIE,
    method="tie_sync",
    synchronises=("gradient",),
)
