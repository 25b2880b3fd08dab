"""How much the unequal search looks at, by the number of devices.

On a few devices nearly every draft is timed. On many, drafts are endless and programs take seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from ratrain.plan.search.pools import FEW

FEWEST = 8
"""Devices up to which nearly all drafts are timed; replicas are at most as many."""
MARGIN = 1.2
"""A draft is neither timed nor simulated whose estimate is this much above the best step."""


@dataclass(frozen=True)
class Bounds:
    """How many mixes are looked at. Mixes are grown by bundles: parts, so often each."""

    library: int  # shapes kept for each micro-batch: those that make the most of their devices
    shapes: int  # of those that take the same devices in the same tensor degrees
    kept: int  # mixes of those that take the same devices in the same number of bundles
    sets: int  # of devices, for which mixes are kept
    bundles: int  # of a mix
    repeated: bool  # whether a bundle may hold a part more than once
    begun: bool  # whether those that begin in one pool are kept beside the rest


@dataclass(frozen=True)
class Effort:
    """How much is tried of each class of drafts: of those that train, and of the rest."""

    mixes: tuple[Bounds, ...]  # grown within each; shapes are kept by the first
    clocked: int  # drafts timed at the grain of stages: those of the least estimate
    hopeful: int  # timed so whatever their estimate says: those whose slowest part takes least
    clock_margin: float  # how far an estimate may be above the best step to be timed so
    clock_ops: int  # ops of one step, over all drafts timed so, after which no more is begun
    followed: int  # drafts that are followed by changes at the grain of stages
    follows_sizes: bool  # whether one is followed in each micro-batch that it has
    shares_anew: bool  # whether the batch is shared out anew among each draft's shapes
    simulated: int  # drafts simulated whole
    climbs: int  # of these, the fastest, are changed
    changes: int  # of a draft, of the least estimate, that are simulated in a round
    long_ops: float  # of a program of several shares, above which it takes seconds
    spares_programs: bool  # whether what can hardly gain is not simulated whole


_FEWEST_MIXES = Bounds(300, 12, 48, 1_000_000, FEWEST, repeated=False, begun=True)
_FEW_MIXES = replace(_FEWEST_MIXES, shapes=4, kept=8, begun=False)
_MANY_MIXES = Bounds(100, 4, 3, 60, 5, repeated=True, begun=False)
"""Replicas are many, and most of them alike."""
_FEWEST = Effort(
    mixes=(_FEWEST_MIXES,),
    # The estimate says little of replicas that cross between kinds.
    clocked=3_000,
    hopeful=3_000,
    clock_margin=3.0,
    clock_ops=100_000_000,
    # A draft that is slow only for its cut or its micro-batch is far behind before.
    followed=64,
    follows_sizes=True,
    shares_anew=True,
    simulated=48,
    climbs=4,
    changes=6,
    long_ops=inf,
    spares_programs=False,
)
_FEW = replace(
    _FEWEST,
    mixes=(_FEW_MIXES, _MANY_MIXES),  # the second for more replicas than the first has
    clocked=400,
    hopeful=60,  # where hosts hold many replicas, estimates of their exchanges are far too high
    clock_margin=MARGIN,
    clock_ops=1_500_000,
    followed=4,
    follows_sizes=False,
    shares_anew=False,
)
_MANY = replace(
    _FEW,
    mixes=(_MANY_MIXES,),
    simulated=5,
    climbs=1,
    changes=2,
    long_ops=100_000,
    spares_programs=True,
)


_QUICK = replace(
    _FEW,
    mixes=(_FEW_MIXES,),
    clock_margin=3.0,
    shares_anew=True,
    simulated=6,
    climbs=1,
    changes=2,
)
"""What another host would bring is asked once for each kind."""


def effort_of(devices: int, *, quick: bool = False) -> Effort:
    """For so many devices."""
    if quick and devices <= FEW:
        return _QUICK
    if devices <= FEWEST:
        return _FEWEST
    return _FEW if devices <= FEW else _MANY
