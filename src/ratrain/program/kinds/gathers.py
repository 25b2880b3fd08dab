"""Sharding level 3 (ZeRO stage 3): views gathered for their uses, and let go."""

from __future__ import annotations

from ratrain.program.binding import Binding
from ratrain.program.kind import Cost, Kind, Lane, Partners, Scope
from ratrain.program.kinds.inputs import gathered_view, pass_view
from ratrain.program.rules import declare
from ratrain.program.uses import Ops


def _gather(b: Binding, ops: Ops, kind: Kind) -> None:
    """A view from everyone's shards, into a slot that the next gather but one takes over."""
    b.reads(ops, b.share_of_view(ops))
    b.writes(ops, gathered_view(b, ops, kind))
    if b.setup.gathers_per_pass:
        b.writes(ops, pass_view(b, ops, kind))


def _gather_forward(b: Binding, ops: Ops) -> None:
    """Gather_F: the view that one forward reads; gathered once a pass: all of them."""
    _gather(b, ops, Kind.Gather_F)


def _gather_backward(b: Binding, ops: Ops) -> None:
    """Gather_B: the view that one backward, and the recovery before it, read; or all of them."""
    _gather(b, ops, Kind.Gather_B)


for name, rule in (("Gather_F", _gather_forward), ("Gather_B", _gather_backward)):
    declare(
        name,
        Lane.GATHER,
        Scope.UNIT_MICRO_BATCH,
        rule,
        partners=Partners.PEERS,
        cost=Cost.GATHER,
        method="gather",
    )
