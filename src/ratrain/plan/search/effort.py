"""How much the unequal search looks at, by the number of devices.

On a few devices nearly every draft is timed. On many, drafts are endless and programs take seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from ratrain.plan.draft.pools import FEW

FEWEST = 8
"""Devices up to which nearly all drafts are timed."""
WIDTH = 8
"""Drafts changed in a round for each of so few devices."""
MEMBERS_ROUNDS = 1
MARGIN = 1.2
"""A draft is neither timed nor simulated whose estimate is this much above the best step."""


@dataclass(frozen=True)
class Effort:
    """How much is tried of each class of drafts: of those that train, and of the rest."""

    width: int  # drafts that are changed in a round: those of the least time
    near: int  # changes of each that are timed at the grain of stages
    clock_ops: int  # ops of one step, over all drafts timed so, after which no more is begun
    simulated: int  # drafts simulated whole
    slower: int  # further drafts simulated whole, beyond the margin
    climbs: int  # of these, the fastest, are changed
    changes: int  # of a draft, of the least estimate, that are simulated in a round
    long_ops: float  # of a program of several shares, above which it takes seconds
    spares_programs: bool  # whether what can hardly gain is not simulated whole
    rounds: int = 24  # of changes, at the grain of stages

    @property
    def of_members(self) -> Effort:
        """The same of drafts whose stages have several members."""
        quick = self.simulated == _QUICK.simulated
        return replace(
            self,
            width=5,
            rounds=MEMBERS_ROUNDS,
            simulated=2 if quick else 12,
            slower=0,
            climbs=0 if quick else 2,
            changes=4,
        )


_FEWEST = Effort(
    width=WIDTH * FEWEST,
    near=40,
    clock_ops=100_000_000,
    simulated=48,
    slower=8,
    climbs=4,
    changes=6,
    long_ops=inf,
    spares_programs=False,
)
_FEW = replace(_FEWEST, width=16, clock_ops=6_000_000)
_MANY = replace(
    _FEW,
    width=4,
    near=24,
    clock_ops=1_500_000,
    simulated=5,
    slower=0,
    climbs=1,
    changes=2,
    long_ops=100_000,
    spares_programs=True,
)
_QUICK = replace(_FEWEST, width=4, near=30, simulated=6, slower=0, climbs=1, changes=2)
"""What another host would bring is asked once for each kind."""


def effort_of(devices: int, *, quick: bool = False) -> Effort:
    """For so many devices."""
    if quick and devices <= FEW:
        return _QUICK
    if devices <= FEWEST:
        return replace(_FEWEST, width=WIDTH * devices)
    return _FEW if devices <= FEW else _MANY
