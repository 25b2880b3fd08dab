"""The verifier: what is proved about a program before anything runs it.

1. Every state that is read has been written, once; every passing state is freed, once.
2. Every send has its receive, in the same order on both sides.
3. Every unit sees every micro-batch forward, once; every gradient holds all of its micro-batches
   before it is reduced and before its update; every view and optimizer shard is renewed once a
   step; a checkpoint has every unit, once. Where replicas hold a unit, its gradient is reduced,
   once, before its update; or its weights are averaged, once, after their last update of a period.
4. Two steps run to their end: no lane waits for ever, nothing is read after it is freed or
   overwritten while it is needed.
5. Memory stays within the budget on every rank, whatever the timing (`bounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

import numpy as np

from ratrain.errors import ProgramError
from ratrain.program.bounds import PeakBound, peak_bounds
from ratrain.program.coverage import unlike, unmirrored
from ratrain.program.edges import FREE_EDGE, LANE_EDGE, OVERWRITE_EDGE, READ_EDGE
from ratrain.program.kind import Kind, Lane, Partners
from ratrain.program.program import Program
from ratrain.program.table import Table, groups_of_holders, sends_beside, sites_of_ops
from ratrain.program.text.family_groups import takes
from ratrain.program.tiers import TIERS, waiting_family
from ratrain.program.units import Bools, Ints
from ratrain.program.uses import READ, WRITE
from ratrain.program.walk import STEPS, walk
from ratrain.readers.numbers import scaled


class Rule(StrEnum):
    """The names of findings."""

    READ_BEFORE_WRITE = "ReadBeforeWrite"
    WRITTEN_TWICE = "WrittenTwice"
    USE_AFTER_FREE = "UseAfterFree"
    FREED_TWICE = "FreedTwice"
    LEAK = "Leak"
    OVERWRITTEN = "OverwriteWhileNeeded"
    MISSING_SEND = "MissingSend"
    MISSING_RECEIVE = "MissingReceive"
    MESSAGE_ORDER = "MessageOrder"
    MISSING_PARTNER = "MissingPartner"
    INCOMPLETE_GRADIENT = "IncompleteGradient"
    MISSING_FORWARD = "MissingForward"
    NOT_UPDATED = "NotUpdated"
    INCOMPLETE_SAVE = "IncompleteSave"
    INCOMPLETE_SYNC = "IncompleteSync"
    DEADLOCK = "Deadlock"
    OVER_BUDGET = "OverBudget"


@dataclass(frozen=True)
class Finding:
    """One broken rule: which, where (`op` is a row of the table, -1: nowhere), and in words."""

    rule: Rule
    rank: int
    op: int
    state: str
    message: str


@dataclass(frozen=True)
class Verdict:
    """What the verifier found; without bounds where the program cannot run at all. `bounds` are of
    the device's memory, one for each rank; `lower_bounds` of the tiers below it that are used."""

    findings: tuple[Finding, ...]
    bounds: tuple[PeakBound, ...]
    lower_bounds: tuple[PeakBound, ...] = ()

    @property
    def sound(self) -> bool:
        return not self.findings


def verify(program: Program | Table) -> Verdict:
    """The verdict on a program."""
    table = program.table if isinstance(program, Program) else program
    return verdict_on(table, peak_bounds)


Bounding = Callable[[Table, Ints], tuple[PeakBound, ...]]
"""Bounds the memory of a table's ops, given a complete walk of its chains."""


def verdict_on(table: Table, bounding: Bounding) -> Verdict:
    """The verdict on a table, its memory bounded by `bounding`."""
    findings = [
        *_uses(table),
        *_gradients(table),
        *_forwards(table),
        *_renewals(table),
        *_saves(table),
        *_averages(table),
        *_partners(table),
        *_message_order(table),
        *_lane_order(table),
    ]
    walked = walk(table.chains.graph)
    if len(walked.stuck):
        if not findings:
            findings = [_deadlock(table, walk(table).stuck)]
        return Verdict(tuple(findings), ())
    bounds = bounding(table, walked.order)
    findings += _budget(table, bounds)
    ranks = table.setup.ranks
    return Verdict(tuple(findings), bounds[:ranks], bounds[ranks:])


