"""The published tables, to the digit, from the closed forms."""

from __future__ import annotations

import pytest

from ratrain.chip.noc import analytic, area, energy, gemm
from ratrain.chip.noc.analytic import ReductionFit, geomean, multicast_table, reduce_speedups
from ratrain.chip.noc.chip import ChipSpec
from ratrain.chip.noc.gemm_simulation import simulate_fcl, simulate_summa
from ratrain.chip.noc.reproduce import model_figures
from ratrain.errors import ChipError, SpecError

ROW = """292,148,49,3.02 356,196,65,3.02 454,292,97,3.01 614,484,161,3.01 874,868,289,3.00
1322,1636,545,2.43"""
MESH = """538,298,52,5.73 650,378,68,5.56 846,538,100,5.38 1134,858,164,5.23 1654,1498,292,5.13
2486,2778,548,4.54"""


@pytest.mark.parametrize(
    ("rows", "distance", "table", "mean"), [(1, False, ROW, 2.90), (4, True, MESH, 5.25)]
)
def test_multicast_tables(rows: int, distance: bool, table: str, mean: float) -> None:
    ours = multicast_table(4, rows, with_distance=distance)
    for row, text in zip(ours, table.split(), strict=True):
        seq, tree, hw, gain = (float(part) for part in text.split(","))
        assert (round(row.seq), round(row.tree), round(row.hw)) == (seq, tree, hw)
        assert round(row.speedup, 2) == gain
    assert round(geomean([r.speedup for r in ours]), 2) == mean


def test_multicast_on_4x2() -> None:
    speedups = [r.speedup for r in multicast_table(4, 2, with_distance=True)]
    assert round(geomean(speedups), 2) == 4.20


def test_reduction_fit() -> None:
    row, mesh = (reduce_speedups(4, r, ReductionFit()) for r in (1, 4))
    assert [round(v, 2) for v in (geomean(row), min(row), max(row))] == [2.69, 2.12, 3.17]
    assert round(geomean(mesh), 2) == 2.72
    assert round(gemm.fcl(16, "arxiv").speedup, 2) == 2.35
    assert round(gemm.fcl(16, "published").speedup, 2) == 2.17


SUMMA = {
    "arxiv": "404/130/1.00 590/138/1.13 792/154/1.52 1026/186/1.97 1324/250/2.54 1750/378/3.35 "
    "2432/634/3.84",
    "published": "446/148/1.00 634/156/1.00 822/172/1.11 1010/204/1.36 1198/268/1.61 "
    "1386/396/1.87 1574/652/2.12",
    "rtl": "392/130/1.00 642/162/1.23 1084/226/2.08 1974/354/3.78 3888/610/6.37 8106/1122/7.22 "
    "17444/2146/8.13",
}


@pytest.mark.parametrize("basis", ["published", "arxiv", "rtl"])
def test_summa_tables(basis: gemm.Basis) -> None:
    for point, text in zip(gemm.sweep("summa", basis), SUMMA[basis].split(), strict=True):
        software, hardware, gain = (float(part) for part in text.split("/"))
        assert (round(point.software_cycles), round(point.hardware_cycles)) == (software, hardware)
        assert round(point.speedup, 2) == gain


def test_utilisation_with_the_routers_latencies() -> None:
    busy = [round(p.utilisation, 2) for p in gemm.sweep("summa", "rtl")]
    assert busy == [1.0, 1.0, 1.0, 1.0, 0.86, 0.47, 0.24]
    assert gemm.compute_bound_until(gemm.sweep("summa", "rtl")) == 32
    assert gemm.compute_bound_until(gemm.sweep("summa", "published")) == 256


def test_fcl_peaks_at_16x16() -> None:
    points = gemm.sweep("fcl", "arxiv")
    assert max(points, key=lambda p: p.speedup).mesh == 16


