"""SUMMA and fused concat-linear on the simulated chip: real tiles, real products, real cycles.

Tiles travel through the simulated routers; each cluster multiplies what arrived in its memory, and
the results are compared bit for bit with the same products of the original matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from ratrain.chip.noc import schedules
from ratrain.chip.noc.arithmetic import fold
from ratrain.chip.noc.chip import ChipSpec
from ratrain.chip.noc.endpoint import Done, Group, System
from ratrain.chip.noc.gemm import ELEMENT_BYTES, Dataflow, compute_cycles
from ratrain.chip.noc.mesh import Run, run
from ratrain.chip.noc.numbers import decode, encode
from ratrain.chip.noc.opcodes import Format, Opcode
from ratrain.chip.noc.software import StepPlayer, Waiting
from ratrain.chip.noc.workload import After, Place
from ratrain.errors import ChipError, SpecError

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class GemmRun:
    """`cycles` of the steady state: of one iteration of SUMMA, of the whole of FCL."""

    dataflow: Dataflow
    hardware: bool
    mesh: int
    edge: int
    cycles: float
    compute_cycles: float
    clusters_checked: int
    run: Run

    @property
    def utilisation(self) -> float:
        return self.compute_cycles / self.cycles


Order = Literal["phases", "diagonal"]


def simulate_summa(
    chip: ChipSpec,
    *,
    hardware: bool,
    order: Order = "phases",
    buffers: int = 2,
    ahead: int = 1,
    edge: int = 16,
    iterations: int = 6,
    seed: int = 0,
) -> GemmRun:
    """Iterations of SUMMA, from tiles in the memories of one cluster per row and column.

    phases: all rows multicast A from the first column, a barrier, all columns multicast B from
    the first row, a barrier, then everyone multiplies. Rows and columns at once could deadlock
    under some timing (see `deadlock.check`).
    diagonal (hardware only): row y and column x are sent together by the clusters on the
    diagonal; not proved safe for every timing, so the run is the proof for this one.

    The multicasts of iteration i start after the barrier of iteration i - ahead, and that
    barrier waits for product i - buffers, whose buffer they overwrite.
    """
    if not 1 <= ahead < buffers:
        raise SpecError(
            f"{ahead} iterations ahead with {buffers} buffers",
            place="summa",
            fix="ahead must be at least 1 and less than buffers",
        )
    if iterations < buffers + 3:
        raise SpecError(
            f"{iterations} iterations show no steady state",
            place="summa",
            fix=f"use at least {buffers + 3}",
        )
    if order == "diagonal" and (chip.columns != chip.rows or not hardware):
        raise SpecError(
            "diagonal sources need a square mesh and hardware multicast",
            place="summa",
            fix="use order='phases'",
        )
    return _Summa(chip, hardware, order, buffers, ahead, edge, iterations, seed).simulate()


class _Summa:
    def __init__(
        self,
        chip: ChipSpec,
        hardware: bool,
        order: Order,
        buffers: int,
        ahead: int,
        edge: int,
        iterations: int,
        seed: int,
    ) -> None:
        self.chip, self.hardware, self.order = chip, hardware, order
        self.edge, self.iterations = edge, iterations
        self.buffers, self.ahead = buffers, ahead
        self.tile = edge * edge * ELEMENT_BYTES
        self.room = -(-self.tile // 64) * 64
        # Per iteration a slot for A and one for B, so that all of them can be checked at the end.
        self.system = System(chip, memory_bytes=2 * self.room * iterations)
        self.whole = Group(chip.cluster(0, 0), (chip.columns - 1, chip.rows - 1))
        rng = np.random.default_rng(seed)
        shape = (iterations, edge, edge)
        self.a = [rng.standard_normal(shape) for _ in range(chip.rows)]
        self.b = [rng.standard_normal(shape) for _ in range(chip.columns)]

    def at(self, iteration: int, operand: int) -> int:
        return (2 * iteration + operand) * self.room

    def row_source(self, y: int) -> Place:
        return self.chip.cluster(y if self.order == "diagonal" else 0, y)

    def column_source(self, x: int) -> Place:
        return self.chip.cluster(x, x if self.order == "diagonal" else 0)

    def simulate(self) -> GemmRun:
        cycles = round(compute_cycles(self.edge, self.chip))
        self._place_tiles()
        products: list[dict[Place, int]] = []
        barriers: list[Waiting] = []
        for i in range(self.iterations):
            free = barriers[i - self.ahead] if i >= self.ahead else {}
            communicated = self._communicate(i, free)
            # Every cluster takes part in the barriers in the same order, or they would wedge.
            if barriers:
                communicated = self._join(communicated, barriers[-1])
            reused = i - (self.buffers - self.ahead)
            if reused >= 0:
                communicated = self._join(
                    communicated, {p: [After(t)] for p, t in products[reused].items()}
                )
            barriers.append(self.system.barrier(self.whole, communicated))
            products.append(
                {
                    p: self.system.workload.work(p, cycles, unit=("cores", p), after=barriers[i][p])
                    for p in self.whole.members
                }
            )
        result = run(self.system.workload)
        ends = [max(int(result.last_at[t]) for t in step.values()) for step in products]
        first = self.buffers
        steady = (ends[-1] - ends[first]) / (len(ends) - 1 - first)
        checked = self._check()
        return GemmRun(
            "summa", self.hardware, self.chip.columns, self.edge, steady, cycles, checked, result
        )

    def _communicate(self, iteration: int, free: Waiting) -> Waiting:
        """Both multicasts of one iteration; when every cluster has sent its own."""
        chip, rows, columns = self.chip, cast(Waiting, {}), cast(Waiting, {})
        for y in range(chip.rows):
            line = Group(chip.cluster(0, y), (chip.columns - 1, 0))
            rows |= self._spread(self.row_source(y), line, self.at(iteration, 0), free)
        if self.order == "phases":
            free = self.system.barrier(self.whole, rows)
        for x in range(chip.columns):
            line = Group(chip.cluster(x, 0), (0, chip.rows - 1))
            columns |= self._spread(self.column_source(x), line, self.at(iteration, 1), free)
        return columns if self.order == "phases" else self._join(rows, columns)

    @staticmethod
    def _join(first: Waiting, second: Waiting) -> Waiting:
        return {p: [*first.get(p, []), *second.get(p, [])] for p in first.keys() | second.keys()}

    def _place_tiles(self) -> None:
        for i in range(self.iterations):
            for y in range(self.chip.rows):
                self._write(self.row_source(y), self.at(i, 0), self.a[y][i])
            for x in range(self.chip.columns):
                self._write(self.column_source(x), self.at(i, 1), self.b[x][i])

    def _write(self, place: Place, offset: int, tile: Matrix) -> None:
        self.system.workload.write(place, offset, encode(tile.ravel(), Format.FP64))

    def _spread(self, source: Place, line: Group, offset: int, after: Waiting) -> Waiting:
        if self.hardware:
            ready = after.get(source, [])
            done = self.system.multicast(source, line, offset, offset, self.tile, ready)
            return {p: done if p == source else after.get(p, []) for p in line.members}
        steps = schedules.tree_multicast(line, self.tile)
        player = StepPlayer(self.system, incoming_at=offset, payload_at=offset)
        return player.play(line, steps, {p: after.get(p, []) for p in line.members})

    def _check(self) -> int:
        size = self.edge * self.edge * ELEMENT_BYTES
        for y in range(self.chip.rows):
            for x in range(self.chip.columns):
                place = self.chip.cluster(x, y)
                product, expected = (
                    np.zeros((self.edge, self.edge)),
                    np.zeros((self.edge, self.edge)),
                )
                for i in range(self.iterations):
                    a, b = (
                        decode(self.system.workload.read(place, self.at(i, w), size), Format.FP64)
                        .astype(np.float64)
                        .reshape(self.edge, self.edge)
                        for w in (0, 1)
                    )
                    product += a @ b
                    expected += self.a[y][i] @ self.b[x][i]
                _same(product, expected, place)
        return self.chip.rows * self.chip.columns


def simulate_fcl(
    chip: ChipSpec, *, hardware: bool, edge: int = 16, batches: int = 1, seed: int = 0
) -> GemmRun:
    """Fused concat-linear: load a tile beside the product of the one before, then reduce.

    Every cluster's partial product is computed with numpy and put in its memory; the additions
    happen in the routers (hardware) or on the clusters (software), in fp64.
    """
    tile = edge * edge * ELEMENT_BYTES
    room = -(-tile // 64) * 64
    system = System(chip, memory_bytes=4 * room)
    whole = Group(chip.cluster(0, 0), (chip.columns - 1, chip.rows - 1))
    rng = np.random.default_rng(seed)
    partial: dict[Place, NDArray[np.uint8]] = {}
    for place in whole.members:
        product = rng.standard_normal((edge, edge)) @ rng.standard_normal((edge, edge))
        partial[place] = encode(product.ravel(), Format.FP64)
        system.workload.write(place, 0, partial[place])
    cycles = round(compute_cycles(edge, chip))
    ready: Waiting = {}
    for place in whole.members:
        loaded = system.load(place, place[1], 0, 3 * room, tile, [])
        product_done = system.workload.work(place, cycles, unit=("cores", place))
        ready[place] = [*loaded, After(product_done)]
    if hardware:
        offset, expected = _hardware_reduce(system, whole, room, tile, ready, partial)
    else:
        steps = schedules.tree_reduce(whole, tile, batches, chip.wide_bytes)
        StepPlayer(system, incoming_at=room).play(whole, steps, ready)
        partials = {p: v.copy() for p, v in partial.items()}
        offset = 0
        expected = schedules.replay_sums(steps, partials, whole.corner, Opcode.FP_ADD, Format.FP64)
    result = run(system.workload)
    received = system.workload.read(whole.corner, offset, tile)
    _same(decode(received, Format.FP64), decode(expected, Format.FP64), whole.corner)
    return GemmRun(
        "fcl", hardware, chip.columns, edge, result.last_cycle, cycles, len(whole.members), result
    )


def _hardware_reduce(
    system: System,
    whole: Group,
    room: int,
    tile: int,
    ready: Waiting,
    partial: dict[Place, NDArray[np.uint8]],
) -> tuple[int, NDArray[np.uint8]]:
    """Rows, a barrier, the first column; where the result is, and what it must be."""
    (x0, y0), (mx, my) = whole.corner, whole.mask
    done: Waiting = {}
    for y in range(y0, y0 + my + 1):
        row = Group((x0, y), (mx, 0))
        done |= system.reduce(row, (x0, y), 0, room, tile, Opcode.FP_ADD, Format.FP64, ready)
    after: dict[Place, Done] = system.barrier(whole, done)
    column = Group((x0, y0), (0, my))
    system.reduce(column, (x0, y0), room, 2 * room, tile, Opcode.FP_ADD, Format.FP64, after)
    sums = [
        fold([partial[x, y] for x in reversed(range(x0, x0 + mx + 1))], Opcode.FP_ADD, Format.FP64)
        for y in reversed(range(y0, y0 + my + 1))
    ]
    return 2 * room, fold(sums, Opcode.FP_ADD, Format.FP64)


def _same(result: NDArray[np.generic], truth: NDArray[np.generic], place: Place) -> None:
    if not np.array_equal(result, truth):
        raise ChipError(
            "the product differs from numpy's", place=f"cluster {place}", fix="report this"
        )
