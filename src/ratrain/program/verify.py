"""The verifier: what is proved about a program before anything runs it.

1. Every state that is read has been written, once; every passing state is freed, once.
2. Every send has its receive, in the same order on both sides.
3. Every unit sees every micro-batch forward, once; every gradient holds all of its micro-batches
   before it is reduced and before its update; every view and optimizer shard is renewed once a
   step; a checkpoint has every unit, once.
4. Two steps run to their end: no lane waits for ever, nothing is read after it is freed or
   overwritten while it is needed.
5. Memory stays within the budget on every rank, whatever the timing (`bounds`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ratrain.errors import ProgramError
from ratrain.program.actions import Kind, Lane
from ratrain.program.binding import READ, WRITE
from ratrain.program.bounds import PeakBound, peak_bounds
from ratrain.program.edges import FREE_EDGE, LANE_EDGE, OVERWRITE_EDGE, READ_EDGE
from ratrain.program.program import Program
from ratrain.program.table import Table
from ratrain.program.units import Ints
from ratrain.program.walk import STEPS, walk


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
    """What the verifier found; `bounds` is empty where the program cannot run at all."""

    findings: tuple[Finding, ...]
    bounds: tuple[PeakBound, ...]

    @property
    def sound(self) -> bool:
        return not self.findings


def verify(program: Program | Table) -> Verdict:
    """The verdict on a program."""
    table = program.table if isinstance(program, Program) else program
    findings = [
        *_uses(table),
        *_gradients(table),
        *_forwards(table),
        *_renewals(table),
        *_saves(table),
        *_partners(table),
        *_message_order(table),
        *_lane_order(table),
    ]
    walked = walk(table)
    if len(walked.stuck):
        if not findings:
            findings = [_deadlock(table, walked.stuck)]
        return Verdict(tuple(findings), ())
    bounds = peak_bounds(table, walked.order)
    findings += _budget(table, bounds)
    return Verdict(tuple(findings), bounds)


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
            what = f"{verb} {states.name(state)} before all its micro-batches are in it"
            if table.setup.tied and states.units.tied_to[state - states.start("gradient")] >= 0:
                what += ", and its other copy's"
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
    readers = [Kind.UpdateShard, Kind.AllSynced, Kind.ClipNorm]
    if not table.setup.per_micro_batch:
        readers += [Kind.GradSync, Kind.AllBackward]
    rows = np.flatnonzero(
        _gradient_states(table)[uses.state]
        & (uses.mode == READ)
        & np.isin(table.kind[uses.op], readers)
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
    g = uses.state[rows] - table.states.start("gradient")
    ahead = np.isin(table.kind[uses.op[rows]], [Kind.AllBackward, Kind.GradSync])
    late = (units.tied_to[g] >= 0) & ~ahead & (uses.version[rows] >= units.micro_batches[g])
    due = units.micro_batches[g] + table.setup.reduces + 1
    for row in rows[late & (uses.version[rows] < due)].tolist():
        op, state = int(uses.op[row]), int(uses.state[row])
        what = f"reads {table.states.name(state)} without its other copy's"
        yield _finding(table, Rule.INCOMPLETE_GRADIENT, op, state, what)


def _gradient_states(table: Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    names = [family.name in ("gradient", "shard") for family in table.states.families]
    return np.array(names)[table.states.family]


def _forwards(table: Table) -> Iterator[Finding]:
    """Units that do not see a micro-batch forward exactly once. States alone do not tell: what a
    recovered last unit computes forward is the loss, which nothing reads."""
    units, states = table.states.units, table.states
    forwards = np.flatnonzero(table.kind == Kind.F)
    cells = states.unit_cell[table.unit[forwards]] + table.micro_batch[forwards]
    seen = np.bincount(cells, minlength=int(units.micro_batches.sum()))
    last = np.full(len(seen), -1, dtype=np.int64)
    last[cells] = forwards
    for cell in np.flatnonzero(seen != 1).tolist():
        g = int(np.searchsorted(states.unit_cell, cell, side="right")) - 1
        name = states.name(states.start("saved") + cell).removeprefix("saved")
        op = int(last[cell])
        message = f"{seen[cell]} forwards of unit and micro-batch {name}, in place of one"
        yield Finding(Rule.MISSING_FORWARD, int(units.rank[g]), op, name, message)


def _renewals(table: Table) -> Iterator[Finding]:
    """Views that compute reads and optimizer shards, which a step must renew exactly once."""
    uses, states = table.uses, table.states
    writes = np.bincount(uses.state[uses.mode == WRITE], minlength=len(states.rank))
    view = "shard_view" if table.setup.gathers_per_use else "view"
    for family in states.families:
        if family.name not in (view, "optimizer"):
            continue
        for state in range(family.start, family.start + family.count):
            if not writes[state]:
                message = f"nothing renews {states.name(state)} in a step"
                rank = int(states.rank[state])
                yield Finding(Rule.NOT_UPDATED, rank, -1, states.name(state), message)


def _saves(table: Table) -> Iterator[Finding]:
    """Units that a checkpoint misses, or has more than once. A program may save none."""
    units = table.states.units
    saves = np.flatnonzero(table.kind == Kind.Save)
    if not len(saves):
        return
    counts = np.bincount(table.unit[saves], minlength=len(units.rank))
    last = np.full(len(counts), -1, dtype=np.int64)
    last[table.unit[saves]] = saves
    for g in np.flatnonzero(counts != 1).tolist():
        name = table.states.name(table.states.start("optimizer") + g).removeprefix("optimizer")
        message = f"{counts[g]} saves of unit {name}, in place of one"
        yield Finding(Rule.INCOMPLETE_SAVE, int(units.rank[g]), int(last[g]), name, message)


# ---- messages and collectives -----------------------------------------------------------

_RECEIVE_OF = {Kind.SEND_F: Kind.RECV_F, Kind.SEND_B: Kind.RECV_B}


def _partners(table: Table) -> Iterator[Finding]:
    """Ops that happen together must all be there."""
    together = np.flatnonzero(table.group >= 0)
    if not len(together):
        return
    _, inverse, counts = np.unique(table.group[together], return_inverse=True, return_counts=True)
    kind = table.kind[together]
    expected = np.full(len(kind), len(table.setup.replicas))
    expected[(kind <= Kind.RECV_B) | (kind == Kind.TieSync)] = 2
    expected[kind == Kind.ClipNorm] = table.setup.ranks
    for op in together[counts[inverse] != expected].tolist():
        word = Kind(int(table.kind[op]))
        if word in (Kind.SEND_F, Kind.SEND_B):
            rule, missing = Rule.MISSING_RECEIVE, "has no receive"
        elif word in (Kind.RECV_F, Kind.RECV_B):
            rule, missing = Rule.MISSING_SEND, "has no send"
        elif word is Kind.TieSync:
            rule, missing = Rule.MISSING_PARTNER, "is missing for the other copy"
        elif word is Kind.ClipNorm:
            rule, missing = Rule.MISSING_PARTNER, "is not there once on every rank"
        else:
            rule, missing = Rule.MISSING_PARTNER, "is missing on another replica"
        yield _finding(table, rule, op, -1, missing)


def _message_order(table: Table) -> Iterator[Finding]:
    """Between two ranks, messages of one direction are received in the order of their sends."""
    for send, receive in _RECEIVE_OF.items():
        sends, receives = np.flatnonzero(table.kind == send), np.flatnonzero(table.kind == receive)
        _, one, other = np.intersect1d(
            table.group[sends], table.group[receives], return_indices=True
        )
        sent, received = sends[one], receives[other]
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
    """Ops that wait for an op behind them on their own lane."""
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
        chain += f" (a circle of {len(circle)} ops)"
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
    budget = table.setup.budget_bytes
    for bound in bounds:
        if budget is None or bound.total_bytes <= budget:
            continue
        family, size = max(bound.by_family.items(), key=lambda item: item[1])
        message = (
            f"rank {bound.rank} can need {bound.total_bytes:,} bytes of {table.setup.tier}, "
            f"{bound.total_bytes - budget:,} over its budget of {budget:,}; "
            f"most of it is {family} ({size:,} bytes)"
        )
        yield Finding(Rule.OVER_BUDGET, bound.rank, bound.op, family, message)


def _finding(table: Table, rule: Rule, op: int, state: int, what: str) -> Finding:
    name = table.states.name(state) if state >= 0 else ""
    return Finding(rule, int(table.rank[op]), op, name, f"{place_of(table, op)} {what}")
