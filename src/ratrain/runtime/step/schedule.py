"""One rank's part of a program: its ops lane by lane, and for each op what it waits for.

Everything here is read off the program's table: waits are its edges, births and deaths its uses
of states. Nothing is ordered that the program does not order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ratrain.program.edges import EdgeList
from ratrain.program.families import DEVICE, FAMILIES, Per
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.replicas import Member, Unit
from ratrain.program.table import Table
from ratrain.program.tiers import TIERS, WAITING
from ratrain.program.units import Ints
from ratrain.program.uses import FREE, READ, WRITE
from ratrain.runtime.step.waits import needed

Key = tuple[str, int]
"""A state's name on its rank: its family, and its number in it, which is the same in every step.
Of a family that each unit has, the number is the unit's index on the rank."""


@dataclass(frozen=True)
class HeldState:
    """One state of the rank; `tier` "" is the device's own memory. `index`: see `Key`."""

    family: str
    size_bytes: int
    tier: str = DEVICE
    index: int = -1

    @property
    def key(self) -> Key:
        return self.family, self.index


@dataclass(frozen=True)
class LocalOp:
    """One op of this rank. `waits` are numbers of this rank's ops, on other lanes: those that are
    needed, since they and the lanes' order imply all others."""

    number: int
    kind: Kind
    lane: Lane
    unit: int  # index among the rank's units
    stage: int
    micro_batch: int
    place: int  # of the micro-batch among those that the rank computes of its unit
    step: int  # of the program's period
    word: str
    waits: tuple[int, ...]  # of the same period
    waits_before: tuple[int, ...]  # of the period before
    births: tuple[HeldState, ...]
    deaths: tuple[HeldState, ...]
    reads: Mapping[str, Key]  # by family; of one that it reads several states of, the last
    writes: Mapping[str, Key]
    renews: tuple[Key, ...]  # slots that it fills afresh: what was in them is read by nobody more
    transit: int  # the slot for an unreduced gradient that it uses; -1: none
    gathered: int  # the slot for a gathered view that it uses; -1: none
    uses: tuple[tuple[int, bool, bool], ...]  # as `ratrain.devices.device.DeclaredOp` has them


@dataclass(frozen=True)
class LocalUnit:
    """One unit of this rank."""

    index: int
    unit: Unit
    stage: int
    recovered: bool
    first: bool  # of the model
    last: bool
    first_of_part: bool
    last_of_part: bool
    next_is_local: bool
    previous_is_local: bool
    gathered: bool  # its view exists only while it is used (level 3)
    micro_batches: int
    tiers: Mapping[str, str]  # where its states of each sort wait (`tiers.WAITING`)
    lasting: Mapping[str, str]  # the families of which it has a state all the time, and their tiers

    def waits(self, name: str) -> bool:
        """Whether its states of a sort wait in another tier than the device's."""
        return bool(self.tiers[name])


@dataclass(frozen=True)
class Schedule:
    """One rank's ops. Numbers count rank-wide, lane by lane."""

    program: Program
    rank: int
    ops: tuple[LocalOp, ...]
    units: tuple[LocalUnit, ...]
    persistent: tuple[HeldState, ...]  # states that exist all the time

    @cached_property
    def lanes(self) -> dict[Lane, tuple[LocalOp, ...]]:
        lanes: dict[Lane, list[LocalOp]] = defaultdict(list)
        for op in self.ops:
            lanes[op.lane].append(op)
        return {lane: tuple(ops) for lane, ops in lanes.items()}

    @property
    def period(self) -> int:
        """Steps that the program spells out."""
        return self.program.setup.period

    def of_step(self, lane: Lane, step: int) -> tuple[LocalOp, ...]:
        """A lane's ops of a step, counted from where a period begins."""
        return self._by_step.get((lane, step % self.period), ())

    def before(self, step: int) -> frozenset[int]:
        """The ops of the steps of a period before this one."""
        return frozenset(op.number for op in self.ops if op.step < step % self.period)

    @cached_property
    def _by_step(self) -> dict[tuple[Lane, int], tuple[LocalOp, ...]]:
        ops_by_step: dict[tuple[Lane, int], list[LocalOp]] = defaultdict(list)
        for op in self.ops:
            ops_by_step[op.lane, op.step].append(op)
        return {key: tuple(ops) for key, ops in ops_by_step.items()}

    @property
    def held(self) -> list[tuple[int, Member]]:
        """(stage number, member) for each stage that the rank holds."""
        return self.program.held_by(self.rank)


