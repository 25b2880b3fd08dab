"""Whether replicas end a period alike: what they train apart, they must average, all of it, once.

Versions of states do not tell: each replica's weights have an order of their own, with averages or
without. Where gradients are reduced instead they do: an update reads the version that its
reduction writes, and two reductions would write it twice (`verify._uses`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ratrain.program.kind import Kind
from ratrain.program.table import Table
from ratrain.program.units import Ints

TRAINED = "optimizer"
"""The family of what training leaves of a unit: weights in full, and moments."""


def unlike(table: Table) -> Iterator[tuple[int, int, str]]:
    """(unit, op or -1, what is wrong) of units that replicas hold and do not average just once a
    period: where all do at once, as the last that happens to them; the copies of a tied matrix in
    one step."""
    averages = table.setup.averages
    if not averages or table.setup.forward_only:
        return
    units, steps = table.states.units, table.setup.period
    synchronising = _ops(table, [TRAINED in kind.synchronises for kind in Kind])
    counts = np.bincount(table.unit[synchronising], minlength=len(units.rank))
    shared = units.averaged
    last = np.full(len(counts), -1, dtype=np.int64)
    last[table.unit[synchronising]] = synchronising
    for g in np.flatnonzero(shared & (counts == 0)).tolist():
        yield g, -1, f"is never averaged in a period of {steps}: add an {averages.op} of it"
    for g in np.flatnonzero(shared & (counts > 1)).tolist():
        what = f"is averaged {counts[g]} times in a period of {steps}: keep the last one"
        yield g, int(last[g]), what
    if averages.by_turns:
        other = np.maximum(units.tied_to, 0)
        once = shared & (units.tied_to >= 0) & (counts == 1) & (counts[other] == 1)
        for g in np.flatnonzero(once & (table.step[last] != table.step[last[other]])).tolist():
            what = f"is averaged in step {table.step[last[g]]}, and the tied copy in another"
            yield g, int(last[g]), f"{what}: average both in one step"
        return
    renewed = np.full(len(counts), -1, dtype=np.int64)
    updates = _ops(table, [TRAINED in kind.renews for kind in Kind])
    np.maximum.at(renewed, table.unit[updates], table.step[updates])
    early = shared & (counts == 1) & (table.step[last] < renewed)
    for g in np.flatnonzero(early).tolist():
        what = f"is averaged in step {table.step[last[g]]} and updated in step {renewed[g]}"
        yield g, int(last[g]), f"{what}: average it in the last step of the period"


def unmirrored(table: Table) -> Iterator[tuple[int, int, str]]:
    """(unit, op or -1, what is wrong) of units whose owners' states a buddy does not have of the
    same version after every step, or not from the moment on when one of them changes."""
    setup, units = table.setup, table.states.units
    if not setup.mirrored:
        return
    updates, mirrors = (
        _ops(table, [family in kind.renews for kind in Kind]) for family in (TRAINED, "mirror")
    )
    counts = np.bincount(table.unit[mirrors], minlength=len(units.rank))
    wanted = units.reduced & (setup.sharding > 0)
    for g in np.flatnonzero(wanted & (counts != setup.period)).tolist():
        yield g, -1, f"is mirrored {counts[g]} times in a period of {setup.period}"
    commits = table.where("is_commit")
    committed = np.full((setup.period, setup.ranks), len(table), dtype=np.int64)
    np.minimum.at(committed, (table.step[commits], table.rank[commits]), np.flatnonzero(commits))
    changes = np.r_[updates, mirrors]
    early = changes[changes < committed[table.step[changes], table.rank[changes]]]
    for op in early.tolist():
        yield (
            int(table.unit[op]),
            op,
            "is updated before all ranks commit: put a Commit ahead of it",
        )


def _ops(table: Table, chosen: list[bool]) -> Ints:
    """The ops of chosen kinds, which have numbers in the order of `kinds`."""
    return np.flatnonzero(np.array(chosen)[table.kind])
