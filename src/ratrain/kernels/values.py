"""Values of tile products, in the order and precision in which the machine sums.

A multiply-add is rounded once; FP32 and FP16 ones are computed in FP64 and rounded, FP64 ones are
rounded twice, as numpy has no fused one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
F64 = np.float64


def add_nn(c: Array, a: Array, b: Array, k_c: int | None) -> None:
    """c += a b, over ascending k; `k_c` as in `micro.nn_cycles`."""
    if k_c:
        for first in range(0, a.shape[1], k_c):
            part = np.zeros(c.shape, dtype=a.dtype)
            _sum(part, a[:, first : first + k_c], b[first : first + k_c])
            c += part.astype(c.dtype)
    else:
        _sum(c, a, b)


def _sum(c: Array, a: Array, b: Array) -> None:
    a64, b64 = a.astype(F64), b.astype(F64)
    total = c.astype(F64)
    for k in range(a.shape[1]):
        total += a64[:, k, None] * b64[k]
        if c.dtype != F64:
            total = total.astype(c.dtype).astype(F64)
    c[:] = total


def add_nt(c: Array, a: Array, b: Array, lanes: int) -> None:
    """c += a b^T: each lane of a vector along k sums its own products, then pairs of lanes."""
    (m, k), n = a.shape, b.shape[0]
    steps = -(-k // lanes)
    wide = np.zeros((2, max(m, n), steps * lanes), dtype=a.dtype)
    wide[0, :m, :k], wide[1, :n, :k] = a, b
    left, right = (each.reshape(-1, steps, lanes).astype(F64) for each in wide)
    total = np.zeros((m, n, lanes))
    for step in range(steps):
        total += left[:m, None, step] * right[None, :n, step]
        total = total.astype(c.dtype).astype(F64)
    while total.shape[2] > 1:
        half = total.shape[2] // 2
        total = (total[..., :half] + total[..., half:]).astype(c.dtype).astype(F64)
    c += total[..., 0].astype(c.dtype)
