"""Checkpoints: a unit's new states, on their way to disk."""

from __future__ import annotations

from ratrain.program.binding import Binding, Ops
from ratrain.program.kind import Cost, Lane, Scope
from ratrain.program.rules import declare


def _save(b: Binding, ops: Ops) -> None:
    """Save: the new optimizer and the new weights in. The next step's writes wait for it."""
    b.reads(ops, b.at_step_end("optimizer", ops))
    b.reads(ops, b.new_view(ops))


declare("Save", Lane.DISK, Scope.UNIT, _save, cost=Cost.SAVE, method="save")
