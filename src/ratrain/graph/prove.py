"""What is proved of an epoch before it runs: every version that an op reads is the one that was
written, nothing waits for ever, every block is summed once, and each tier holds what lies in it.

An eviction without its write, after which a later epoch reads what an earlier one left on disk
(GriNNder's published code), is a read of a version that nothing writes: it cannot pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ratrain.errors import ProgramError
from ratrain.graph.program import COMPUTE_LANE, GraphProgram, moved_bytes
from ratrain.graph.trace import missing_sums
from ratrain.program.binding import FREE, WRITE, Uses
from ratrain.program.edges import Edges, derive_edges
from ratrain.program.graph import Waiting, graph_of
from ratrain.program.kind import Lane
from ratrain.program.units import Bools, Ints
from ratrain.program.verify import Finding, Rule
from ratrain.program.walk import walk


@dataclass(frozen=True)
class _States:
    rank: Ints
    persistent: Bools


@dataclass(frozen=True)
class Columns:
    """A program in the columns that the house's verifier and clock read."""

    program: GraphProgram

    @cached_property
    def lane(self) -> Ints:
        return np.array([op.lane for op in self.program.ops], dtype=np.int64)

    @cached_property
    def uses(self) -> Uses:
        ops = self.program.ops
        counts = [len(op.uses) for op in ops]
        rows = np.array([use for op in ops for use in op.uses], dtype=np.int64).reshape(-1, 3)
        mode, state, version = (np.ascontiguousarray(column) for column in rows.T)
        return Uses(np.repeat(np.arange(len(ops)), counts), state, version, mode)

    @cached_property
    def edges(self) -> Edges:
        """Who waits for whom."""
        given = np.array([state.given for state in self.program.states], dtype=bool)
        return derive_edges(self.uses, _States(np.zeros(len(given), np.int64), given), self.lane)

    @property
    def stuck(self) -> list[int]:
        """Ops that can never run."""
        count = len(self.program.ops)
        alone, zero = np.full(count, -1, dtype=np.int64), np.zeros(count, dtype=np.int64)
        stuck = walk(graph_of(Waiting(self.edges, alone, zero, self.lane, 1))).stuck
        return [op for op in stuck.tolist() if op < count]  # an epoch is one step


def held_bytes(program: GraphProgram) -> dict[str, int]:
    """What lies in each tier, as long as the epoch runs: the cells, and places on the disk."""
    on_disk = sum(moved_bytes(program.shape.size_bytes(datum)) for datum in program.on_disk)
    return {"host": program.layout.cells * program.layout.cell_bytes, "disk": on_disk}


def prove(
    program: GraphProgram,
    capacity_bytes: Mapping[str, float] | None = None,
    columns: Columns | None = None,
) -> list[Finding]:
    """Every broken rule. `capacity_bytes`: of the tiers `host` and `disk`."""
    columns = columns or Columns(program)
    findings = [*_uses(columns)]
    if not findings:
        for op in columns.stuck[:1]:
            what = f"{program.place(op)} waits for ever"
            findings.append(Finding(Rule.DEADLOCK, 0, op, "", what))
    for words in missing_sums(program.items, program.shape):
        findings.append(Finding(Rule.INCOMPLETE_GRADIENT, 0, -1, "", words))
    for tier, most in (capacity_bytes or {}).items():
        held = held_bytes(program)[tier]
        if held > most:
            what = f"the {tier} would hold {held:,} bytes of {most:,.0f}"
            findings.append(Finding(Rule.OVER_BUDGET, 0, -1, tier, what))
    return findings


def require_sound(program: GraphProgram, capacity_bytes: Mapping[str, float]) -> Columns:
    """The proved program's columns, or a `ProgramError` with its first findings."""
    columns = Columns(program)
    findings = prove(program, capacity_bytes, columns)
    if findings:
        shown = "\n".join(f"  {f.rule}: {f.message}" for f in findings[:5])
        raise ProgramError(f"the epoch breaks {len(findings)} rules\n{shown}")
    return columns


def _uses(columns: Columns) -> Iterator[Finding]:
    program, uses, edges = columns.program, columns.uses, columns.edges
    for rows, rule, what in (
        (edges.unwritten, Rule.READ_BEFORE_WRITE, "reads {}, which no op has written"),
        (edges.written_twice, Rule.WRITTEN_TWICE, "writes a version of {} that another op writes"),
        (edges.freed_twice, Rule.FREED_TWICE, "frees {}, which another op frees"),
    ):
        for row in rows.tolist():
            op, state = int(uses.op[row]), program.states[int(uses.state[row])]
            message = f"{program.place(op)} {what.format(state.name)}"
            yield Finding(rule, 0, op, state.name, message)
    yield from _kept_too_long(columns)


def _kept_too_long(columns: Columns) -> Iterator[Finding]:
    """Versions in memory that nothing frees: what takes their cells next would overwrite them."""
    program, uses = columns.program, columns.uses
    in_memory = np.array([s.tier == "host" or s.name.endswith("@host") for s in program.states])
    inside = in_memory[uses.state]
    keys = uses.state * (int(uses.version.max(initial=0)) + 1) + uses.version
    written, freed = (np.unique(keys[inside & (uses.mode == mode)]) for mode in (WRITE, FREE))
    for key in np.setdiff1d(written, freed).tolist():
        state = program.states[int(uses.state[keys == key][0])]
        yield Finding(Rule.OVERWRITTEN, 0, -1, state.name, f"{state.name} is never freed")


assert COMPUTE_LANE == Lane.COMPUTE
