"""A program's ops as classes of work, and what every order of them has in common.

A class is what one kind of op does for one unit, for all micro-batches: few even where ops are
millions. What one class must wait for from another follows from the states alone, from who writes
what whom reads; how ops stand on their lanes is left out, because that is what an order chooses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratrain.program.kind import Kind, Lane
from ratrain.program.table import Table
from ratrain.program.units import Bools, Ints
from ratrain.program.uses import WRITE
from ratrain.simulate.costs import NO_LINK, Floats, OpCosts


@dataclass(frozen=True)
class Arrow:
    """Every op of `target` waits for an op of `source`: of the same micro-batch where both have
    one, for all of them where only `source` has, of the step before where it is `across`."""

    source: int
    target: int
    across: bool


@dataclass(frozen=True)
class Machine:
    """What does one thing at a time, or divides its rate: a rank's lane, or a link."""

    ranks: tuple[int, ...]  # whose it is; several share a link
    lane: Lane | None  # None: a link


@dataclass(frozen=True)
class Load:
    """What a class asks of a machine in a step. `latency_s` follows after the machine is free."""

    of: int
    machine: int
    total_s: float
    least_s: float  # of its shortest op
    latency_s: float


@dataclass(frozen=True)
class Classes:
    """The classes of a program's ops, numbered, the arrows between them, and the machines."""

    of_op: Ints
    per_micro_batch: Bools
    time_s: Floats  # of the shortest op of each class, with nothing else under way
    arrows: tuple[Arrow, ...]
    machines: tuple[Machine, ...]
    loads: tuple[Load, ...]

    def __len__(self) -> int:
        return len(self.time_s)


def classes_of(table: Table, costs: OpCosts, rates: Floats, longer: Floats) -> Classes:
    """The `Classes` of a program. `longer`: how many times as many micro-batches the program has
    that this one stands for, for each replica."""
    alone_s = _alone_s(costs, rates)
    of_op = _numbers(table)
    per_micro_batch = np.array([len(batches) > 1 for batches in _micro_batches(table, of_op)])
    per_micro_batch[of_op[table.micro_batch < 0]] = False
    together_s = _with_partners(table, alone_s)
    time_s = np.full(len(per_micro_batch), np.inf)
    np.minimum.at(time_s, of_op, together_s)
    machines, loads = _loads(table, costs, rates, of_op, alone_s, longer)
    return Classes(
        of_op,
        per_micro_batch,
        time_s,
        tuple(_arrows(table, of_op, per_micro_batch)),
        machines,
        loads,
    )


def _alone_s(costs: OpCosts, rates: Floats) -> Floats:
    """The seconds of every op with its links to itself."""
    return costs.fixed_s + costs.volume_bytes / _rate(costs, rates)


def _rate(costs: OpCosts, rates: Floats) -> Floats:
    """The rate of the narrower link of each op."""
    rated = np.append(rates, np.inf)  # NO_LINK, -1, is the last one
    return np.minimum(rated[costs.link], rated[costs.peer_link])


def _with_partners(table: Table, alone_s: Floats) -> Floats:
    """Ops of a group end together: with the one that takes longest."""
    longest = np.zeros(int(table.group.max(initial=-1)) + 1)
    grouped = table.group >= 0
    np.maximum.at(longest, table.group[grouped], alone_s[grouped])
    return np.where(grouped, np.append(longest, 0.0)[table.group], alone_s)


