"""What crosses the lines between sites that average weights, from a program's header alone."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from ratrain.describe.average_wires import AVERAGE_WIRES, TAKEN_BYTES
from ratrain.program.setup import Setup


class Between(NamedTuple):
    """Bytes that all ranks together send to other sites: for the averages of a mean step, and for
    the last average, in fp32, with which a run ends."""

    step_bytes: float
    last_bytes: float


def between_sites(setup: Setup) -> Between | None:
    """None where no sites average weights. Of each element a site's owner sends the others its
    part of them, and what it has added up: both but what it does for itself, so of K sites
    2 (K - 1) times the model together. What every rank of a tensor group has whole counts as often
    as the least group has it."""
    if len(setup.sites) < 2:
        return None
    copy_bytes = min(
        sum(
            member.tensor * unit.copy_bytes
            for stage in replica.stages
            for member in stage.members
            for unit in member.units
            if not unit.frozen
        )
        for replica in setup.replicas
    )
    whole_bytes = 2 * (len(setup.sites) - 1) * copy_bytes
    wire = AVERAGE_WIRES[setup.average_wire or "fp32"]
    return Between(whole_bytes * wire.bytes_per_param / 4 / setup.period, float(whole_bytes))


def average_rounds(setup: Setup) -> int:
    """How many averages between sites an owner makes of a unit, one behind the other: of what it
    owns a site of more owners has as many parts, and at unlike tensor degrees each goes in turns.
    Of the unit that has the most."""
    degrees: dict[str, dict[int | None, int]] = defaultdict(dict)
    owners: dict[str, dict[int | None, int]] = defaultdict(dict)
    copy_bytes: dict[str, int] = {}
    for replica, peers in zip(setup.replicas, setup.peers_of, strict=True):
        for unit, member in ((u, m) for s in replica.stages for m in s.members for u in m.units):
            degrees[unit.name][replica.site] = member.tensor
            owners[unit.name][replica.site] = peers[unit.name]
            copy_bytes[unit.name] = member.tensor * unit.copy_bytes
    most = 1
    for name, of_unit in degrees.items():
        counts = owners[name]
        cuts = {Fraction(n, count) for count in counts.values() for n in range(count)}
        ranges, unlike = lcm(*of_unit.values()) * len(cuts), len(set(of_unit.values())) > 1
        turns = max(1, -(-copy_bytes[name] // (ranges * TAKEN_BYTES))) if unlike else 1
        most = max(most, -(-ranges * turns // min(of_unit[site] * counts[site] for site in counts)))
    return most
