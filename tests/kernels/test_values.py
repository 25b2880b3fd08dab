"""What kernels compute, beside FP64 and plain loops."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ratrain.kernels import KERNELS, MACHINES, differences, written
from ratrain.kernels.build import Kernel
from ratrain.kernels.compare import compared
from ratrain.kernels.execute import execute
from ratrain.kernels.gemm import Blocks, gemm_half, gemm_nn, gemm_nt, gemm_tt
from ratrain.kernels.machine import FT_M7032, MT_3000

LENGTHS = {
    "rows": (1, 70),
    "vocabulary": (50, 90),
    "length": (1, 70),
    "heads": (1, 3),
    "k_c": (1, 64),
    "block": (16, 48),
    "chunk": (16, 32),
    "causal": (0, 1),
}


def drawn(name: str, draw: random.Random) -> dict[str, int]:
    """Random sizes of a kernel."""
    sizes = {size: draw.randint(*LENGTHS.get(size, (1, 70))) for size in KERNELS[name].small}
    if "width" in sizes:
        sizes["width"] += sizes["width"] % 2
    return sizes


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", list(KERNELS))
def test_every_kernel_is_within_its_ulps_of_fp64_on_random_sizes_and_cores(
    name: str, seed: int
) -> None:
    draw = random.Random(f"{name} {seed}")
    declared, sizes = KERNELS[name], drawn(name, draw)
    machine = MACHINES[declared.machine].with_cores(draw.randint(1, 5))
    for row in differences(declared, machine, sizes, seed):
        assert row.within, (sizes, machine.cores, row)


@pytest.mark.parametrize("name", ["attention", "rmsnorm-backward", "gemm-f16"])
def test_any_order_that_lanes_and_tiles_allow_gives_the_same_bits(name: str) -> None:
    declared = KERNELS[name]
    program = written(declared.writing(declared.small), MT_3000.with_cores(3), None)
    draw = np.random.default_rng(1)
    given = {t.name: draw.standard_normal(t.shape) for t in program.tensors if t.is_input}
    first = execute(program, given)
    for seed in range(5):
        for tensor, value in execute(program, given, seed=seed).items():
            assert value.tobytes() == first[tensor].tobytes()


BLOCKS = (Blocks(24, 12, 6, 16, 16), Blocks(14, 7, 5, 9, 11, 2, 2), Blocks(100, 100, 50, 100, 100))


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("mode", ["nn", "nt", "tt"])
def test_products_are_the_same_whatever_the_blocks(mode: str, dtype: str, blocks: Blocks) -> None:
    gemm = {"nn": gemm_nn, "nt": gemm_nt, "tt": gemm_tt}[mode]
    declared, sizes = KERNELS[f"gemm-{mode}-f{64 if dtype == 'f8' else 32}"], (37, 41, 53)
    m, n, depth = sizes

    def write(k: Kernel) -> None:
        gemm(k, m, n, depth, dtype, blocks)

    program = written(write, FT_M7032.with_cores(3), None)
    draw = np.random.default_rng(2)
    given = {
        t.name: draw.standard_normal(t.shape).astype(dtype) for t in program.tensors if t.is_input
    }
    (row,) = compared(declared, given, execute(program, given), {})
    assert row.within, row


@pytest.mark.parametrize("k_c", [1, 16, 40])
def test_fp16_sums_are_those_of_a_plain_loop_to_the_bit(k_c: int) -> None:
    m, n, depth = 13, 40, 90
    blocks = Blocks(13, 13, 6, 48, 20)
    program = written(lambda k: gemm_half(k, m, n, depth, blocks, k_c), MT_3000, None)
    draw = np.random.default_rng(3)
    a, b = (draw.standard_normal(s).astype("f2") for s in ((m, depth), (depth, n)))
    total = np.zeros((m, n), "f4")
    for block in range(0, depth, 48):  # as the blocks cut k
        for first in range(block, min(block + 48, depth), k_c):
            part = np.zeros((m, n), "f2")
            for k in range(first, min(first + k_c, block + 48, depth)):
                exact = part.astype("f8") + a[:, k, None].astype("f8") * b[k].astype("f8")
                part = exact.astype("f2")
            total += part
    out = execute(program, {"a": a, "b": b})["c"]
    assert out.tobytes() == total.astype("f2").tobytes()


def test_fp16_sums_err_less_the_sooner_they_are_added_in_fp32() -> None:
    declared, errors = KERNELS["gemm-f16"], []
    for k_c in (8, 64, 512):
        sizes = {"m": 12, "n": 64, "depth": 512, "k_c": k_c}
        (row,) = differences(declared, MT_3000.with_cores(2), sizes)
        errors.append(row.ulps)
    assert errors[0] < errors[1] < errors[2]