def schedule_of(program: Program, rank: int) -> Schedule:
    """The `Schedule` of a program rank."""
    table = program.table
    mine = np.flatnonzero(table.rank == rank)
    number = np.full(len(table), -1, dtype=np.int64)
    number[mine] = np.arange(len(mine))
    unit_numbers = np.flatnonzero(table.states.units.rank == rank)
    local_unit = {int(g): index for index, g in enumerate(unit_numbers)}
    waits, waits_before = needed(
        [np.flatnonzero(table.lane[mine] == lane).tolist() for lane in np.unique(table.lane[mine])],
        _waits(table, table.edges.inside, number),
        _waits(table, table.edges.across, number),
    )
    uses = _uses(table, number, local_unit)
    place = table.states.units.place(table.unit, np.maximum(table.micro_batch, 0))
    ops = tuple(
        LocalOp(
            number=index,
            kind=Kind(int(table.kind[op])),
            lane=Lane(int(table.lane[op])),
            unit=local_unit[int(table.unit[op])],
            stage=int(table.states.units.stage_in_replica[table.unit[op]]),
            micro_batch=int(table.micro_batch[op]),
            place=int(place[op]),
            step=int(table.step[op]),
            word=table.word(op),
            waits=waits[index],
            waits_before=waits_before[index],
            births=tuple(uses[index].births),
            deaths=tuple(uses[index].deaths),
            reads=uses[index].reads,
            writes=uses[index].writes,
            renews=uses[index].renews,
            transit=uses[index].slots.get("transit", -1),
            gathered=uses[index].slots.get("gathered", -1),
            uses=tuple(uses[index].all),
        )
        for index, op in enumerate(mine.tolist())
    )
    units = tuple(_local_unit(program, rank, local_unit[g], g) for g in unit_numbers.tolist())
    return Schedule(program, rank, ops, units, persistent_of(table, rank))


def _waits(table: Table, edges: EdgeList, number: Ints) -> dict[int, tuple[int, ...]]:
    """For each of the rank's ops the ops of its other lanes that it waits for. Its own lane's
    order holds by itself, and other ranks are heard through messages alone."""
    across_lanes = (number[edges.source] >= 0) & (number[edges.target] >= 0)
    across_lanes &= table.lane[edges.source] != table.lane[edges.target]
    awaited: dict[int, set[int]] = defaultdict(set)
    pairs = zip(
        number[edges.target[across_lanes]].tolist(),
        number[edges.source[across_lanes]].tolist(),
        strict=True,
    )
    for target, source in pairs:
        awaited[target].add(source)
    return {op: tuple(sorted(sources)) for op, sources in awaited.items()}


_BUFFERS = ("transit", "gathered")
"""Slots whose memory is allocated once: an op is told which one is its own."""


@dataclass
class _OpUses:
    """What one op does with states."""

    births: list[HeldState] = field(default_factory=list[HeldState])
    deaths: list[HeldState] = field(default_factory=list[HeldState])
    reads: dict[str, Key] = field(default_factory=dict[str, Key])
    writes: dict[str, Key] = field(default_factory=dict[str, Key])
    slots: dict[str, int] = field(default_factory=dict[str, int])
    all: list[tuple[int, bool, bool]] = field(default_factory=list[tuple[int, bool, bool]])

    @property
    def renews(self) -> tuple[Key, ...]:
        """What it writes anew of slots that are filled by turns."""
        slots = (Per.RANK_SLOT, Per.PART_SLOT)
        return tuple(
            key
            for family, key in self.writes.items()
            if FAMILIES[family].per in slots and family not in _BUFFERS and family not in self.reads
        )