def _numbers(table: Table) -> Ints:
    """The class of every op. Kinds that happen together are of one class."""
    units = table.states.units
    unit = table.unit
    whose = np.where(table.micro_batch >= 0, units.stage[unit], -1 - units.part[unit])
    keys = np.stack([table.kind, whose, units.unit_in_stage[unit]], axis=1)
    _, number = np.unique(keys, axis=0, return_inverse=True)
    number = number.reshape(-1).astype(np.int64)
    leader = np.arange(int(number.max()) + 1)
    grouped = np.flatnonzero(table.group >= 0)
    by_group = grouped[np.argsort(table.group[grouped], kind="stable")]
    beside = table.group[by_group][1:] == table.group[by_group][:-1]
    pairs = np.stack([number[by_group[:-1]][beside], number[by_group[1:]][beside]], axis=1)
    for first, second in np.unique(pairs, axis=0).tolist():
        _join(leader, first, second)
    leaders = np.array([_leader(leader, each) for each in range(len(leader))])
    return np.unique(leaders[number], return_inverse=True)[1].reshape(-1).astype(np.int64)


def _leader(leader: Ints, number: int) -> int:
    while leader[number] != number:
        number = int(leader[number])
    return number


def _join(leader: Ints, first: int, second: int) -> None:
    one, other = sorted((_leader(leader, first), _leader(leader, second)))
    leader[other] = one


# ---- who waits for whom -----------------------------------------------------------------


def _waits(table: Table) -> tuple[Ints, Ints, Bools]:
    """(source, target, whether it is of the step before) of every use of what another op wrote."""
    uses, states = table.uses, table.states
    names = [family.name for family in states.families]
    outgrads = np.array([name == "outgrad" for name in names])[states.family[uses.state]]
    # Recovery at backward time waits for backward's turn: an order may begin it earlier.
    waits = ~table.where("is_barrier")[uses.op] & ~((table.kind[uses.op] == Kind.R) & outgrads)
    most = int(uses.version.max(initial=0)) + 1
    writes = np.flatnonzero((uses.mode == WRITE) & ~table.where("is_barrier")[uses.op])
    made = uses.state[writes] * most + uses.version[writes]
    order = np.argsort(made)
    writer, made = uses.op[writes][order], made[order]
    last = np.zeros(len(states.rank), dtype=np.int64)
    np.maximum.at(last, uses.state[writes], uses.version[writes])
    reads = np.flatnonzero((uses.mode != WRITE) & waits)
    state, version = uses.state[reads], uses.version[reads]
    before = (version == 0) & states.persistent[state]
    wanted = state * most + np.where(before, last[state], version)
    at = np.minimum(np.searchsorted(made, wanted), max(len(made) - 1, 0))
    known = made[at] == wanted if len(made) else np.zeros(len(reads), bool)
    source, target = writer[at][known], uses.op[reads][known]
    different = (source != target) | before[known]
    return source[different], target[different], before[known][different]


def _arrows(table: Table, of_op: Ints, per_micro_batch: Bools) -> list[Arrow]:
    """The arrows that hold for every op of their target."""
    source, target, across = _waits(table)
    ends = np.stack([of_op[source], of_op[target], across.astype(np.int64)], axis=1)
    rows_of: list[Ints]
    kinds, number = np.unique(ends, axis=0, return_inverse=True)
    number = number.reshape(-1)
    micro_batches = _micro_batches(table, of_op)
    chained = _chained(table, of_op, source, target)
    rows_of = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1])
    arrows: list[Arrow] = []
    ends_of: list[tuple[int, int, int]] = kinds.tolist()
    for (before, after, crosses), rows in zip(ends_of, rows_of, strict=True):
        sources = source[rows]
        from_batch: Ints = table.micro_batch[sources]
        to_batch: Ints = table.micro_batch[target[rows]]
        whole = True
        if per_micro_batch[before] and per_micro_batch[after]:
            same: set[int] = set(from_batch[from_batch == to_batch].tolist())
            whole = not crosses and same == micro_batches[before] == micro_batches[after]
        elif per_micro_batch[before]:
            chains = (chained.get(op, frozenset[int]()) for op in np.unique(sources).tolist())
            whole = set(from_batch.tolist()).union(*chains) >= micro_batches[before]
        elif per_micro_batch[after]:
            whole = set(to_batch.tolist()) >= micro_batches[after]
        if before != after and whole:
            arrows.append(Arrow(before, after, bool(crosses)))
    return arrows


