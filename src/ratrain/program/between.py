"""What crosses the lines between sites that average weights, from a program's header alone."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from ratrain.describe.average_wires import AVERAGE_WIRES
from ratrain.program.setup import Setup


class Between(NamedTuple):
    """Bytes that all ranks together send to other sites: for the averages of a mean step, and for
    the last average, in fp32, with which a run ends."""

    step_bytes: float
    last_bytes: float


def between_sites(setup: Setup) -> Between | None:
    """None where no sites average weights. Of each element a site's owner sends the others its
    part of them, and what it has added up: both but what it does for itself, so of K sites
    2 (K - 1) times the model together."""
    if len(setup.sites) < 2:
        return None
    (stages, *_) = (replica.stages for replica in setup.replicas)
    held = [
        (member.tensor, unit)
        for stage in stages
        for member in stage.members
        for unit in member.units
        if not unit.frozen
    ]
    whole_bytes = 2 * (len(setup.sites) - 1) * sum(degree * u.copy_bytes for degree, u in held)
    wire = AVERAGE_WIRES[setup.average_wire or "fp32"]
    return Between(whole_bytes * wire.bytes_per_param / 4 / setup.period, float(whole_bytes))


def average_rounds(setup: Setup) -> int:
    """How many averages between sites an owner makes of a unit, one behind the other: of what it
    owns a site of more owners has as many parts."""
    counts = setup.site_counts.values()
    cuts = {Fraction(n, count) for count in counts for n in range(count)}
    return -(-len(cuts) // min(counts))