def _uses(table: Table, number: Ints, local_unit: Mapping[int, int]) -> dict[int, _OpUses]:
    """What each of the rank's ops does with states, by its number."""
    states, uses = table.states, table.uses
    of_ops: dict[int, _OpUses] = defaultdict(_OpUses)
    for row in np.flatnonzero(number[uses.op] >= 0).tolist():
        op, state = of_ops[int(number[uses.op[row]])], int(uses.state[row])
        family = states.families[int(states.family[state])]
        inside = (state - family.start) % max(family.count, 1)
        if family.name in _BUFFERS:
            before = states.rank[family.start : state] == states.rank[state]
            op.slots[family.name] = int(before.sum())
        # A tied matrix' other copy may be another rank's.
        index = local_unit.get(inside, -1) if family.per is Per.UNIT else inside
        size_bytes = int(states.size_bytes[state])
        held = HeldState(family.name, size_bytes, family.tier, index)
        mode = int(uses.mode[row])
        op.all.append((state, mode != READ, mode != WRITE and not states.persistent[state]))
        if mode == READ:
            op.reads[family.name] = held.key
        elif mode == WRITE:
            op.writes[family.name] = held.key
        if states.persistent[state]:
            continue
        if mode == WRITE and uses.version[row] == 1:
            op.births.append(held)
        elif mode == FREE:
            op.deaths.append(held)
    return of_ops


def persistent_of(table: Table, rank: int) -> tuple[HeldState, ...]:
    """What a program rank holds all the time, family by family."""
    states = table.states
    rows = np.flatnonzero(states.persistent & (states.rank == rank) & (states.size_bytes > 0))
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for state in rows.tolist():
        family = states.families[int(states.family[state])]
        sums[family.name, family.tier] += int(states.size_bytes[state])
    return tuple(HeldState(name, size, tier) for (name, tier), size in sums.items())


def _local_unit(program: Program, rank: int, index: int, g: int) -> LocalUnit:
    states, held = program.table.states, dict(program.held_by(rank))
    units, size_bytes = states.units, states.size_bytes
    stage = int(units.stage_in_replica[g])
    return LocalUnit(
        index=index,
        unit=held[stage].units[int(units.unit_in_stage[g])],
        stage=stage,
        recovered=bool(units.recovered[g]),
        first=not bool(units.has_input[g]),
        last=not bool(units.has_output[g]),
        first_of_part=bool(units.first_of_part[g] == g),
        last_of_part=bool(units.last_of_part[g] == g),
        next_is_local=bool(units.next_is_local[g]),
        previous_is_local=bool(units.previous_is_local[g]),
        gathered=bool(units.shared[g]) and program.setup.sharding == 3,
        micro_batches=int(units.micro_batches[g]),
        tiers={name: TIERS[int(units.tiers[name][g])] for name in WAITING},
        lasting={
            family.name: family.tier
            for family in states.families
            if family.per is Per.UNIT and FAMILIES[family.name].persistent
            if family.count and size_bytes[family.start + g]
        },
    )


def is_first_of_last_stage(schedule: Schedule) -> bool:
    """Whether the rank is the first member of its replica's last stage, which speaks for all."""
    setup = schedule.program.setup
    number = setup.replica_of(schedule.rank)
    first = setup.replicas[number].stages[-1].members[0]
    return setup.first_rank[number] + first.rank == schedule.rank


def held_sum(states: Iterable[HeldState]) -> int:
    """Bytes of several states."""
    return sum(state.size_bytes for state in states)