def _micro_batches(table: Table, of_op: Ints) -> list[set[int]]:
    sets: list[set[int]] = [set() for _ in range(int(of_op.max()) + 1)]
    pairs = np.stack([of_op, table.micro_batch], axis=1)[table.micro_batch >= 0]
    numbered: list[tuple[int, int]] = np.unique(pairs, axis=0).tolist()
    for number, micro_batch in numbered:
        sets[number].add(micro_batch)
    return sets


def _chained(table: Table, of_op: Ints, source: Ints, target: Ints) -> dict[int, frozenset[int]]:
    """For the last op of a chain of micro-batches, each waiting for the one before, all of them: a
    gradient that holds the last micro-batch holds every one."""
    own = (of_op[source] == of_op[target]) & (table.rank[source] == table.rank[target])
    own &= table.micro_batch[source] < table.micro_batch[target]
    after = dict(zip(source[own].tolist(), target[own].tolist(), strict=True))
    begun = set(after) - set(after.values())
    chains: dict[int, frozenset[int]] = {}
    for op in begun:
        batches = [int(table.micro_batch[op])]
        while op in after:
            op = after[op]
            batches.append(int(table.micro_batch[op]))
        chains[op] = frozenset(batches)
    return chains


# ---- what machines do -------------------------------------------------------------------


def _loads(
    table: Table, costs: OpCosts, rates: Floats, of_op: Ints, alone_s: Floats, longer: Floats
) -> tuple[tuple[Machine, ...], tuple[Load, ...]]:
    times = np.where(table.micro_batch >= 0, longer[table.states.units.replica[table.unit]], 1.0)
    lanes = len(Lane)
    place = table.rank * lanes + table.lane
    rows = [(place, alone_s, np.zeros(len(table)))]
    moving = costs.volume_bytes > 0
    for link in (costs.peer_link, costs.link):
        on_it = moving & (link != NO_LINK)
        number = np.where(on_it, table.setup.ranks * lanes + link, -1)
        rate = np.append(rates, np.inf)[link]
        rows.append((number, costs.volume_bytes / rate, costs.fixed_s))
    machine = np.concatenate([row[0] for row in rows])
    time_s, latency_s = (np.concatenate([row[at] for row in rows]) for at in (1, 2))
    op = np.tile(np.arange(len(table)), len(rows))
    used = (machine >= 0) & (time_s > 0)
    keys = np.stack([machine, of_op[op]], axis=1)[used]
    kept, number = np.unique(keys, axis=0, return_inverse=True)
    number = number.reshape(-1)
    total_s = np.bincount(number, weights=(time_s * times[op])[used])
    least_s, least_latency_s = np.full(len(kept), np.inf), np.full(len(kept), np.inf)
    np.minimum.at(least_s, number, time_s[used])
    np.minimum.at(least_latency_s, number, latency_s[used])
    known, index = np.unique(kept[:, 0], return_inverse=True)
    machines = tuple(
        Machine(
            tuple(np.unique(table.rank[op[used & (machine == each)]]).tolist()),
            Lane(each % lanes) if each < table.setup.ranks * lanes else None,
        )
        for each in known.tolist()
    )
    loads = tuple(
        Load(int(kept[at, 1]), int(index.reshape(-1)[at]), *map(float, figures))
        for at, figures in enumerate(zip(total_s, least_s, least_latency_s, strict=True))
    )
    return machines, loads


def in_turn(classes: Classes) -> list[int] | None:
    """The classes so that each comes after all that it waits for within a step; None where two
    classes wait for each other, for different micro-batches."""
    waiting = [0] * len(classes)
    after: list[list[int]] = [[] for _ in range(len(classes))]
    for arrow in classes.arrows:
        if not arrow.across:
            waiting[arrow.target] += 1
            after[arrow.source].append(arrow.target)
    ready = [number for number, count in enumerate(waiting) if not count]
    for number in ready:
        for target in after[number]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return ready if len(ready) == len(classes) else None