def require_sound(program: Program | Table) -> Verdict:
    """The verdict on a sound program; a `ProgramError` with the first findings otherwise."""
    verdict = verify(program)
    if verdict.findings:
        shown = "\n".join(f"  {f.rule}: {f.message}" for f in verdict.findings[:5])
        more = f"\n  ... and {len(verdict.findings) - 5} more" if len(verdict.findings) > 5 else ""
        raise ProgramError(f"the program breaks {len(verdict.findings)} rules\n{shown}{more}")
    return verdict


def place_of(table: Table, op: int) -> str:
    """Where an op stands, for people."""
    return f"{table.word(op)} on rank {table.rank[op]}, lane {Lane(int(table.lane[op])).word}"


# ---- one version, one write, one free ---------------------------------------------------


def _uses(table: Table) -> Iterator[Finding]:
    uses, edges, states = table.uses, table.edges, table.states
    gradients = _gradient_states(table)
    for row in edges.unwritten.tolist():
        op, state = int(uses.op[row]), int(uses.state[row])
        rule = Rule.INCOMPLETE_GRADIENT if gradients[state] else Rule.READ_BEFORE_WRITE
        verb = "reads" if uses.mode[row] == READ else "frees"
        what = f"{verb} {states.name(state)}, which no op has written"
        if gradients[state]:
            g = (state - states.start("gradient")) % len(states.units.rank)
            tied = table.setup.tied and states.units.tied_to[g] >= 0
            copy = " and the tied copy's gradient" if tied else ""
            due = "all its micro-batches"
            if states.units.reduced[g] and uses.version[row] > states.units.micro_batches[g]:
                due = "the gradients of all replicas"
            what = f"{verb} {states.name(state)} before {due}{copy} are in it"
        yield _finding(table, rule, op, state, what)
    for rows, rule, verb in (
        (edges.written_twice, Rule.WRITTEN_TWICE, "writes"),
        (edges.freed_twice, Rule.FREED_TWICE, "frees"),
    ):
        for row in rows.tolist():
            op, state = int(uses.op[row]), int(uses.state[row])
            what = f"{verb} a version of {states.name(state)} that another op {verb}"
            yield _finding(table, rule, op, state, what)
    writes = np.flatnonzero(uses.mode == WRITE)
    writer = np.zeros(len(states.rank), dtype=np.int64)
    writer[uses.state[writes]] = uses.op[writes]
    for state in edges.unfreed.tolist():
        what = f"writes {states.name(state)}, which no op frees"
        yield _finding(table, Rule.LEAK, int(writer[state]), state, what)


def _gradients(table: Table) -> Iterator[Finding]:
    """Reductions, updates and barriers that read a gradient before its last micro-batch."""
    uses, states = table.uses, table.states
    readers = table.where("needs_whole_gradient")
    if table.setup.per_micro_batch:
        readers &= ~table.where("is_reduction")
    rows = np.flatnonzero(
        _gradient_states(table)[uses.state] & (uses.mode == READ) & readers[uses.op]
    )
    due = states.units.micro_batches[table.unit[uses.op[rows]]]
    yield from _untied(table, rows)
    for row in rows[uses.version[rows] < due].tolist():
        op, state = int(uses.op[row]), int(uses.state[row])
        what = (
            f"reads {states.name(state)} with {uses.version[row]} of "
            f"{states.units.micro_batches[table.unit[op]]} micro-batches in it"
        )
        yield _finding(table, Rule.INCOMPLETE_GRADIENT, op, state, what)


def _untied(table: Table, rows: Ints) -> Iterator[Finding]:
    """Of these reads of gradients, those of a tied one that lacks its other copy's."""
    if not table.setup.tied:
        return
    uses, units = table.uses, table.states.units
    family = table.states.by_name["gradient"]
    g = (uses.state[rows] - family.start) % family.count
    ahead = table.where("is_reduction")[uses.op[rows]]
    late = (units.tied_to[g] >= 0) & ~ahead & (uses.version[rows] >= units.micro_batches[g])
    due = units.micro_batches[g] + units.reduced[g] + 1
    for row in rows[late & (uses.version[rows] < due)].tolist():
        op, state = int(uses.op[row]), int(uses.state[row])
        what = f"reads {table.states.name(state)} before the tied copy's gradient is added to it"
        yield _finding(table, Rule.INCOMPLETE_GRADIENT, op, state, what)


