"""What is proved of a tile program before anything runs it: every tile that is read has been
written, and written once; no op waits for ever; every memory holds what lies in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from ratrain.describe.units import format_bytes
from ratrain.errors import ProgramError
from ratrain.kernels.machine import Tier
from ratrain.kernels.program import State, TileProgram
from ratrain.kernels.tiles import overlapping
from ratrain.program.verify import Finding, Rule

SHARED = -1
"""The core of what all cores share."""


def prove(program: TileProgram) -> list[Finding]:
    """Every broken rule."""
    order = [*_uses(program), *_regions(program)]
    stuck = [] if order else program.walked.stuck.tolist()
    if stuck:
        op = stuck[0]
        what = f"{program.place(op)} waits for ever"
        order.append(Finding(Rule.DEADLOCK, program.ops[op].core, op, "", what))
    return [*order, *_capacity(program)]


def require_sound(program: TileProgram) -> TileProgram:
    """The program, or a `ProgramError` with its first findings."""
    findings = prove(program)
    if findings:
        shown = "\n".join(f"  {f.rule}: {f.message}" for f in findings[:5])
        more = f"\n  ... and {len(findings) - 5} more" if len(findings) > 5 else ""
        fix = "smaller tiles, or fewer buffers" if findings[0].rule is Rule.OVER_BUDGET else ""
        raise ProgramError(f"the kernel breaks {len(findings)} rules\n{shown}{more}", fix=fix)
    return program


def held_bytes(program: TileProgram) -> dict[tuple[Tier, int], int]:
    """Of each memory (tier, core) what lies in it: a buffer's slots exist as long as the kernel
    runs, as the machine's own allocation has it."""
    held: dict[tuple[Tier, int], int] = defaultdict(int)
    for state in program.states:
        if state.tier is not Tier.DDR:
            held[state.tier, state.core] += state.size_bytes
    held[Tier.DDR, SHARED] = sum(tensor.size_bytes for tensor in program.tensors)
    return held


def _capacity(program: TileProgram) -> Iterator[Finding]:
    """Of the memories of each kind that do not fit, the fullest."""
    fullest: dict[Tier, tuple[int, int]] = {}
    for (tier, core), held in held_bytes(program).items():
        fullest[tier] = max(fullest.get(tier, (0, 0)), (held, -core))
    for tier, (held, minus_core) in fullest.items():
        most, core = program.machine.capacity_bytes(tier), -minus_core
        if held > most:
            here = [s for s in program.states if (s.tier, s.core) == (tier, core)]
            where = "" if core == SHARED else f" of core {core}"
            what = f"{tier}{where} would hold {held:,} B of {most:,} B{_largest(here)}"
            yield Finding(Rule.OVER_BUDGET, core, -1, str(tier), what)


def _largest(states: list[State]) -> str:
    """The buffers in a memory, the largest first."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for state in states:
        if state.tier is not Tier.DDR:
            sizes[state.name.rpartition(".")[0]].append(state.size_bytes)
    shown = sorted(sizes.items(), key=lambda item: -sum(item[1]))[:4]
    words = [f"{name} {len(slots)} x {format_bytes(max(slots))}" for name, slots in shown]
    return f" ({', '.join(words)})" if words else ""


def _uses(program: TileProgram) -> Iterator[Finding]:
    uses, edges = program.uses, program.edges
    for rows, rule, what in (
        (edges.unwritten, Rule.READ_BEFORE_WRITE, "reads {}, which no op has written"),
        (edges.written_twice, Rule.WRITTEN_TWICE, "writes a version of {} that another op writes"),
    ):
        for row in rows.tolist():
            op, name = int(uses.op[row]), program.states[int(uses.state[row])].name
            message = f"{program.place(op)} {what.format(name)}"
            yield Finding(rule, program.ops[op].core, op, name, message)
    written = np.zeros(len(program.states), bool)
    written[uses.state[uses.mode == 0]] = True
    names = {program.states[int(state)].name.partition("[")[0] for state in np.flatnonzero(written)}
    for tensor in program.tensors:
        if tensor.is_output and tensor.name not in names:
            what = f"no op stores anything to {tensor.name}"
            yield Finding(Rule.NOT_UPDATED, SHARED, -1, tensor.name, what)


def _regions(program: TileProgram) -> Iterator[Finding]:
    """Parts of a written tensor that share elements: nothing would order their uses."""
    for tensor in program.tensors:
        box = overlapping(tensor.boxes)
        if box is not None:
            name = f"{tensor.name}[{box[0]}:{box[1]}, {box[2]}:{box[3]}]"
            what = f"{name} shares elements with another part that is taken of {tensor.name}"
            yield Finding(Rule.OVERWRITTEN, SHARED, -1, name, what)
