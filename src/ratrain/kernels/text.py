"""A tile program as text: its buffers, then each core's lanes in order, each op with the versions
of tiles that it reads and writes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from ratrain.describe.units import format_bytes
from ratrain.kernels.machine import Tier
from ratrain.kernels.program import Op, TileProgram
from ratrain.kernels.prove import SHARED, held_bytes
from ratrain.program.uses import READ


def program_text(program: TileProgram) -> str:
    """The whole text."""
    return "\n".join(_lines(program)) + "\n"


def _lines(program: TileProgram) -> Iterator[str]:
    yield f"machine {program.machine.name}, cores {program.machine.cores}"
    for tensor in program.tensors:
        use = "updated" if tensor.is_input and tensor.is_output else ""
        use = use or ("input" if tensor.is_input else "output")
        yield f"{use} {tensor.name} {tensor.shape[0]} x {tensor.shape[1]} {tensor.dtype.name}"
    for (tier, core), held in sorted(held_bytes(program).items()):
        if tier is not Tier.DDR:
            where = "" if core == SHARED else f" of core {core}"
            most = format_bytes(program.machine.capacity_bytes(tier))
            yield f"memory {tier}{where}: {format_bytes(held)} of {most}"
    for (core, lane), ops in groupby(program.ops, key=lambda op: (op.core, op.lane)):
        yield f"core {core} {program.lane_names[lane]}"
        for op in ops:
            yield f"  {op.word}  ({_versions(program, op)})"


def _versions(program: TileProgram, op: Op) -> str:
    """The states of an op and which versions of them: `reads a.0@1; writes c.0@2`."""
    named = [(mode, f"{program.states[state].name}@{version}") for mode, state, version in op.uses]
    read = ", ".join(sorted(name for mode, name in named if mode == READ))
    written = ", ".join(sorted(name for mode, name in named if mode != READ))
    return "; ".join(part for part in (f"reads {read}" * bool(read), f"writes {written}") if part)