def _gradient_states(table: Table) -> Bools:
    names = [family.name in ("gradient", "shard") for family in table.states.families]
    return np.array(names)[table.states.family]


def _forwards(table: Table) -> Iterator[Finding]:
    """Units that do not see a micro-batch forward exactly once. States alone do not tell: what a
    recovered last unit computes forward is the loss, which nothing reads."""
    units, states = table.states.units, table.states
    forwards = np.flatnonzero(table.where("is_forward"))
    g = table.unit[forwards]
    cells = states.unit_cell[g] + units.place(g, table.micro_batch[forwards])
    cells += table.step[forwards] * states.cells
    seen = np.bincount(cells, minlength=states.cells * table.setup.period)
    last = np.full(len(seen), -1, dtype=np.int64)
    last[cells] = forwards
    for cell in np.flatnonzero(seen != 1).tolist():
        step, inside = divmod(cell, states.cells)
        g = int(np.searchsorted(states.unit_cell, inside, side="right")) - 1
        name = f"[{states.cell_name(inside)}{f', step {step}' if step else ''}]"
        op = int(last[cell])
        message = f"{seen[cell]} forward ops of unit and micro-batch {name} instead of one"
        yield Finding(Rule.MISSING_FORWARD, int(units.rank[g]), op, name, message)


_RENEWED = {
    "shard_view",
    *(waiting_family(name, tier) for name in ("view", "optimizer") for tier in TIERS),
}


def _renewals(table: Table) -> Iterator[Finding]:
    """Views that compute reads and optimizer shards, which each step must renew at least once."""
    if table.setup.forward_only:
        return
    states, period = table.states, table.setup.period
    for family in states.families:
        if family.name not in _RENEWED or not family.count:
            continue
        due = _must_be_renewed(table, family.name)
        steps = _steps_that_write(table, family.start, family.count)
        for unit in np.flatnonzero(due & (steps < period)).tolist():
            state = family.start + unit
            times = "in a step" if period == 1 else f"in {period - steps[unit]} of {period} steps"
            message = f"no op updates {states.name(state)} {times}"
            yield Finding(
                Rule.NOT_UPDATED, int(states.rank[state]), -1, states.name(state), message
            )


def _must_be_renewed(table: Table, family: str) -> Bools:
    """Units of which a family's state is in use."""
    units = table.states.units
    for number, tier in enumerate(TIERS):
        if family == waiting_family("optimizer", tier):
            return units.trained & (units.tiers["optimizer"] == number)
        if tier and family == waiting_family("view", tier):
            return units.trained & (units.tiers["view"] == number)
    sharded = units.shared & (table.setup.sharding == 3)
    here = units.trained & ~units.waits("view")
    return here & (sharded if family == "shard_view" else ~sharded)


def _steps_that_write(table: Table, start: int, count: int) -> Ints:
    """For each state of a lasting family, in how many of the program's steps it is written."""
    uses = table.uses
    rows = (uses.mode == WRITE) & (uses.state >= start) & (uses.state < start + count)
    written = np.zeros((table.setup.period, count), bool)
    written[table.step[uses.op[rows]], uses.state[rows] - start] = True
    return written.sum(axis=0)


def _saves(table: Table) -> Iterator[Finding]:
    """Units that a checkpoint misses, or has more than once. A program may save none."""
    units = table.states.units
    for step in range(table.setup.period):
        saves = np.flatnonzero(table.where("is_save") & (table.step == step))
        if not len(saves):
            continue
        counts = np.bincount(table.unit[saves], minlength=len(units.rank))
        last = np.full(len(counts), -1, dtype=np.int64)
        last[table.unit[saves]] = saves
        for g in np.flatnonzero(counts != 1).tolist():
            name = table.states.name(table.states.start("optimizer") + g).removeprefix("optimizer")
            message = f"{counts[g]} saves of unit {name} instead of one"
            yield Finding(Rule.INCOMPLETE_SAVE, int(units.rank[g]), int(last[g]), name, message)


