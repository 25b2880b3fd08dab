"""States that come and go within a step: in which slot, and in which version, an op finds them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratrain.program.units import Ints
from ratrain.program.uses import Ops, Ref


@dataclass(frozen=True)
class Stays:
    """Of gradients in slots: the slot of each stay; of each (unit, micro-batch) cell the version
    that it adds to, and its stay; and the unit and step of each stay. Steps x units: where, and in
    which version, a unit's comes back that has waited for a norm."""

    slot: Ints
    version: Ints
    stay: Ints
    owner: Ints
    sum_slot: Ints
    sum_version: Ints

    def at(self, cell: Ints) -> Ref:
        """What a cell's micro-batch finds."""
        return Ref(self.slot[self.stay[cell]], self.version[cell])

    def of_unit(self, cell: Ints) -> tuple[Ints, Ints]:
        """The how-manieth stay of its unit a cell's is, and how many there are."""
        first = np.searchsorted(self.owner, self.owner, side="left")
        count = np.searchsorted(self.owner, self.owner, side="right") - first
        number = np.arange(len(self.owner)) - first
        return number[self.stay[cell]], count[self.stay[cell]]


@dataclass(frozen=True)
class Fetches:
    """Fetches: which ops, of which unit, for which op, and in which turn on their rank."""

    op: Ints
    unit: Ints
    use: Ints
    turn: Ints

    def due(self, ops: Ops) -> Ints:
        """For ops that read what was fetched the turn of the last fetch of their unit that is for
        them or an earlier one; -1: there is none."""
        most = 1 + max(int(self.use.max(initial=0)), int(ops.op.max(initial=0)))
        keys = self.unit * most + self.use
        order = np.argsort(keys)
        at = np.searchsorted(keys[order], ops.unit * most + ops.op, side="right") - 1
        if not len(order):
            return np.full(len(ops), -1, dtype=np.int64)
        found = order[np.maximum(at, 0)]
        return np.where((at >= 0) & (self.unit[found] == ops.unit), self.turn[found], -1)
