"""What is proved of an epoch before it runs: every version that an op reads is the one that was
written, nothing waits for ever, every block is summed once, and each tier holds what lies in it.

An eviction without its write, after which a later epoch reads what an earlier one left on disk
(GriNNder's published code), is a read of a version that nothing writes: it cannot pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ratrain.errors import ProgramError
from ratrain.graph.program import COMPUTE_LANE, LANES, GraphProgram, Op, State, moved_bytes
from ratrain.graph.trace import RECEIVE, SEND, SUM, missing_sums
from ratrain.program.edges import Edges, derive_edges
from ratrain.program.graph import Waiting, graph_of
from ratrain.program.kind import Lane
from ratrain.program.units import Bools, Ints
from ratrain.program.uses import FREE, WRITE, Uses
from ratrain.program.verify import Finding, Rule
from ratrain.program.walk import walk


@dataclass(frozen=True)
class _States:
    rank: Ints
    persistent: Bools


@dataclass(frozen=True)
class Columns:
    """Programs in the columns that the house's verifier and clock read: one of each process, or
    that of one alone."""

    programs: tuple[GraphProgram, ...]

    @property
    def program(self) -> GraphProgram:
        """The first process's."""
        return self.programs[0]

    @cached_property
    def ops(self) -> list[Op]:
        return [op for program in self.programs for op in program.ops]

    @cached_property
    def states(self) -> list[State]:
        return [state for program in self.programs for state in program.states]

    @cached_property
    def process(self) -> Ints:
        """Of each op, counted from the first program."""
        counts = [len(program.ops) for program in self.programs]
        return np.repeat(np.arange(len(counts)), counts)

    @cached_property
    def lane(self) -> Ints:
        return np.array([op.lane for op in self.ops], dtype=np.int64)

    @cached_property
    def uses(self) -> Uses:
        counts = [len(op.uses) for op in self.ops]
        rows = np.array([use for op in self.ops for use in op.uses], dtype=np.int64).reshape(-1, 3)
        mode, state, version = (np.ascontiguousarray(column) for column in rows.T)
        before = np.cumsum([0, *(len(program.states) for program in self.programs[:-1])])
        op = np.repeat(np.arange(len(counts)), counts)
        return Uses(op, state + before[self.process[op]], version, mode)

    @cached_property
    def edges(self) -> Edges:
        """Who waits for whom."""
        given = np.array([state.given for state in self.states], dtype=bool)
        states = _States(np.zeros(len(given), np.int64), given)
        return derive_edges(self.uses, states, self.process * len(LANES) + self.lane)

    @cached_property
    def meetings(self) -> dict[tuple[object, ...], list[int]]:
        """Ops of several processes that happen together: a datum is sent while it is received, and
        gradients are summed by all at once."""
        met: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for at, (op, process) in enumerate(zip(self.ops, self.process.tolist(), strict=True)):
            if op.item.verb == SUM:
                met[(SUM,)].append(at)
            elif op.item.verb == SEND:
                met[(op.datum, process, op.item.source)].append(at)
            elif op.item.verb == RECEIVE:
                met[(op.datum, op.item.source, process)].append(at)
        return met

    @cached_property
    def group(self) -> Ints:
        """The meeting of each op; -1: none."""
        group = np.full(len(self.ops), -1, dtype=np.int64)
        for number, ops in enumerate(self.meetings.values()):
            group[ops] = number
        return group

    @property
    def stuck(self) -> list[int]:
        """Ops that can never run."""
        waiting = Waiting(self.edges, self.group, self.process, self.lane, len(self.programs))
        stuck = walk(graph_of(waiting)).stuck
        return [op for op in stuck.tolist() if op < len(self.ops)]  # an epoch is one step

    def place(self, op: int) -> str:
        of = f" of process {self.process[op]}" if len(self.programs) > 1 else ""
        return f"{self.ops[op].word} on the lane {LANES[self.ops[op].lane]}{of}"


def held_bytes(program: GraphProgram) -> dict[str, int]:
    """What lies in each tier, as long as the epoch runs: the cells, and places on the disk."""
    on_disk = sum(moved_bytes(program.shape.size_bytes(datum)) for datum in program.on_disk)
    return {"host": program.layout.cells * program.layout.cell_bytes, "disk": on_disk}


def prove(columns: Columns, capacity_bytes: Mapping[str, float] | None = None) -> list[Finding]:
    """Every broken rule. `capacity_bytes`: of a process's tiers `host` and `disk`."""
    findings = [*_uses(columns), *_alone(columns)]
    if not findings:
        for op in columns.stuck[:1]:
            process, what = int(columns.process[op]), f"{columns.place(op)} waits for ever"
            findings.append(Finding(Rule.DEADLOCK, process, op, "", what))
    for process, program in enumerate(columns.programs):
        for words in missing_sums(program.items, program.shape):
            findings.append(Finding(Rule.INCOMPLETE_GRADIENT, process, -1, "", words))
        for tier, most in (capacity_bytes or {}).items():
            held = held_bytes(program)[tier]
            if held > most:
                what = f"the {tier} would hold {held:,} bytes of {most:,.0f}"
                findings.append(Finding(Rule.OVER_BUDGET, process, -1, tier, what))
    return findings


def require_sound(programs: Sequence[GraphProgram], capacity_bytes: Mapping[str, float]) -> Columns:
    """The proved programs' columns, or a `ProgramError` with their first findings."""
    columns = Columns(tuple(programs))
    findings = prove(columns, capacity_bytes)
    if findings:
        shown = "\n".join(f"  {f.rule}: {f.message}" for f in findings[:5])
        raise ProgramError(f"the epoch breaks {len(findings)} rules\n{shown}")
    return columns


def _alone(columns: Columns) -> Iterator[Finding]:
    """Ops that wait for another process, which has no such op."""
    for what, ops in columns.meetings.items():
        if len(ops) != (len(columns.programs) if what == (SUM,) else 2):
            words = f"{columns.place(ops[0])} meets {len(ops) - 1} ops of other processes"
            yield Finding(Rule.DEADLOCK, int(columns.process[ops[0]]), ops[0], "", words)


def _uses(columns: Columns) -> Iterator[Finding]:
    uses, edges = columns.uses, columns.edges
    for rows, rule, what in (
        (edges.unwritten, Rule.READ_BEFORE_WRITE, "reads {}, which no op has written"),
        (edges.written_twice, Rule.WRITTEN_TWICE, "writes a version of {} that another op writes"),
        (edges.freed_twice, Rule.FREED_TWICE, "frees {}, which another op frees"),
    ):
        for row in rows.tolist():
            op, state = int(uses.op[row]), columns.states[int(uses.state[row])]
            message = f"{columns.place(op)} {what.format(state.name)}"
            yield Finding(rule, int(columns.process[op]), op, state.name, message)
    yield from _kept_too_long(columns)


def _kept_too_long(columns: Columns) -> Iterator[Finding]:
    """Versions in memory that nothing frees: what takes their cells next would overwrite them."""
    states, uses = columns.states, columns.uses
    in_memory = np.array([s.tier == "host" or s.name.endswith("@host") for s in states])
    inside = in_memory[uses.state]
    keys = uses.state * (int(uses.version.max(initial=0)) + 1) + uses.version
    written, freed = (np.unique(keys[inside & (uses.mode == mode)]) for mode in (WRITE, FREE))
    for key in np.setdiff1d(written, freed).tolist():
        state = states[int(uses.state[keys == key][0])]
        yield Finding(Rule.OVERWRITTEN, 0, -1, state.name, f"{state.name} is never freed")


assert COMPUTE_LANE == Lane.COMPUTE