def _averages(table: Table) -> Iterator[Finding]:
    """Units that replicas train apart and would end a period with unlike, and units whose mirrors
    would not be of one version with their owners."""
    states = table.states
    for g, op, what in chain(unlike(table), unmirrored(table)):
        name = states.name(states.start("optimizer") + g).removeprefix("optimizer")
        rank = int(states.units.rank[g])
        message = f"unit {name} on rank {rank} {what}"
        yield Finding(Rule.INCOMPLETE_SYNC, rank, op, name, message)


# ---- messages and collectives -----------------------------------------------------------


def _partners(table: Table) -> Iterator[Finding]:
    """Ops that happen together must all be there."""
    together = np.flatnonzero(table.group >= 0)
    if not len(together):
        return
    _, inverse, counts = np.unique(table.group[together], return_inverse=True, return_counts=True)
    expected = _expected_partners(table)[together]
    for op in together[counts[inverse] != expected].tolist():
        kind = Kind(int(table.kind[op]))
        if kind.receives is not None:
            rule, missing = Rule.MISSING_SEND, "has no send"
        elif kind.is_message:
            rule, missing = Rule.MISSING_RECEIVE, "has no receive"
        elif kind.uses_buckets and table.setup.backward_sends:
            rule, missing = Rule.MISSING_PARTNER, "has no partner that sends, or fills, its buckets"
        elif kind.is_tie:
            rule, missing = Rule.MISSING_PARTNER, "is missing for the other copy"
        elif kind.partners is Partners.EVERYONE:
            rule, missing = Rule.MISSING_PARTNER, "does not appear exactly once on every rank"
        else:
            rule, missing = Rule.MISSING_PARTNER, "is missing on another rank that holds the unit"
        yield _finding(table, rule, op, -1, missing)


def _expected_partners(table: Table) -> Ints:
    """For each op of a group, how many ops the group should have."""
    _, spelled_out = groups_of_holders(table)
    site = sites_of_ops(table)
    rank_of_site = np.unique(np.array([site, table.rank]), axis=1)[0]
    everyone = np.bincount(rank_of_site)[site]
    several = {Partners.HOLDERS: spelled_out, Partners.PEERS: spelled_out}
    several[Partners.EVERYONE] = everyone
    expected = np.full(len(table), 2, dtype=np.int64)
    for kind in Kind:
        if kind.partners in several:
            expected[table.kind == kind] = several[kind.partners][table.kind == kind]
    return np.where(sends_beside(table), 2 * spelled_out, expected)


def _message_order(table: Table) -> Iterator[Finding]:
    """Between two ranks, messages of one direction are received in the order of their sends."""
    for receive in (kind for kind in Kind if kind.receives is not None):
        sends, receives = (np.flatnonzero(table.kind == k) for k in (receive.receives, receive))
        _, here, other = np.intersect1d(
            table.group[sends], table.group[receives], return_indices=True
        )
        sent, received = sends[here], receives[other]
        channel = table.rank[sent] * table.setup.ranks + table.rank[received]
        as_sent, as_received = np.lexsort((sent, channel)), np.lexsort((received, channel))
        wrong = np.flatnonzero(as_sent != as_received)
        _, first = np.unique(channel[as_sent[wrong]], return_index=True)
        for place in wrong[first].tolist():
            instead, op = int(sent[as_sent[place]]), int(received[as_received[place]])
            source, target = table.rank[instead], table.rank[op]
            what = f"is received where rank {source} sends {table.word(instead)} to {target}"
            yield _finding(table, Rule.MESSAGE_ORDER, op, -1, what)


# ---- order ------------------------------------------------------------------------------

_BROKEN = {
    READ_EDGE: (Rule.READ_BEFORE_WRITE, "comes before {other}, which writes the {state} it reads"),
    FREE_EDGE: (Rule.USE_AFTER_FREE, "frees {state}, which {other} uses afterwards"),
    OVERWRITE_EDGE: (Rule.OVERWRITTEN, "overwrites {state}, which {other} still needs"),
}


