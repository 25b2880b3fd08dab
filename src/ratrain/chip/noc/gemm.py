"""Matrix multiply on the mesh as closed forms: SUMMA (multicast) and fused concat-linear (reduce).

SUMMA: C stays; every iteration multicasts one tile of A along each row and one of B along each
column, and the steady state takes max(compute, communicate) (arXiv 2603.26438 eq 7-9). Fused
concat-linear (FCL): every cluster multiplies its slice of K, and the partial results are reduced
to one cluster after max(load, compute).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, sqrt
from typing import Literal

from ratrain.chip.noc import analytic
from ratrain.chip.noc.analytic import ReductionFit, beats
from ratrain.chip.noc.chip import ChipSpec

Basis = Literal["published", "arxiv", "rtl"]
BASES: dict[Basis, str] = {
    "published": "MLSys 2026: tile 18, a hop costs nothing in software trees",
    "arxiv": "arXiv v2: tile 16, a hop costs 2 in software trees, 1 in hardware",
    "rtl": "the routers' 2 cycles per hop each way and the true barrier, tile 16",
}
Dataflow = Literal["summa", "fcl"]
MESHES = (4, 8, 16, 32, 64, 128, 256)
ELEMENT_BYTES = 8


def largest_tile(buffer_bytes: int, *, multiple: int = 1) -> int:
    """Edge of the largest square fp64 tile of which six fit (A, B, C, double-buffered)."""
    edge = floor(sqrt(buffer_bytes / (6 * ELEMENT_BYTES)))
    return edge // multiple * multiple


def tile_edge(basis: Basis, chip: ChipSpec) -> int:
    """18 of 16 KiB as published; rounded down to 16 in the later versions."""
    return largest_tile(chip.tile_buffer_bytes, multiple=1 if basis == "published" else 8)


def compute_cycles(edge: int, chip: ChipSpec) -> float:
    """2 Mt Nt Kt / (utilisation * peak): one tile product on one cluster."""
    return 2 * edge**3 / (chip.gemm_utilisation * chip.flop_per_cycle)


@dataclass(frozen=True)
class GemmPoint:
    """One mesh of `mesh` x `mesh` clusters; cycles of one steady-state iteration (FCL: of all)."""

    dataflow: Dataflow
    basis: Basis
    mesh: int
    compute_cycles: float
    load_cycles: float
    software_cycles: float
    """Communication in software: the multicasts of SUMMA, the reduction of FCL."""
    hardware_cycles: float

    def total_cycles(self, *, hardware: bool) -> float:
        communicate = self.hardware_cycles if hardware else self.software_cycles
        if self.dataflow == "summa":
            return max(self.compute_cycles, communicate)
        return max(self.load_cycles, self.compute_cycles) + communicate

    @property
    def speedup(self) -> float:
        return self.total_cycles(hardware=False) / self.total_cycles(hardware=True)

    @property
    def utilisation(self) -> float:
        """Share of the time in which the clusters compute, with hardware collectives."""
        return self.compute_cycles / self.total_cycles(hardware=True)


def summa(mesh: int, basis: Basis, chip: ChipSpec | None = None) -> GemmPoint:
    """The steady state of SUMMA: a row multicast of A, then a column multicast of B."""
    chip = chip or ChipSpec()
    edge = tile_edge(basis, chip)
    n = beats(edge * edge * ELEMENT_BYTES)
    if basis == "rtl":
        software = 2 * analytic.rtl_multicast_sw(n, mesh, 1)
        hardware = 2 * analytic.rtl_multicast(n, mesh, 1)
    else:
        distance = basis == "arxiv"
        software = 2 * analytic.multicast_sw(n, mesh, 1, with_distance=distance)
        hardware = 2 * analytic.multicast_hw(n, mesh, 1)
    compute = compute_cycles(edge, chip)
    return GemmPoint("summa", basis, mesh, compute, 0.0, software, hardware)


def fcl(
    mesh: int, basis: Basis, chip: ChipSpec | None = None, fit: ReductionFit | None = None
) -> GemmPoint:
    """Fused concat-linear; each row's memory tile feeds its clusters one beat per cycle."""
    chip, fit = chip or ChipSpec(), fit or ReductionFit()
    edge = tile_edge(basis, chip)
    n = beats(edge * edge * ELEMENT_BYTES)
    compute, load = compute_cycles(edge, chip), float(mesh * n)
    if basis == "rtl":
        software = rtl_reduce_tree(n, mesh, mesh, chip)
        hardware = rtl_reduce(n, mesh, chip) * 2 + analytic.rtl_barrier(mesh, mesh)
    else:
        software = analytic.reduce_sw(n, mesh, mesh, fit)
        hardware = analytic.reduce_hw(n, mesh, fit)
    return GemmPoint("fcl", basis, mesh, compute, load, software, hardware)


def rtl_reduce(n: int, c: int, chip: ChipSpec) -> float:
    """One row phase on the simulated chip, start to last response, for one burst.

    Set-up; first result after 2 c + (c - 1)(latency + 2); address beat and n data beats; the
    response is multicast back at 2 cycles per router.
    """
    setup = chip.endpoint.dma_setup_cycles + chip.endpoint.collective_setup_cycles
    first_flit = 2 * c + (c - 1) * (chip.router.reduction_latency_cycles + 2) + n
    return setup + first_flit + 1 + 2 * c


def rtl_reduce_tree(n: int, c: int, r: int, chip: ChipSpec) -> float:
    """A tree without batches: per level a copy, a barrier, an addition, a barrier."""
    endpoint = chip.endpoint
    add = endpoint.reduce_setup_cycles + endpoint.reduce_cycles_per_beat * n
    barrier = analytic.rtl_barrier(c, r)
    steps = analytic.halves(c) + analytic.halves(r)
    copies = sum(analytic.ALPHA_CLUSTER + 4 * (d - 1) + n for d in steps)
    return copies + len(steps) * (add + 2 * barrier) - barrier


def sweep(dataflow: Dataflow, basis: Basis, chip: ChipSpec | None = None) -> list[GemmPoint]:
    """4x4 to 256x256."""
    model = summa if dataflow == "summa" else fcl
    return [model(mesh, basis, chip) for mesh in MESHES]


def compute_bound_until(points: list[GemmPoint]) -> int:
    """The largest mesh at which hardware SUMMA still computes all the time; 0 if none."""
    return max((p.mesh for p in points if p.hardware_cycles <= p.compute_cycles), default=0)
