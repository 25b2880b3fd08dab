"""When the proof of a short program is the proof of every longer one of the same middle.

How far lanes can drift apart (`walk.Drift`) is settled by recurrences: an op's bound follows from
those of the ops that it waits for, none further than a few micro-batches away. In the middle of a
repeating program the recurrences are the same for every repetition. So once the bounds of as many
micro-batches as the furthest wait spans are those of the repetition before, moved on by one
repetition, all later ones are too, until the ending begins; and the same backwards. Where that
holds over more micro-batches than any wait spans and any state lives, the memory curve repeats, and
more repetitions add nothing that the short program does not have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ratrain.program.actions import NONE
from ratrain.program.bounds import Lives, Moved, PeakBound, peak_bounds
from ratrain.program.columns import count_ops
from ratrain.program.kind import Lane
from ratrain.program.program import Program
from ratrain.program.repeating import Make, Repeating, of_rounds, shortest
from ratrain.program.setup import Setup
from ratrain.program.table import Table
from ratrain.program.units import Bools, Ints
from ratrain.program.verify import Rule, Verdict, verdict_on
from ratrain.program.walk import STEPS

ROUNDS = (4, 6, 12)
"""Rounds of the pipeline that a short program is tried with, one after the other."""


@dataclass(frozen=True)
class Proved:
    """A program, short where that proves the long one, and the verdict on the long one."""

    program: Program | Repeating
    verdict: Verdict

    @property
    def program_ops(self) -> int:
        """Ops of the whole program."""
        if isinstance(self.program, Repeating):
            return self.program.ops
        return count_ops(self.program.lanes)

    @property
    def short(self) -> Program:
        """The program that was proved op by op."""
        return self.program.short if isinstance(self.program, Repeating) else self.program


def proved(make: Make, setup: Setup, skeleton: str) -> Proved:
    """The program of a setup with the verdict on all of it."""
    return proved_from(shortest(make, setup, skeleton), make, setup)


def proved_from(short: Repeating | None, make: Make, setup: Setup) -> Proved:
    """The same of a program whose `shortest` form is known."""
    for rounds in ROUNDS:
        candidate = of_rounds(short, rounds) if short is not None else None
        if candidate is None:
            break
        verdict = verdict_on_long(candidate)
        if verdict is not None:
            return Proved(candidate, verdict)
    return proof_of(make(setup))


def proof_of(program: Program | Repeating) -> Proved:
    """A program with its verdict. A long one whose short form says too little is written out."""
    if isinstance(program, Repeating):
        verdict = verdict_on_long(program)
        if verdict is not None:
            return Proved(program, verdict)
        program = program.written_out()
    return Proved(program, verdict_on(program.table, peak_bounds))


def verdict_on_long(program: Repeating) -> Verdict | None:
    """The verdict on a long program; None where its short form says too little, as of network ops
    in turn, whose order is made of all of them."""
    if program.short.setup.network_in_turn:
        return None
    table = program.short.table
    pairs = _pairs(program)
    windows: list[_Window] = []

    def look(lives: Lives, moved: Moved) -> None:
        windows.append(_window(table, pairs, lives, moved))

    def bounds(table: Table, order: Ints) -> tuple[PeakBound, ...]:
        return peak_bounds(table, order, inspect=look)

    verdict = verdict_on(table, bounds)
    if any(finding.rule is not Rule.OVER_BUDGET for finding in verdict.findings):
        return verdict  # what breaks in the short program breaks in the long one
    longest_life = max(window.longest_life for window in windows)
    needed = max(_furthest_wait(table, pairs), longest_life) + 2 * program.stride
    first = max(window.first for window in windows)
    last = min(window.last for window in windows)
    return verdict if last - first >= needed else None


@dataclass(frozen=True)
class _Pairs:
    """Ops, and those that are the same a repetition later; a repetition's compute ops by rank."""

    op: Ints
    later: Ints
    micro_batch: Ints  # of the first
    per_repetition: Ints  # by rank
    stride: int


@dataclass(frozen=True)
class _Window:
    """Micro-batches between which bounds only move on, and how many a state lives at most."""

    first: int
    last: int
    longest_life: int