def test_energy_ratios() -> None:
    summa = [round(energy.energy("summa", m).ratio, 3) for m in gemm.MESHES]
    assert summa == [1.023, 1.055, 1.081, 1.105, 1.127, 1.148, 1.169]
    assert round(energy.best_ratio("fcl", "as published").ratio, 3) == 1.132
    assert round(energy.best_ratio("fcl").ratio, 3) == 1.088
    assert round(energy.best_ratio("fcl", "all charged").ratio, 2) == 1.04


def test_energy_counts_on_16x16_in_thousands() -> None:
    def thousands(counts: energy.Counts) -> list[int]:
        names = ("load_bytes", "store_bytes", "hop_bytes", "spm_bytes", "gemm_ops")
        return [round(getattr(counts, n) / 1000) for n in names]

    assert thousands(energy.summa_counts(16, 16, hardware=False)) == [66, 983, 1114, 983, 1049]
    assert thousands(energy.summa_counts(16, 16, hardware=True))[1:3] == [66, 983]
    software = energy.fcl_counts(16, 16, hardware=False)
    assert thousands(software)[:4] == [524, 524, 4524, 522]
    assert round(software.software_reduce_ops / 1000) == 65
    hardware = energy.fcl_counts(16, 16, hardware=True)
    assert thousands(hardware)[1:4] == [72, 3932, 35]
    assert round(hardware.dca_reduce_ops / 1000) == 65


def test_area_shares() -> None:
    rows = area.router_area()
    assert [round(r.overhead, 3) for r in rows] == [0.0, 0.058, 0.087, 0.169]
    assert 195 > rows[-1].kge > 194 and 166 <= rows[0].kge <= 175
    assert area.tile_share() < 0.01
    assert area.router_area(wide_bits=1024)[-1].kge > rows[-1].kge
    assert area.router_area(wide_bits=1024)[-1].confidence == "scaled"


def test_every_model_figure_matches_or_says_why() -> None:
    for figure in model_figures():
        assert figure.matches or figure.note, figure.quantity
    exact = {f.quantity for f in model_figures() if f.matches}
    assert {"SUMMA gain, up to", "energy, SUMMA, up to", "multicast, 4x4, geomean"} <= exact


@pytest.mark.parametrize("hardware", [True, False])
def test_summa_multiplies_and_hardware_is_compute_bound(hardware: bool) -> None:
    result = simulate_summa(ChipSpec(4, 4), hardware=hardware, buffers=3)
    assert result.clusters_checked == 16
    assert result.cycles == round(gemm.summa(4, "rtl").total_cycles(hardware=hardware))


def test_simulated_software_summa_is_the_slower_one_at_8x8() -> None:
    chip = ChipSpec(8, 8)
    software, hardware = (simulate_summa(chip, hardware=h, buffers=3).cycles for h in (False, True))
    assert hardware == 522 < software
    model = gemm.summa(8, "rtl").software_cycles
    assert software == pytest.approx(model, rel=0.12)


def test_fcl_adds_up_and_is_near_its_model() -> None:
    chip = ChipSpec(4, 4)
    for hardware in (True, False):
        result = simulate_fcl(chip, hardware=hardware)
        model = gemm.fcl(4, "rtl").total_cycles(hardware=hardware)
        assert result.cycles == pytest.approx(model, rel=0.05)


@pytest.mark.slow
def test_diagonal_sources_are_fast_until_the_worms_block_each_other() -> None:
    """What the planner warns of happens at 32x32 with two iterations in flight."""
    small = simulate_summa(
        ChipSpec(16, 16), hardware=True, order="diagonal", buffers=4, ahead=2, iterations=10
    )
    assert small.cycles == 522
    with pytest.raises(ChipError, match="deadlock"):
        simulate_summa(
            ChipSpec(32, 32), hardware=True, order="diagonal", buffers=4, ahead=2, iterations=12
        )


def test_summa_needs_buffers_and_iterations() -> None:
    with pytest.raises(SpecError, match="ahead"):
        simulate_summa(ChipSpec(4, 4), hardware=True, buffers=2, ahead=2)
    with pytest.raises(SpecError, match="steady state"):
        simulate_summa(ChipSpec(4, 4), hardware=True, iterations=3)
    assert analytic.slope([(0, 1), (1, 3)]) == 2
