"""How much searches look at: constants of each, and by the number of devices `Effort`.

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
MARGIN = 1.2
"""A draft is neither timed nor simulated whose estimate is this much above the best step."""
# ---- layouts of identical replicas ----------------------------------------------------------
SIMULATED = 24
"""Plans simulated at most."""
SIMULATED_AT_LEAST = 6
LAYOUTS_OPS = 1_000_000
"""Ops simulated, over all plans, after which no further plan is begun."""
LAYOUTS_MARGIN = 1.05
"""A plan is not simulated whose estimate is this much above the best simulated step."""
LAYOUTS_ALIKE = 4
"""Plans simulated at most of the same degrees and micro-batch, so that others have their turn."""
LAYOUTS_SHOWN = 10
"""Plans that are kept, at most."""
LAYOUTS_SPLIT = 12
"""Pipelines tried at most in orders that split backward, those of the least estimates."""
FILLED = 2 / 3
"""Part of a pipeline's waits that such an order fills, where a forward and either half of backward
take equally long: what is waited for is a forward, a backward and a gradient of weights less."""
REFINED = 12
"""Plans whose layers are moved about before any is simulated."""
REFINED_ROUNDS = 16
"""Layers that are moved one after another."""
# ---- the beam among drafts ------------------------------------------------------------------
SEED_SIZES = 1, 2, 4, 8, 16
"""Micro-batches in which seeds are made."""
FOLDED = 4
"""Stages at most of seeds whose stages have several members."""
POOL_ORDERS = 24
"""Orders of pools in which pipelines begin."""
WIDTHS = 16
"""Ways in which pools are divided into tensor groups."""
POLISHED = 2
"""Times as many drafts as are changed are polished first."""
BEAM_ALIKE = 2
"""Drafts of the same shapes that are changed in a round."""
LEAST_ALONE = 0.95
"""Part of what a draft's slowest replica takes by itself, by the closed form, below which its step
at the grain of stages does not lie. Measured, not proved: 0.969 was the least of some 9,000 drafts
on three clusters, and 42 random clusters kept their plans."""
# ---- moves ----------------------------------------------------------------------------------
MOST_STAGES, FULLEST = 16, 6
"""Stages up to which any gives a layer to any; of more, so many give and so many take."""
MOST_MOVED = 1_000
"""Layers that are moved one after another."""
MOST_SEQUENCES = 32
"""Of a batch, that is shared out anew in micro-batches of every size."""
# ---- drafts simulated whole -----------------------------------------------------------------
CLOCK_MARGIN, LONG_MARGIN = 1.02, 1.005
"""A draft is not simulated whole whose time at the grain of stages is this much above the best; the
second where its program is long. Of few devices, several to a host, `MARGIN` counts in place of the
first: their links are estimated there."""
SLOWER_MARGIN = 1.05
"""The same of a few further drafts (`Effort.slower`): they may leave memory in which some stages
take larger micro-batches."""
MOVES_SHOWN = 6
"""What a move makes of the plan that is taken: so many are timed, those of the least estimate."""
MOVES_OPS = 20_000
"""Ops of compute of a step up to which `explain` tries moves of whole plans."""
MISFITS = 3
"""Times as many drafts as are wanted simulated are begun at most: some do not fit."""
DRAFTS_ALIKE = 4
"""Drafts simulated at most of the same shapes."""
BEHIND = 1e3
DRAFTS_OPS = 100_000
"""Ops of one step, over all drafts of a class that are simulated, after which no more is begun."""
# ---- what comes after -----------------------------------------------------------------------
STARTS = 4
"""Plans of alike replicas that the search for others begins with."""
DEVICES = 256
"""Devices at most: on more, replicas are alike."""
RESIZED_PLANS = 4
"""Plans of each class, the fastest as simulated, whose stages are tried in sizes of their own."""
RESIZED_LEAN = 4
"""Plans tried so beside them: slower ones that leave more memory."""
REORDERED = 6
"""Plans of each class, the fastest of each family as simulated, that are tried in other compute
orders."""
SIZES_OPS = 100_000
"""Ops of one step, over all plans that are proved and simulated, after which no more is begun."""
SIZES_ROUNDS = 100
"""Changes one after another at most: operations end first."""
WORTH_SIZES = 0.002
"""Part of a step that other sizes must save: they take memory, and are harder to read."""
REORDERED_ROUNDS, REORDERED_CHANGES = 4, 16
"""Changes of the fastest one after another, and those simulated for each: of the least estimate."""
# ---- plans beside one that is explained -----------------------------------------------------
ANY_REPLICAS = 8
"""Devices up to which a plan file, and a job with another host, are judged by plans of replicas
that differ too: on more that takes several seconds each. A job is always planned with both."""
HOSTS_ADDED = (1, 2, 4, 8)
"""How many are tried, the fewest first."""
DOUBLINGS = 6
"""How many times the devices are doubled in search of a number that suffices."""


@dataclass(frozen=True)
class Effort:
    """How much is tried of each class of drafts: of those that train, and of the rest."""

    width: int  # drafts that are changed in a round: those of the least time
    near: int  # changes of each that are timed at the grain of stages
    clock_ops: int  # ops of one step, over all drafts timed so, after which no more is begun
    simulated: int  # drafts simulated whole
    slower: int  # further drafts simulated whole, beyond the margin
    long_ops: float  # of a program of several shares, above which it takes seconds
    spares_programs: bool  # whether what can hardly gain is not simulated whole
    rounds: int = 24  # of changes, at the grain of stages
    seeds: int = 80  # that are timed: of the least estimate, and whose slowest replica takes least


_FEWEST = Effort(
    width=WIDTH * FEWEST,
    near=40,
    clock_ops=50_000_000,
    simulated=48,
    slower=8,
    long_ops=inf,
    spares_programs=False,
)
_FEW = replace(_FEWEST, width=32, clock_ops=6_000_000)
_MANY = replace(
    _FEW,
    width=4,
    near=24,
    clock_ops=750_000,
    simulated=5,
    slower=0,
    long_ops=100_000,
    spares_programs=True,
)
_QUICK = replace(_FEWEST, width=4, near=30, simulated=6, slower=0)
"""What another host would bring is asked once for each kind."""


def effort_of(devices: int, *, quick: bool = False) -> Effort:
    """For so many devices."""
    if quick and devices <= FEW:
        return _QUICK
    if devices <= FEWEST:
        return replace(_FEWEST, width=WIDTH * devices)
    return _FEW if devices <= FEW else _MANY
