"""Energy of the dataflows from counted bytes and operations (arXiv 2603.26438, Table 1).

7 nm, typical corner, 25 C, 0.75 V, 1 GHz, gate-level activity of one tile. Memory energy (L2) is
not modelled, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ratrain.chip.noc.analytic import halves
from ratrain.chip.noc.gemm import ELEMENT_BYTES, MESHES, Dataflow


@dataclass(frozen=True)
class EnergyPreset:
    """pJ per byte and per operation (a GEMM operation is one multiply-add)."""

    name: str
    source: str
    load_pj_per_byte: float = 2.2
    store_pj_per_byte: float = 2.4
    hop_pj_per_byte: float = 1.14
    spm_pj_per_byte: float = 1.84
    gemm_pj_per_op: float = 24.6
    software_reduce_pj_per_op: float = 22.43
    dca_reduce_pj_per_op: float = 19.0


PRESETS = {
    "tile7nm": EnergyPreset(
        "tile7nm", "arXiv 2603.26438 Table 1 with the constants of its code; whole-tile increment"
    ),
    "router12nm": EnergyPreset(
        "router12nm",
        "hop of arXiv 2409.17606: routers only, 12 nm, 0.8 V; the rest as tile7nm",
        hop_pj_per_byte=0.15,
    ),
}

FclAccounting = Literal["corrected", "as published", "all charged"]
"""corrected: the paper's operation counts. As published: the authors' file, where the beat count
overwrites a tile edge and doubles the software additions. All charged: corrected, with every L1
read and every hop of the hardware reduction."""


@dataclass(frozen=True)
class Counts:
    """What happens in one iteration on the whole mesh."""

    load_bytes: float = 0
    store_bytes: float = 0
    hop_bytes: float = 0
    spm_bytes: float = 0
    gemm_ops: float = 0
    software_reduce_ops: float = 0
    dca_reduce_ops: float = 0

    def energy_pj(self, preset: EnergyPreset) -> float:
        return (
            self.load_bytes * preset.load_pj_per_byte
            + self.store_bytes * preset.store_pj_per_byte
            + self.hop_bytes * preset.hop_pj_per_byte
            + self.spm_bytes * preset.spm_pj_per_byte
            + self.gemm_ops * preset.gemm_pj_per_op
            + self.software_reduce_ops * preset.software_reduce_pj_per_op
            + self.dca_reduce_ops * preset.dca_reduce_pj_per_op
        )


def summa_counts(mesh: int, edge: int, *, hardware: bool) -> Counts:
    """Each of 2 mesh lines loads one tile and spreads it to its other clusters.

    Software: a tree, whose copies over d hops charge d - 1 routers beyond the first.
    """
    lines, tile = 2 * mesh, edge * edge * ELEMENT_BYTES
    targets = mesh - 1
    extra_hops = targets if hardware else sum((1 << i) * (d - 1) for i, d in _tree(mesh))
    return Counts(
        load_bytes=lines * tile,
        store_bytes=lines * tile * (1 if hardware else targets),
        hop_bytes=lines * tile * extra_hops,
        spm_bytes=lines * tile * targets,
        gemm_ops=mesh * mesh * edge**3,
    )


def fcl_counts(
    mesh: int, edge: int, *, hardware: bool, accounting: FclAccounting = "corrected"
) -> Counts:
    """Every cluster loads one tile; mesh + 1 lines (the rows, then a column) reduce one each."""
    tile, lines, results = edge * edge * ELEMENT_BYTES, mesh + 1, edge * edge
    adds = lines * (mesh - 1) * results
    load_hops = mesh * tile * sum(range(mesh))
    common = {"load_bytes": float(mesh * mesh * tile), "gemm_ops": float(mesh * mesh * edge**3)}
    if not hardware:
        doubled = 2 if accounting == "as published" else 1
        hops = sum((1 << i) * (d - 1) for i, d in _tree(mesh))
        return Counts(
            **common,
            store_bytes=lines * (mesh - 1) * tile + tile,
            hop_bytes=load_hops + lines * tile * hops,
            spm_bytes=lines * (mesh - 1) * tile,
            software_reduce_ops=adds * doubled,
        )
    everything = accounting == "all charged"
    return Counts(
        **common,
        store_bytes=lines * tile * (mesh if everything else 2) + tile,
        hop_bytes=load_hops + (lines * tile * (mesh - 1) if everything else 0),
        spm_bytes=lines * tile,
        dca_reduce_ops=adds,
    )


def _tree(mesh: int) -> list[tuple[int, int]]:
    """(level, distance): level i has 2^i copies over that distance."""
    return list(enumerate(halves(mesh)))


@dataclass(frozen=True)
class EnergyPoint:
    dataflow: Dataflow
    mesh: int
    software_pj: float
    hardware_pj: float

    @property
    def ratio(self) -> float:
        return self.software_pj / self.hardware_pj


def energy(
    dataflow: Dataflow,
    mesh: int,
    *,
    edge: int = 16,
    preset: EnergyPreset = PRESETS["tile7nm"],
    accounting: FclAccounting = "corrected",
) -> EnergyPoint:
    """Energy of one iteration with software and with hardware collectives."""

    def total(hardware: bool) -> float:
        if dataflow == "summa":
            counts = summa_counts(mesh, edge, hardware=hardware)
        else:
            counts = fcl_counts(mesh, edge, hardware=hardware, accounting=accounting)
        return counts.energy_pj(preset)

    return EnergyPoint(dataflow, mesh, total(False), total(True))


def best_ratio(dataflow: Dataflow, accounting: FclAccounting = "corrected") -> EnergyPoint:
    """The mesh of 4x4 to 256x256 where hardware collectives save the largest share."""
    points = [energy(dataflow, mesh, accounting=accounting) for mesh in MESHES]
    return max(points, key=lambda p: p.ratio)
