"""The kernels that come with RATrain."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ratrain.kernels import attention, attention_backward, references, rows
from ratrain.kernels.blocking import Product, best_blocks
from ratrain.kernels.build import Kernel
from ratrain.kernels.gemm import Blocks, gemm_half, gemm_nn, gemm_nt, gemm_tt
from ratrain.kernels.registry import Sizes, declare_kernel, normal
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


def _forward_given(draw: np.random.Generator, name: str, shape: tuple[int, int]) -> Array:
    """Targets are columns; second moments are squares."""
    if name == "target":
        return draw.integers(0, 50, shape)
    return abs(normal(draw, name, shape)) if name == "square" else normal(draw, name, shape)


for mode, gemm, reference in (
    ("nn", gemm_nn, references.nn),
    ("nt", gemm_nt, references.nt),
    ("tt", gemm_tt, references.tt),
):
    for dtype, bits in (("f8", 64), ("f4", 32)):
        declare_kernel(
            f"gemm-{mode}-f{bits}",
            f"C += {'A B' if mode == 'nn' else 'A B^T' if mode == 'nt' else 'A^T B^T'}, FP{bits}",
            _searched(gemm, "nt" if mode == "nt" else "nn", dtype),
            machine="ft-m7032",
            timed={"m": 6048, "n": 12288, "depth": 2048},
            small={"m": 50, "n": 70, "depth": 90},
            reference=reference,
            ulps=8,
            flops=_product_flops,
            flops_dtype=dtype,
        )
declare_kernel(
    "gemm-f16",
    "C = A B, FP16 with FP32 sums after every k_c terms",
    gemm_f16,
    machine="mt-3000",
    timed={"m": 2048, "n": 4096, "depth": 4096},
    small={"m": 50, "n": 200, "depth": 90, "k_c": 32},
    reference=references.nn,
    ulps=8,
    flops=_product_flops,
    published="5.686 TFLOP/s, 70.2 % (arXiv 2605.25655; its sizes are not given)",
)
for name, about, write, products, given_reference, ulps in (
    ("attention", "softmax(Q K^T) V", attention.forward, 2, references.attention, 16),
    (
        *("attention-backward", "dQ, dK, dV from Q, K, V, O and dO"),
        *(attention_backward.backward, 5, references.attention_backward, 32),
    ),
):
    declare_kernel(
        name,
        about,
        write,
        machine="mt-3000",
        timed={"heads": 32, "length": 2048, "width": 128, "causal": 1},
        small={"heads": 2, "length": 50, "width": 16, "causal": 1, "block": 32, "chunk": 16},
        reference=given_reference,
        ulps=ulps,
        ulps_dtype="f2",
        flops=_attention_flops(products),
        forward=references.attention if products == 5 else None,
    )
for name, about, write, timed, small, given_reference in (
    (
        *("rmsnorm", "x gain / sqrt(mean(x^2))", rows.rmsnorm, {"rows": 2048, "width": 4096}),
        *({"rows": 60, "width": 40}, references.rmsnorm),
    ),
    (
        *("rmsnorm-backward", "dx and dgain", rows.rmsnorm_backward),
        *({"rows": 2048, "width": 4096}, {"rows": 60, "width": 40}, references.rmsnorm_backward),
    ),
    (
        *("swiglu", "silu(gate) up", rows.swiglu, {"rows": 2048, "width": 11008}),
        *({"rows": 60, "width": 40}, references.swiglu),
    ),
    (
        *("swiglu-backward", "dgate and dup", rows.swiglu_backward),
        *({"rows": 2048, "width": 11008}, {"rows": 60, "width": 40}, references.swiglu_backward),
    ),
    (
        *("rotary", "halves of heads turned by angles", rows.rotary),
        {"rows": 2048, "heads": 32, "width": 128},
        *({"rows": 60, "heads": 3, "width": 8}, references.rotary),
    ),
    (
        *("cross-entropy", "loss, and its gradient", rows.cross_entropy),
        {"rows": 2048, "vocabulary": 32000},
        *({"rows": 60, "vocabulary": 50}, references.cross_entropy),
    ),
    (
        *("adamw", "an update of FP32 weights and moments", rows.adamw),
        *({"rows": 49408, "width": 4096}, {"rows": 60, "width": 40}, references.adamw),
    ),
):
    declare_kernel(
        name,
        about,
        write,
        machine="mt-3000",
        timed=timed,
        small=small,
        reference=given_reference,
        ulps=8,
        given=_forward_given,
    )
