"""The kernels that come with RATrain."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ratrain.kernels import attention, attention_backward, references, rows
from ratrain.kernels.blocking import Product, best_blocks
from ratrain.kernels.build import Kernel
from ratrain.kernels.gemm import Blocks, gemm_half, gemm_nn, gemm_nt, gemm_tt
from ratrain.kernels.registry import Reference, Sizes, TileKernel, declare_kernel, normal
from ratrain.kernels.tiles import Array

Gemm = Callable[[Kernel, int, int, int, str, Blocks], None]


def _searched(gemm: Gemm, mode: str, dtype: str) -> Callable[..., None]:
    """A product whose blocks are searched for."""

    def write(k: Kernel, m: int, n: int, depth: int) -> None:
        rows, columns = (n, m) if gemm is gemm_tt else (m, n)
        product = Product(mode, rows, columns, depth, dtype)
        blocks = best_blocks(
            k.machine, product, lambda kernel, blocks: gemm(kernel, m, n, depth, dtype, blocks)
        )
        gemm(k, m, n, depth, dtype, blocks)

    return write


def gemm_f16(k: Kernel, m: int, n: int, depth: int, k_c: int = 32) -> None:
    """C = A B of FP16, with FP32 sums after every `k_c` terms."""
    product = Product("resident", m, n, depth, "f2", k_c)
    blocks = best_blocks(
        k.machine, product, lambda kernel, blocks: gemm_half(kernel, m, n, depth, blocks, k_c)
    )
    gemm_half(k, m, n, depth, blocks, k_c)


def _product_flops(sizes: Sizes) -> float:
    return 2.0 * sizes["m"] * sizes["n"] * sizes["depth"]


def _attention_flops(products: int) -> Callable[[Sizes], float]:
    def flops(s: Sizes) -> float:
        pairs = s["length"] * (s["length"] + 1) / 2 if s["causal"] else s["length"] ** 2
        return 2.0 * products * s["heads"] * pairs * s["width"]

    return flops


def _given(draw: np.random.Generator, name: str, shape: tuple[int, int]) -> Array:
    """Targets are columns; second moments are squares."""
    if name == "target":
        return draw.integers(0, 50, shape)
    return abs(normal(draw, name, shape)) if name == "square" else normal(draw, name, shape)


def _gemm(mode: str, about: str, gemm: Gemm, reference: Reference, bits: int) -> TileKernel:
    dtype = f"f{bits // 8}"
    return TileKernel(
        f"gemm-{mode}-f{bits}",
        f"{about}, FP{bits}",
        _searched(gemm, "nt" if mode == "nt" else "nn", dtype),
        timed={"m": 6048, "n": 12288, "depth": 2048},
        small={"m": 50, "n": 70, "depth": 90},
        reference=reference,
        machine="ft-m7032",
        flops=_product_flops,
        flops_dtype=dtype,
    )


def _between(
    name: str, about: str, write: Callable[..., None], timed: Sizes, small: Sizes, exact: Reference
) -> TileKernel:
    """What stands between products."""
    return TileKernel(name, about, write, timed, small, exact, given=_given)


HEADS = {"heads": 32, "length": 2048, "width": 128, "causal": 1}
FEW_HEADS = {"heads": 2, "length": 50, "width": 16, "causal": 1, "block": 32, "chunk": 16}
HIDDEN = {"rows": 2048, "width": 4096}
MLP = {"rows": 2048, "width": 11008}
FEW = {"rows": 60, "width": 40}

for _kernel in (
    *(_gemm("nn", "C += A B", gemm_nn, references.nn, bits) for bits in (64, 32)),
    *(_gemm("nt", "C += A B^T", gemm_nt, references.nt, bits) for bits in (64, 32)),
    *(_gemm("tt", "C += A^T B^T", gemm_tt, references.tt, bits) for bits in (64, 32)),
    TileKernel(
        "gemm-f16",
        "C = A B, FP16 with FP32 sums after every k_c terms",
        gemm_f16,
        timed={"m": 2048, "n": 4096, "depth": 4096},
        small={"m": 50, "n": 200, "depth": 90, "k_c": 32},
        reference=references.nn,
        flops=_product_flops,
        published="5.686 TFLOP/s, 70.2 % (arXiv 2605.25655; its sizes are not given)",
    ),
    TileKernel(
        "attention",
        "softmax(Q K^T) V",
        attention.forward,
        timed=HEADS,
        small=FEW_HEADS,
        reference=references.attention,
        ulps=16,
        ulps_dtype="f2",
        flops=_attention_flops(2),
    ),
    TileKernel(
        "attention-backward",
        "dQ, dK, dV from Q, K, V, O and dO",
        attention_backward.backward,
        timed=HEADS,
        small=FEW_HEADS,
        reference=references.attention_backward,
        ulps=32,
        ulps_dtype="f2",
        flops=_attention_flops(5),
        forward=references.attention,
    ),
    _between("rmsnorm", "a norm's output", rows.rmsnorm, HIDDEN, FEW, references.rmsnorm),
    _between(
        *("rmsnorm-backward", "a norm's gradients", rows.rmsnorm_backward, HIDDEN, FEW),
        references.rmsnorm_backward,
    ),
    _between("swiglu", "silu(gate) up", rows.swiglu, MLP, FEW, references.swiglu),
    _between(
        *("swiglu-backward", "gradients of gate and up", rows.swiglu_backward, MLP, FEW),
        references.swiglu_backward,
    ),
    _between(
        *("rotary", "halves of heads turned by angles", rows.rotary),
        {"rows": 2048, "heads": 32, "width": 128},
        {"rows": 60, "heads": 3, "width": 8},
        references.rotary,
    ),
    _between(
        *("cross-entropy", "each row's loss, and its gradient", rows.cross_entropy),
        {"rows": 2048, "vocabulary": 32000},
        {"rows": 60, "vocabulary": 50},
        references.cross_entropy,
    ),
    _between(
        *("adamw", "an update of FP32 weights and moments", rows.adamw),
        {"rows": 49408, "width": 4096},  # a layer of 7B
        FEW,
        references.adamw,
    ),
):
    declare_kernel(_kernel)
