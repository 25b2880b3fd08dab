"""What a planner needs: cycles of a collective as L (alpha + beta n + hop d), fitted to runs.

L is 1 in hardware, the number of levels of a software tree; n is the number of 64-byte beats, d
the hops from the corner to the farthest cluster. Each row says how far the fit is from the worst
of its runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ratrain.chip.noc import analytic
from ratrain.chip.noc.analytic import beats
from ratrain.chip.noc.chip import ChipSpec
from ratrain.chip.noc.collectives import Algorithm, Kind, Request, collective
from ratrain.chip.noc.endpoint import Group, System
from ratrain.chip.noc.mesh import run
from ratrain.chip.noc.opcodes import FPU_LATENCY_CYCLES, Format, Opcode
from ratrain.chip.noc.software import Waiting

Contention = Literal["alone", "all rows at once"]
SIZES_BYTES = (1024, 2048, 4096)
"""Up to one burst; longer transfers add one address flit per 4 KiB."""
SHAPES = ((2, 1), (4, 1), (8, 1), (2, 2), (4, 4), (8, 8))
LINES = ((2, 1), (4, 1), (8, 1))


@dataclass(frozen=True)
class CollectiveCost:
    """cycles = L (alpha + beta * beats + hop * distance); L: see `levels`."""

    kind: Kind
    algorithm: Algorithm
    shapes: str
    form: Format
    contention: Contention
    alpha_cycles: float
    beta_cycles_per_beat: float
    hop_cycles: float
    worst_error: float
    """Largest relative error over the fitted runs."""
    confidence: Literal["cycle-exact routers, calibrated endpoints", "derived latency"]

    def cycles(self, size_bytes: int, columns: int, rows: int) -> float:
        """The fitted time."""
        distance = columns - 1 + rows - 1
        level_cycles = self.alpha_cycles + self.beta_cycles_per_beat * beats(size_bytes)
        return levels(self.algorithm, columns, rows) * (level_cycles + self.hop_cycles * distance)


def levels(algorithm: Algorithm, columns: int, rows: int) -> int:
    """How often a payload is sent in sequence: once, or once per level of a tree."""
    return analytic.levels(columns * rows) if algorithm == "tree" else 1


def with_format(chip: ChipSpec, form: Format) -> ChipSpec:
    """The chip with the FPU latency of a format (the published one is fixed at fp64's)."""
    extra = FPU_LATENCY_CYCLES[Format.FP64] - FPU_LATENCY_CYCLES.get(form, 1)
    depth = chip.router.reduction_latency_cycles - extra
    return replace(chip, router=replace(chip.router, reduction_latency_cycles=max(0, depth)))


def collective_costs(chip: ChipSpec | None = None) -> list[CollectiveCost]:
    """The table: hardware and software, lines and squares, formats, contention."""
    chip = chip or ChipSpec(8, 8)
    rows = [
        _fit(chip, "multicast", "hw", SHAPES, "lines and squares"),
        _fit(chip, "multicast", "tree", LINES, "lines"),
        _fit(chip, "reduce", "tree", LINES, "lines"),
        _fit(chip, "barrier", "hw", SHAPES, "lines and squares"),
        _fit(chip, "barrier", "naive", LINES, "lines"),
    ]
    rows += [
        _fit(with_format(chip, form), "reduce", "hw", LINES, "lines", form=form)
        for form in (Format.FP64, Format.FP32, Format.FP16)
    ]
    rows += [_fit_rows(chip, kind) for kind in ("multicast", "reduce")]
    return rows


def _fit(
    chip: ChipSpec,
    kind: Kind,
    algorithm: Algorithm,
    shapes: tuple[tuple[int, int], ...],
    name: str,
    *,
    form: Format = Format.FP64,
) -> CollectiveCost:
    runs = [
        (size, c, r, collective(chip, _request(kind, algorithm, size, c, r, form)).cycles)
        for c, r in shapes
        if c <= chip.columns and r <= chip.rows
        for size in ((64,) if kind == "barrier" else SIZES_BYTES)
    ]
    return _solve(kind, algorithm, name, form, "alone", runs)


def _request(kind: Kind, algorithm: Algorithm, size: int, c: int, r: int, form: Format) -> Request:
    return Request(kind, algorithm, size, c, r, form=form, batches=1, values=False)


def _fit_rows(chip: ChipSpec, kind: Literal["multicast", "reduce"]) -> CollectiveCost:
    runs = [
        (size, c, 1, all_rows_cycles(chip, kind, size, c)) for c, _ in LINES for size in SIZES_BYTES
    ]
    return _solve(kind, "hw", "lines", Format.FP64, "all rows at once", runs)


def all_rows_cycles(
    chip: ChipSpec, kind: Literal["multicast", "reduce"], size: int, columns: int
) -> int:
    """Every row of the chip does the same collective over its first `columns` clusters."""
    system = System(chip)
    for y in range(chip.rows):
        line = Group(chip.cluster(0, y), (columns - 1, 0))
        waiting: Waiting = {}
        if kind == "multicast":
            system.multicast(line.corner, line, 0, 0, size, [])
        else:
            system.reduce(line, line.corner, 0, 0, size, Opcode.FP_ADD, Format.FP64, waiting)
    return run(system.workload).last_cycle


def _solve(
    kind: Kind,
    algorithm: Algorithm,
    shapes: str,
    form: Format,
    contention: Contention,
    runs: list[tuple[int, int, int, int]],
) -> CollectiveCost:
    """Least squares; a barrier has no size, so its beta is 0."""
    sized = kind != "barrier"
    features: list[list[float]] = []
    for size, c, r, _ in runs:
        times = levels(algorithm, c, r)
        features.append([times, times * beats(size) if sized else 0.0, times * (c + r - 2)])
    table = np.array(features)
    cycles = np.array([float(run[3]) for run in runs])
    solution = np.linalg.lstsq(table, cycles, rcond=None)[0]
    alpha, beta, hop = (round(float(value), 3) for value in solution)
    error = float(np.max(np.abs(table @ solution - cycles) / cycles))
    supported = form is Format.FP64 or kind != "reduce"
    return CollectiveCost(
        kind,
        algorithm,
        shapes,
        form,
        contention,
        alpha,
        beta,
        hop,
        error,
        "cycle-exact routers, calibrated endpoints" if supported else "derived latency",
    )
