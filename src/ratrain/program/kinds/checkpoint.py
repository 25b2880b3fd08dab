"""Checkpoints: a unit's new states, on their way to disk."""

from __future__ import annotations

import numpy as np

from ratrain.describe.saved import SAVED
from ratrain.errors import ProgramError
from ratrain.program.binding import Binding
from ratrain.program.kind import Cost, Lane, Scope
from ratrain.program.kinds.gradients import new_residual
from ratrain.program.rules import declare
from ratrain.program.tiers import DISK, TIERS
from ratrain.program.units import Bools
from ratrain.program.uses import Ops


def _save(b: Binding, ops: Ops) -> None:
    """Save: the new optimizer and the new weights in, the new residual where errors are fed back,
    and what else checkpoints hold. The next step's writes wait for it. Of a frozen unit: nothing.
    Of one whose optimizer is in another tier it reads what the update has just left on the device,
    in slots that later updates of the step wait for: weights are read before they are gathered.
    What is on disk it reads there too: a checkpoint takes the file, before the next step writes
    it."""
    ops = ops.where(b.unit.trained[ops.unit])
    b.reads(ops, b.new_optimizer(ops))
    on_disk = ops.where(b.unit.tiers["optimizer"][ops.unit] == TIERS.index(DISK))
    b.in_tiers("optimizer", on_disk, lambda there, before: b.reads(there, before.next()))
    for family in dict.fromkeys(saved.family for saved in SAVED.declared):
        if family in ("", "residual"):  # of which there are other versions
            continue
        b.reads(kept := ops.where(_has(b, family, ops)), b.at_step_end(family, kept))
    early = b.away(ops.unit) & b.gathered_per_step(ops.unit)
    b.reads(updated := ops.where(early), b.reduced(updated).next())
    b.reads(whole := ops.where(~early), b.new_view(whole))
    if b.setup.error_feedback:
        sent = ops.where(b.unit.reduced[ops.unit])
        b.reads(sent, new_residual(b, sent))


def _has(b: Binding, family: str, ops: Ops) -> Bools:
    """For each op whether its unit has a state of a family all the time."""
    of_units = b.states.by_name.get(family)
    if of_units is None:
        raise ProgramError(
            f"a checkpoint entry is of the family {family}, which nobody declares",
            fix="declare the family (`declare_family`)",
        )
    if not of_units.count:
        return np.zeros(len(ops), bool)
    return b.states.size_bytes[of_units.start + ops.unit] > 0


declare("Save", Lane.DISK, Scope.UNIT, _save, cost=Cost.SAVE, method="save", is_save=True)
