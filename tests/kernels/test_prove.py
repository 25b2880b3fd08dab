"""What the proof of a tile program finds, and what cannot be written at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ratrain.errors import ProgramError
from ratrain.kernels import AM, GSM, KERNELS, SM, written
from ratrain.kernels.build import Kernel
from ratrain.kernels.gemm import Blocks, gemm_nn, gemm_nt
from ratrain.kernels.machine import FT_M7032
from ratrain.kernels.prove import prove
from ratrain.program.verify import Rule

ONE = FT_M7032.with_cores(1)


def rules(kernel: Kernel) -> list[Rule]:
    return [finding.rule for finding in prove(kernel.program())]


@pytest.mark.parametrize(
    ("fits", "too_large"),
    [
        (Blocks(1536, 96, 6, 512, 48), Blocks(1537, 96, 6, 512, 48)),
        (Blocks(600, 96, 6, 682, 48), Blocks(600, 96, 6, 683, 48)),
    ],
)
def test_nn_blocks_fit_up_to_the_last_row_and_term(fits: Blocks, too_large: Blocks) -> None:
    def write(k: Kernel, blocks: Blocks) -> None:
        gemm_nn(k, blocks.m_gsm, 48 * 3, blocks.k, "f8", blocks)

    written(lambda k: write(k, fits), ONE, None)
    with pytest.raises(ProgramError, match="OverBudget"):
        written(lambda k: write(k, too_large), ONE, None)


@pytest.mark.parametrize(
    ("fits", "too_large"),
    [
        (Blocks(168, 42, 6, 910, 48), Blocks(168, 42, 6, 911, 48)),
        (Blocks(168, 56, 6, 512, 48), Blocks(171, 57, 6, 512, 48)),
    ],
)
def test_nt_blocks_fit_up_to_the_last_row_and_term(fits: Blocks, too_large: Blocks) -> None:
    def write(k: Kernel, blocks: Blocks) -> None:
        gemm_nt(k, blocks.m_gsm, 96, blocks.k * 2, "f8", blocks)

    written(lambda k: write(k, fits), ONE, None)
    with pytest.raises(ProgramError, match="OverBudget"):
        written(lambda k: write(k, too_large), ONE, None)


def test_attention_with_too_many_queries_of_a_core_is_refused_by_name() -> None:
    sizes = {"heads": 1, "length": 1152, "width": 128, "causal": 1}
    attention = KERNELS["attention"]
    with pytest.raises(ProgramError, match=r"AM of core \d+ would hold"):
        written(attention.writing({**sizes, "block": 576}), ONE, None)


def test_a_tile_that_nothing_wrote_is_not_read() -> None:
    k = Kernel(ONE)
    core, out = k.cores[0], k.output("out", 4, 4, "f4")
    core.store(core.tile(4, 4, "f4", "tile"), out[:, :])
    assert rules(k) == [Rule.READ_BEFORE_WRITE]


def test_an_output_that_nothing_stores_is_found() -> None:
    k = Kernel(ONE)
    k.output("out", 4, 4, "f4")
    k.cores[0].fill(k.cores[0].tile(4, 4, "f4", "tile"), 0.0)
    assert rules(k) == [Rule.NOT_UPDATED]


def test_parts_of_an_output_that_overlap_are_found() -> None:
    k = Kernel(ONE)
    core, out = k.cores[0], k.output("out", 4, 4, "f4")
    tile = core.tile(3, 4, "f4", "tile")
    core.fill(tile, 0.0)
    core.store(tile, out[slice(0, 3), :])
    core.store(tile, out[slice(1, 4), :])
    assert rules(k) == [Rule.OVERWRITTEN]


def test_ops_in_another_order_than_tiles_allow_wait_for_ever() -> None:
    rmsnorm = KERNELS["rmsnorm"]
    program = written(rmsnorm.writing({"rows": 32, "width": 8, "tile": 8}), ONE, None)
    compute = [at for at, op in enumerate(program.ops) if op.lane == 0]
    ops = list(program.ops)
    ops[compute[0]], ops[compute[1]] = ops[compute[1]], ops[compute[0]]
    assert [f.rule for f in prove(replace(program, ops=tuple(ops)))] == [Rule.DEADLOCK]


def test_an_op_left_out_is_missed_by_those_that_read_its_tile() -> None:
    rmsnorm = KERNELS["rmsnorm"]
    program = written(rmsnorm.writing({"rows": 16, "width": 8, "tile": 8}), ONE, None)
    for at, op in enumerate(program.ops):
        if op.verb != "store":
            rest = program.ops[:at] + program.ops[at + 1 :]
            found = prove(replace(program, ops=rest))
            assert Rule.READ_BEFORE_WRITE in [finding.rule for finding in found], op.word


def test_no_channel_joins_am_and_sm() -> None:
    k = Kernel(ONE)
    tile = k.cores[0].load(k.input("x", 4, 4, "f4")[:, :], AM, "tile")
    with pytest.raises(ProgramError, match="no DMA channel joins"):
        k.cores[0].load(tile, SM, "scalars")


def test_no_channel_transposes() -> None:
    k = Kernel(ONE)
    tile = k.share(k.input("x", 4, 6, "f4")[:, :], "x")
    with pytest.raises(ProgramError, match="no DMA channel transposes"):
        k.cores[0].load(tile.T, AM, "tile")


def test_a_core_does_not_reach_the_memory_of_another() -> None:
    k = Kernel(FT_M7032)
    tile = k.cores[0].load(k.input("x", 4, 4, "f4")[:, :], AM, "tile")
    with pytest.raises(ProgramError, match="of core 0"):
        k.cores[1].map(tile, np.abs, tile, slots=1)
    with pytest.raises(ProgramError, match="of core 0"):
        k.cores[1].load(tile, GSM, "tile")


def test_operands_of_products_lie_where_the_machine_reads_them() -> None:
    k = Kernel(ONE)
    x = k.input("x", 6, 6, "f8")[:, :]
    tile, core = k.cores[0].load(x, AM, "tile"), k.cores[0]
    with pytest.raises(ProgramError, match="needs it in SM"):
        core.mm(tile, tile, tile)
    with pytest.raises(ProgramError, match="is no sum for"):
        core.mm(tile, core.load(x, SM, "a")[slice(0, 3)], tile)


def test_a_kernel_without_end_is_refused() -> None:
    with pytest.raises(ProgramError, match="a loop of"):
        written(KERNELS["rmsnorm"].writing({"rows": 10**9, "width": 8, "tile": 1}), ONE, None)
