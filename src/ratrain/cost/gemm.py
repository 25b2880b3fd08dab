"""How long a matrix product takes, from its shape.

    t = max( waves x units x tile FLOPs / (rate x tile share) x (k + k_half) / k,
             bytes / bandwidth )

The result is cut into tiles of tile_m x tile_n; `units` tiles run at once (one per processor),
so the last wave is paid whole: waves = ceil(tiles / units). A tile runs a prologue and an
epilogue that cost as much as `k_half` steps of k. Small tiles reach less of the rate, because
they read more for each FLOP. The library is taken to choose the fastest tile.
Source: NVIDIA, "Matrix Multiplication Background User's Guide" (tile and wave quantisation).

Not modelled: split-k, caches, clocks that depend on the data.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ratrain.describe.device import KernelModel

TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (128, 64, 0.8), (64, 64, 0.6))
"""(tile_m, tile_n, share of the large-tile rate). The shares are assumed: small tiles
read more for each FLOP. They were not fitted."""


class Product(NamedTuple):
    """`copies` independent products of an m x k by a k x n matrix."""

    m: float
    n: float
    k: float
    copies: float = 1

    @property
    def flops(self) -> float:
        """2 m n k for each."""
        return 2 * self.m * self.n * self.k * self.copies

    @property
    def bytes(self) -> float:
        """Both operands read and the result written once, 2 bytes an element."""
        return 2 * self.copies * (self.m * self.k + self.k * self.n + self.m * self.n)


@cache
def product_s(
    product: Product, kernels: KernelModel, rate_flops: float, bandwidth_bytes_per_s: float
) -> float:
    """Seconds of the product; the launch is counted elsewhere."""
    depth = (product.k + kernels.half_depth) / product.k
    work_s = min(_waves_s(product, kernels, *tile) for tile in TILES) * depth / rate_flops
    return max(work_s, product.bytes / bandwidth_bytes_per_s)


def _waves_s(
    product: Product, kernels: KernelModel, tile_m: int, tile_n: int, share: float
) -> float:
    """FLOPs that the device is busy for, idle processors counted as busy."""
    tiles = -(-product.m // tile_m) * -(-product.n // tile_n) * product.copies
    waves = -(-tiles // kernels.processors)
    return 2 * waves * kernels.processors * tile_m * tile_n * product.k / share
