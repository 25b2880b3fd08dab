"""The time of a tile program on its machine, by the simulator's own event loop: transfers share DDR
and their core's port of GSM evenly, and launching one takes the core's own cycles.

A loop that is folded is written out a few times only. The time is then taken to be linear in the
count of each such loop, from two counts of each: exact where a turn of the loop takes the same time
as the one before, which is what `fold` promises.
"""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ratrain.kernels.build import Kernel
from ratrain.kernels.machine import DDR, Machine
from ratrain.kernels.program import COMPUTE, TileProgram
from ratrain.kernels.prove import require_sound
from ratrain.program.graph import Pairs
from ratrain.simulate.costs import NO_LINK, OpCosts
from ratrain.simulate.engine import Nodes, Run, run_nodes
from ratrain.timeline.timeline import Span, Timeline

DDR_LINK, FIRST_PORT = 0, 1
WRITTEN_OPS = 10_000
"""As far as folded loops are written out, if they are more than they must be."""

Writing = Callable[[Kernel], None]
"""Writes a kernel of given sizes."""


@dataclass(frozen=True)
class Timed:
    """What a kernel takes, and what of it went over DDR. `least_bytes`: each tensor once in each
    direction in which it is used."""

    time_s: float
    ddr_bytes: float
    least_bytes: int
    ops: int  # that the clock went over


def written(writing: Writing, machine: Machine, limits: Mapping[str, int] | None) -> TileProgram:
    """The proved program of a kernel."""
    collected = gc.isenabled()
    gc.disable()  # 100,000 ops and tiles, none of them garbage, would be looked at again and again
    try:
        kernel = Kernel(machine, limits)
        writing(kernel)
        return require_sound(kernel.program())
    finally:
        if collected:
            gc.enable()


def time_of(writing: Writing, machine: Machine) -> Timed:
    """The time of a kernel, its folded loops taken as linear."""
    first = written(writing, machine, {})
    further = _further_turns(first)
    if further:
        longer = {name: at + further for name, (at, _) in first.loops.items()}
        first = written(writing, machine, longer)
    loops = {name: counts for name, counts in first.loops.items() if counts[0] < counts[1]}
    total, ops = np.zeros(2), 0
    for corner in itertools.product((0, 1), repeat=len(loops)):
        limits = {name: at for name, (at, _) in first.loops.items()}
        for name, down in zip(loops, corner, strict=True):
            limits[name] -= down
        timed = _timed(written(writing, machine, limits) if any(corner) else first)
        share = 1.0
        for (at, whole), down in zip(loops.values(), corner, strict=True):
            share *= at - whole if down else whole - at + 1
        total += share * np.array([timed.time_s, timed.ddr_bytes])
        ops += timed.ops
    return Timed(float(total[0]), float(total[1]), first.least_bytes, ops)


def _further_turns(program: TileProgram) -> int:
    """How many more turns of each folded loop can be written out without many ops."""
    for further in (16, 8, 4, 2, 1):
        growth = math.prod(
            min(at + further, whole) / at for at, whole in program.loops.values() if at < whole
        )
        if 1 < growth < WRITTEN_OPS / len(program.ops):
            return further
    return 0


def _timed(program: TileProgram) -> Timed:
    ran = clocked(program)
    moved = sum(op.size_bytes for op in program.ops if op.over is DDR)
    return Timed(float(ran.end_s.max()), moved, program.least_bytes, len(program.ops))


def clocked(program: TileProgram) -> Run:
    """When each op starts and ends."""
    machine, ops = program.machine, program.ops
    count = len(ops)
    zero = np.zeros(count, dtype=np.int64)
    core = program.core.astype(np.int32)
    inside, nothing = program.edges.inside, np.zeros(0, dtype=np.int64)
    nodes = Nodes(
        Pairs(inside.source, inside.target),
        Pairs(nothing, nothing),
        zero - 1,
        nothing,
        np.where(program.lane == COMPUTE, core, -1).astype(np.int32),
        core,
        zero,
        zero,
        np.zeros(machine.cores, dtype=np.int64),
    )
    ports = FIRST_PORT + np.arange(machine.cores) // machine.gsm_port_cores
    rates = np.array([machine.ddr_bytes_per_s] + [machine.gsm_bytes_per_s] * int(ports[-1]))
    over = np.array(
        [
            NO_LINK if op.over is None else (DDR_LINK if op.over is DDR else ports[op.core])
            for op in ops
        ],
        dtype=np.int32,
    )
    row_bytes = machine.strided_row_s * machine.ddr_bytes_per_s
    volume = np.array([op.size_bytes + op.strided_rows * row_bytes for op in ops], dtype=np.float64)
    launch_s = machine.transfer_cycles / machine.clock_hz
    costs = OpCosts(
        np.array([op.cycles for op in ops]) / machine.clock_hz,
        volume,
        np.where(over == NO_LINK, 0.0, launch_s),
        over,
        np.full(count, NO_LINK, dtype=np.int32),
    )
    return run_nodes(nodes, costs, rates, 1)


def timeline_of(program: TileProgram) -> Timeline:
    """A program's ops as they run, a row for each core."""
    ran = clocked(program)
    spans = tuple(
        Span(
            0,
            op.core,
            program.lane_names[op.lane],
            op.word,
            float(ran.start_s[at]),
            float(ran.end_s[at]),
        )
        for at, op in enumerate(program.ops)
    )
    return Timeline("simulate", spans)