def _pairs(program: Repeating) -> _Pairs:
    table = program.short.table
    ops: list[Ints] = []
    shifts: list[Ints] = []
    per_repetition = np.ones(program.short.setup.ranks, dtype=np.int64)
    lanes = table.rank * len(Lane) + table.lane
    for (rank, lane), middle in program.middles.items():
        size = len(middle)
        if size:
            begin, end = np.searchsorted(lanes, rank * len(Lane) + lane + np.arange(2)).tolist()
            batch, what = table.micro_batch[begin:end], _sorts(table, begin, end)
            same = (what[size:] == what[:-size]) & (batch[:-size] != NONE)
            same &= batch[size:] == batch[:-size] + program.stride
            first, last = _run_around(same, middle.begin)
            ops.append(begin + np.arange(first, last))
            shifts.append(np.full(last - first, size))
            if lane is Lane.COMPUTE:
                per_repetition[rank] = size
    op = np.concatenate(ops)
    return _Pairs(
        op, op + np.concatenate(shifts), table.micro_batch[op], per_repetition, program.stride
    )


def _sorts(table: Table, begin: int, end: int) -> Ints:
    """What some ops are but for their micro-batch: their kind and unit as one number."""
    return table.kind[begin:end] * len(table.states.units.rank) + table.unit[begin:end]


def _run_around(same: Bools, place: int) -> tuple[int, int]:
    """The run of true values around a place."""
    broken = np.flatnonzero(~same)
    begin = int(broken[broken < place].max(initial=-1)) + 1
    end = int(broken[broken >= place].min(initial=len(same)))
    return begin, max(begin, end)


def _window(table: Table, pairs: _Pairs, lives: Lives, moved: Moved) -> _Window:
    chains = moved.chains
    moved_on = np.ones(len(pairs.op), bool)
    for bounds, node in ((moved.drifted.early, chains.at), (moved.drifted.late, chains.from_)):
        moved_on &= _move_on(pairs, moved, bounds, node)
    # Near the beginning and the end, bounds are those of the ramps; what counts is in between.
    batch = pairs.micro_batch
    middle = (int(batch.min()) + int(batch.max())) // 2
    elsewhere = batch[~moved_on]
    first = int(elsewhere[elsewhere <= middle].max(initial=int(batch.min()) - 1)) + 1
    last = int(elsewhere[elsewhere > middle].min(initial=int(batch.max()) + 1)) - 1
    return _Window(first, last, _longest_life(table, pairs, lives, moved))


def _move_on(pairs: _Pairs, moved: Moved, bounds: npt.NDArray[np.int32], node_of: Ints) -> Bools:
    """For each pair of ops whether its bounds differ by one repetition. Many ops share a node of
    the chains; against its own rank a compute op always moves on."""
    ranks, chains = moved.ranks, moved.chains
    here, there = node_of[pairs.op], node_of[pairs.later]
    new = np.r_[True, (np.diff(here) != 0) | (np.diff(there) != 0)]
    here, there = here[new], there[new]
    owner = chains.graph.owner[here]
    of_replica = np.flatnonzero((owner >= ranks.start) & (owner < ranks.stop))
    alike = np.ones(len(here), bool)
    for step in range(STEPS):
        shift = step * len(chains.graph)
        change = bounds[there + shift, : len(ranks)] - bounds[here + shift, : len(ranks)]
        as_expected = change == pairs.per_repetition[ranks.start : ranks.stop]
        as_expected[of_replica, owner[of_replica] - ranks.start] = True
        alike &= as_expected.all(axis=1)
    return alike[np.cumsum(new) - 1]


def _longest_life(table: Table, pairs: _Pairs, lives: Lives, moved: Moved) -> int:
    """Micro-batches that go by, at most, while a state of one of them exists."""
    longest = 0
    in_middle = np.zeros(len(table), bool)
    in_middle[pairs.op] = True
    for rank in moved.ranks:
        for of_rank in (of_ranks[rank] for of_ranks in lives.values()):
            passing = in_middle[of_rank.writer] & in_middle[of_rank.freer]
            if passing.any():
                late = moved.late(of_rank.freer[passing], 0, rank)
                early = moved.early(of_rank.writer[passing], 0, rank)
                ops = int((late - early).max())
                longest = max(longest, -(-ops * pairs.stride // int(pairs.per_repetition[rank])))
    return longest


def _furthest_wait(table: Table, pairs: _Pairs) -> int:
    """Micro-batches between an op of the middle and any that it waits for, at most."""
    in_middle = np.zeros(len(table), bool)
    in_middle[pairs.op] = True
    inside = table.edges.inside
    chosen = in_middle[inside.source] & in_middle[inside.target]
    batch = table.micro_batch
    apart = np.abs(batch[inside.source[chosen]] - batch[inside.target[chosen]])
    return int(apart.max(initial=0))
