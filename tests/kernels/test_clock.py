"""The clock of tile programs, beside bounds and measurements."""

from __future__ import annotations

import pytest

from ratrain.kernels import KERNELS, MACHINES, figure_of, read_rows, scored, time_of, written
from ratrain.kernels.build import Kernel
from ratrain.kernels.clock import clocked
from ratrain.kernels.gemm import Blocks, gemm_half, gemm_nn
from ratrain.kernels.machine import FT_M7032, MT_3000, Machine
from ratrain.kernels.score import Scored


@pytest.mark.parametrize("name", [n for n in KERNELS if not n.startswith("gemm")])
def test_no_kernel_is_faster_than_its_bound(name: str) -> None:
    declared = KERNELS[name]
    sizes = {
        **declared.timed,
        **{size: 200 for size in ("rows", "length") if size in declared.timed},
    }
    figure = figure_of(declared, MACHINES[declared.machine], sizes)
    assert figure.timed.ddr_bytes >= figure.timed.least_bytes
    assert 0 < figure.of_bound <= 1


@pytest.mark.slow
def test_what_streams_past_am_takes_ddr_s_time() -> None:
    for name in ("rmsnorm", "swiglu", "swiglu-backward", "rotary", "cross-entropy", "adamw"):
        declared = KERNELS[name]
        figure = figure_of(declared, MT_3000, declared.timed)
        assert figure.bound_by == "DDR"
        assert figure.of_bound > 0.95, name


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("m", [200, 300])
def test_folded_loops_take_the_time_of_all_their_turns(m: int, cores: int) -> None:
    blocks, machine = Blocks(48, 24, 12, 64, 48), FT_M7032.with_cores(cores)

    def write(k: Kernel) -> None:
        gemm_nn(k, m, 450 * cores, 270, "f8", blocks)

    whole_s = float(clocked(written(write, machine, None)).end_s.max())
    assert time_of(write, machine).time_s == pytest.approx(whole_s, rel=0.01)


@pytest.mark.slow
def test_folded_loops_of_resident_sums_do_too() -> None:
    blocks, machine = Blocks(48, 48, 6, 64, 192, 2), MT_3000.with_cores(4)

    def write(k: Kernel) -> None:
        gemm_half(k, 300, 2000, 900, blocks, 32)

    whole_s = float(clocked(written(write, machine, None)).end_s.max())
    assert time_of(write, machine).time_s == pytest.approx(whole_s, rel=0.02)


def test_two_runs_of_the_clock_are_equal_to_the_bit() -> None:
    declared = KERNELS["attention"]
    sizes = {"heads": 5, "length": 300, "width": 64, "causal": 1}
    first, second = (time_of(declared.writing(sizes), MT_3000) for _ in range(2))
    assert first == second


def mean(found: list[Scored]) -> float:
    return sum(abs(s.error) for s in found) / len(found)


@pytest.mark.slow
def test_published_measurements_are_met_in_the_mean_of_each_group() -> None:
    rows = [row for row in read_rows(None) if row.level != "irr"]
    groups: dict[str, list[Scored]] = {}
    for s in scored(rows):
        groups.setdefault(s.row.group, []).append(s)
    assert mean(groups["NN, one core"]) < 0.01
    assert mean(groups["NT, one core"]) < 0.03
    assert mean(groups["NN, 2 to 8 cores"]) < 0.05
    for mode in ("NN", "NT", "NTm"):
        assert max(abs(s.error) for s in groups[f"micro-kernels, {mode}"]) < 0.005


def fp64_rate(machine: Machine, blocks: Blocks) -> float:
    m, n, depth = 1512, 1536 * machine.cores, 2048
    timed = time_of(lambda k: gemm_nn(k, m, n, depth, "f8", blocks), machine)
    return 2 * m * n * depth / timed.time_s / machine.cores / 1e9


@pytest.mark.slow
def test_a_shallow_block_starves_eight_cores_and_not_one() -> None:
    """P1's own ablation: K_A 128 falls to 73 GFLOPS a core on eight cores, 512 does not."""
    shallow, deep = Blocks(6048, 72, 24, 128, 192), Blocks(1512, 252, 6, 512, 48)
    assert fp64_rate(FT_M7032.with_cores(1), shallow) > 150
    assert fp64_rate(FT_M7032, shallow) < 80
    assert fp64_rate(FT_M7032, deep) > 150
