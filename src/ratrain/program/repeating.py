"""Programs that repeat themselves in the middle: a million micro-batches at the cost of a hundred.

A compute order that declares after how many micro-batches it repeats has a beginning, a middle that
is the same again and again with later micro-batches, and an end; so have all lanes that passes make
of it. Such a program is kept as a short one, of few micro-batches, whose middle is marked, and the
number of times that the middle stands in the long one. The short one is proved; `settled` says
whether its proof is one of the long program too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import lcm

import numpy as np

from ratrain.errors import ProgramError
from ratrain.program.actions import NONE, Action
from ratrain.program.columns import (
    KIND,
    MICRO_BATCH,
    STAGE,
    UNIT,
    ColumnLanes,
    Rows,
    as_columns,
    count_ops,
)
from ratrain.program.kind import Lane
from ratrain.program.program import Program
from ratrain.program.setup import Setup
from ratrain.program.skeletons import SKELETONS
from ratrain.program.units import Ints

Make = Callable[[Setup], Program]
"""Builds the program of a setup: a skeleton and passes already chosen."""

WORTH_IT = 2
"""A program is kept short where that leaves out at least this many micro-batches for each kept."""
MOST_OPS = 10_000_000
"""Ops up to which a program is written out: some GB of memory."""
SMALL = 20_000
"""Ops of compute up to which a program is written out in any case."""
FEW_ROUNDS = (1, 2, 3)
"""Rounds of the pipeline in which a middle is looked for, one after the other."""
SHOWN = 3
"""Repetitions beside the ramps of a program in which a middle is looked for."""


@dataclass(frozen=True)
class Middle:
    """The part of a lane that repeats: from `begin` to before `end`; empty where nothing does."""

    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    def moved(self, times: int) -> Middle:
        """The one that many repetitions later."""
        return Middle(self.begin + times * len(self), self.end + times * len(self))


@dataclass(frozen=True)
class Repeating:
    """A long program: `short`, with the middle of each lane `times` times more, each time with
    micro-batches that are `stride` later."""

    short: Program
    middles: Mapping[tuple[int, Lane], Middle]
    stride: int
    times: int
    origin: Repeating | None = field(default=None, compare=False)
    """The one that this was lengthened from."""

    @property
    def setup(self) -> Setup:
        """The header of the long program."""
        more = self.stride * self.times
        return with_micro_batches(self.short.setup, lambda count: count + more)

    @property
    def passes(self) -> tuple[str, ...]:
        return self.short.passes

    @property
    def ops(self) -> int:
        """Ops of the long program."""
        return self.ops_of(self.times)

    def ops_of(self, times: int) -> int:
        """Ops of the program with its middle that many times more."""
        middle = sum(map(len, self.middles.values()))
        return count_ops(self.short.lanes) + middle * times

    def written_out(self, times: int | None = None) -> Program:
        """The program with its middle that many times more; None: all of them."""
        times = self.times if times is None else times
        ops = self.ops_of(times)
        if ops > MOST_OPS:
            raise ProgramError(
                f"the program has {ops:,} ops; at most {MOST_OPS:,} are written out",
                fix="repeat its middle fewer times, or cut the batch into fewer micro-batches",
            )
        rows = as_columns(self.short.lanes).rows
        lanes = {
            key: _lengthened(rows[key], middle, self.stride, times)
            for key, middle in self.middles.items()
        }
        more = self.stride * times
        setup = with_micro_batches(self.short.setup, lambda count: count + more)
        return Program(setup, ColumnLanes(lanes), self.short.passes)

    def lengthened(self, times: int) -> Repeating:
        """The same long program, with some of its repetitions in the short one."""
        middles = {key: middle.moved(times // 2) for key, middle in self.middles.items()}
        left = self.times - times
        return Repeating(self.written_out(times), middles, self.stride, left, self.origin or self)


def shortest(make: Make, setup: Setup, skeleton: str) -> Repeating | None:
    """The program of a setup with as few repetitions as show that they are some; None where it has
    no repeating middle, or is so small that nothing is gained."""
    stride = _stride(setup, skeleton)
    if stride is None or compute_ops(setup) < SMALL:
        return None
    for rounds in FEW_ROUNDS:
        kept, count = _kept(setup, stride, rounds, SHOWN), setup.replicas[0].micro_batches
        if count < WORTH_IT * kept:
            return None
        short = make(with_micro_batches(setup, lambda _, kept=kept: kept))
        marked = _marked(short, stride, (count - kept) // stride)
        if marked is not None:
            return marked
    return None


def of_rounds(short: Repeating, rounds: int) -> Repeating | None:
    """The same long program as a short one of some rounds of the pipeline; None where it is so
    short that nothing is gained."""
    setup = short.setup
    kept, count = _kept(setup, short.stride, rounds, 2), setup.replicas[0].micro_batches
    if count < WORTH_IT * kept:
        return None
    return short.lengthened((kept - short.short.setup.replicas[0].micro_batches) // short.stride)


def _kept(setup: Setup, stride: int, rounds: int, repetitions: int) -> int:
    """Micro-batches of some rounds of the pipeline and some repetitions, so that whole repetitions
    are left out."""
    count = setup.replicas[0].micro_batches
    depth = max(len(replica.stages) * replica.most_joined for replica in setup.replicas)
    kept = rounds * max(depth, stride) + repetitions * stride
    return kept + (count - kept) % stride


def _marked(short: Program, stride: int, times: int) -> Repeating | None:
    """A short program with its middles marked; None where a lane has none."""
    lanes = as_columns(short.lanes)
    middles: dict[tuple[int, Lane], Middle] = {}
    for key, rows in lanes.rows.items():
        middle = _middle(rows, stride)
        if middle is None:
            return None
        middles[key] = middle
    return Repeating(Program(short.setup, lanes, short.passes), middles, stride, times)


def checked(program: Repeating) -> Repeating:
    """The program, if its middles are what repeats; a `ProgramError` otherwise."""
    if program.stride < 1:
        raise ProgramError("a middle repeats with later micro-batches", fix="use a stride above 0")
    for (rank, lane), actions in program.short.lanes.items():
        middle = program.middles.get((rank, lane), Middle(0, 0))
        numbered = any(action.micro_batch != NONE for action in actions)
        body = actions[middle.begin : middle.end]
        if not numbered and not body:
            continue
        before = actions[max(middle.begin - len(body), 0) : middle.begin]
        if not body or tuple(_later(action, program.stride) for action in before) != body:
            raise ProgramError(
                f"rank {rank} {lane.word}: the marked part does not repeat the part before it",
                fix="mark a part that repeats the one before it with later micro-batches",
            )
    return program


def compute_ops(setup: Setup) -> int:
    """Forwards and backwards of a step."""
    return sum(
        2 * len(member.units) * len(replica.computes(member))
        for replica in setup.replicas
        for stage in replica.stages
        for member in stage.members
    )


def with_micro_batches(setup: Setup, change: Callable[[int], int]) -> Setup:
    """The setup with other numbers of micro-batches."""
    replicas = tuple(
        replace(replica, micro_batches=change(replica.micro_batches)) for replica in setup.replicas
    )
    return replace(setup, replicas=replicas)


def _stride(setup: Setup, skeleton: str) -> int | None:
    """After how many micro-batches every replica's order repeats itself."""
    declared = SKELETONS[skeleton]
    alike = len({replica.micro_batches for replica in setup.replicas}) == 1
    shared = any(member.serves is not None for member in setup.members)
    if not alike or shared or setup.period > 1:
        return None
    strides = [
        declared.stride(replica.ranks, len(replica.stages) // replica.ranks)
        for replica in setup.replicas
    ]
    joined = (replica.most_joined for replica in setup.replicas)
    return lcm(*(stride for stride in strides if stride), *joined) if all(strides) else None


def _middle(rows: Rows, stride: int) -> Middle | None:
    """The part of a lane that repeats, as far in its middle as can be; None where a lane has ops of
    micro-batches and no such part. It has ops of every sort that the lane has: what is left out of
    a ramp's repetition would be missing in every later one."""
    numbered = np.flatnonzero(rows[:, MICRO_BATCH] != NONE)
    if not len(numbered):
        return Middle(0, 0)
    sorts = _sorts(rows[numbered])
    begin = int(numbered[_between_ramps(sorts)])
    again = _moved_on(rows[begin], stride)
    repeats = np.flatnonzero((rows[begin + 1 :] == again).all(axis=1))
    if not len(repeats):
        return None
    size = int(repeats[0]) + 1
    body = rows[begin : begin + size]
    before, after = rows[max(begin - size, 0) : begin], rows[begin + size : begin + 2 * size]
    if not np.array_equal(_moved_on(before, stride), body):
        return None
    if not np.array_equal(_moved_on(body, stride), after):
        return None
    inside = sorts[np.searchsorted(numbered, begin) : np.searchsorted(numbered, begin + size)]
    return Middle(begin, begin + size) if len(np.unique(inside)) == sorts.max() + 1 else None


def _sorts(rows: Rows) -> Ints:
    """A number for each row, the same where rows differ in their micro-batch alone."""
    sort = rows[:, KIND].astype(np.int64)
    for column in (STAGE, UNIT):
        sort = sort * (int(rows[:, column].max()) + 1) + rows[:, column]
    return np.unique(sort, return_inverse=True)[1].astype(np.int64)


def _between_ramps(sorts: Ints) -> int:
    """The place halfway between the first op of the last sort to come and the last op of the first
    sort to go."""
    first = np.full(int(sorts.max()) + 1, len(sorts))
    np.minimum.at(first, sorts, np.arange(len(sorts)))
    last = np.zeros_like(first)
    np.maximum.at(last, sorts, np.arange(len(sorts)))
    return int(first.max() + last.min()) // 2


def _lengthened(rows: Rows, middle: Middle, stride: int, times: int) -> Rows:
    """A lane with its middle that many times more."""
    body = rows[middle.begin : middle.end]
    more = np.tile(body, (times, 1))
    shift = np.repeat(np.arange(1, times + 1, dtype=np.int32) * stride, len(body))
    more[:, MICRO_BATCH] += np.where(more[:, MICRO_BATCH] == NONE, 0, shift)
    late = _moved_on(rows[middle.end :], stride * times)
    return np.concatenate([rows[: middle.end], more, late])


def _moved_on(rows: Rows, micro_batches: int) -> Rows:
    """Rows, or one of them, of later micro-batches."""
    moved = rows.copy()
    batch = moved[..., MICRO_BATCH]
    moved[..., MICRO_BATCH] = np.where(batch == NONE, NONE, batch + micro_batches)
    return moved


def _later(action: Action, micro_batches: int) -> Action:
    if action.micro_batch == NONE:
        return action
    return action._replace(micro_batch=action.micro_batch + micro_batches)
