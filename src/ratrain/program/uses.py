"""Uses: an op writes, reads or frees a version of a state. And ops and states as columns, of which
rules speak."""

from __future__ import annotations

from dataclasses import dataclass

from ratrain.program.units import Bools, Ints

WRITE, READ, FREE = 0, 1, 2
"""Modes of use, in the order in which they happen to one version of a state."""

NEVER = 1 << 20
"""A version that nothing writes: what an op reads when the op that should feed it is missing."""


@dataclass(frozen=True)
class Uses:
    """Columns over uses: op `op` writes, reads or frees version `version` of state `state`."""

    op: Ints
    state: Ints
    version: Ints
    mode: Ints


@dataclass(frozen=True)
class Ops:
    """Some ops, and what each is about: unit, micro-batch, and step of the program's period."""

    op: Ints
    unit: Ints
    micro_batch: Ints
    step: Ints

    def __len__(self) -> int:
        return len(self.op)

    def where(self, chosen: Bools | Ints) -> Ops:
        """Those chosen."""
        return Ops(self.op[chosen], self.unit[chosen], self.micro_batch[chosen], self.step[chosen])

    def about(self, unit: Ints) -> Ops:
        """The same ops, about other units."""
        return Ops(self.op, unit, self.micro_batch, self.step)


@dataclass(frozen=True)
class Ref:
    """A version of a state, for each of some ops."""

    state: Ints
    version: Ints

    def next(self) -> Ref:
        """The version after."""
        return Ref(self.state, self.version + 1)