def _lane_order(table: Table) -> Iterator[Finding]:
    """Ops that wait for a later op on their own lane."""
    inside = table.edges.inside
    source, target = inside.source, inside.target
    same_lane = (table.rank[source] == table.rank[target]) & (
        table.lane[source] == table.lane[target]
    )
    gradients = _gradient_states(table)
    for edge in np.flatnonzero(same_lane & (inside.kind != LANE_EDGE) & (source > target)).tolist():
        rule, words = _BROKEN[int(inside.kind[edge])]
        state = int(inside.state[edge])
        if rule is Rule.READ_BEFORE_WRITE and gradients[state]:
            rule = Rule.INCOMPLETE_GRADIENT
        what = words.format(other=table.word(int(source[edge])), state=table.states.name(state))
        yield _finding(table, rule, int(target[edge]), state, what)


def _deadlock(table: Table, stuck: Ints) -> Finding:
    """One circle of waiting among the nodes that can never run, in words."""
    n = len(table)
    circle, kinds, states = _circle(table, set(stuck.tolist()))
    rule = Rule.USE_AFTER_FREE if FREE_EDGE in kinds else Rule.DEADLOCK
    chain = " waits for ".join(place_of(table, node % n) for node in [*circle[:6], circle[0]])
    if len(circle) > 6:
        chain += f" (a cycle of {len(circle)} ops)"
    state = next((s for s in states if s >= 0), -1)
    return Finding(
        rule,
        int(table.rank[circle[0] % n]),
        circle[0] % n,
        table.states.name(state) if state >= 0 else "",
        chain,
    )


def _circle(table: Table, stuck: set[int]) -> tuple[list[int], list[int], list[int]]:
    """Nodes that wait for each other in a circle; the kinds and states of the waiting."""
    n = len(table)
    reasons: dict[int, tuple[int, int, int]] = {}
    for edges, shift in ((table.edges.inside, 0), (table.edges.across, n)):
        columns = (edges.source, edges.target, edges.kind, edges.state)
        for source, target, kind, state in zip(*(c.tolist() for c in columns), strict=True):
            for step in range(STEPS - (shift > 0)):
                before, after = source + step * n, target + step * n + shift
                if before in stuck and after in stuck:
                    reasons.setdefault(after, (before, kind, state))
    partners: dict[tuple[int, int], list[int]] = {}
    for node in stuck:
        if table.group[node % n] >= 0:
            partners.setdefault((node // n, int(table.group[node % n])), []).append(node)
    seen: dict[int, int] = {}
    path: list[tuple[int, int, int]] = []
    node = min(stuck)
    while node not in seen:
        seen[node] = len(path)
        if node in reasons:
            following, kind, state = reasons[node]
        else:  # it could run, but its partner cannot
            key = node // n, int(table.group[node % n])
            following = next(p for p in partners[key] if p in reasons)
            kind, state = LANE_EDGE, -1
        path.append((node, kind, state))
        node = following
    around = path[seen[node] :]
    return [a for a, _, _ in around], [k for _, k, _ in around], [s for _, _, s in around]


# ---- memory -----------------------------------------------------------------------------


def _budget(table: Table, bounds: tuple[PeakBound, ...]) -> Iterator[Finding]:
    for bound in bounds:
        tier = bound.tier or table.setup.tier
        budget = table.setup.budget_of(bound.rank, bound.tier)
        if budget is None or bound.total_bytes <= budget:
            continue
        family, size = max(bound.by_family.items(), key=lambda item: item[1])
        message = (
            f"rank {bound.rank} can need {scaled(bound.total_bytes, 'B')} of {tier}, "
            f"{scaled(bound.total_bytes - budget, 'B')} over its budget of "
            f"{scaled(budget, 'B')}; {takes(family)} {scaled(size, 'B')}"
        )
        yield Finding(Rule.OVER_BUDGET, bound.rank, bound.op, family, message)


def _finding(table: Table, rule: Rule, op: int, state: int, what: str) -> Finding:
    name = table.states.name(state) if state >= 0 else ""
    return Finding(rule, int(table.rank[op]), op, name, f"{place_of(table, op)} {what}")
