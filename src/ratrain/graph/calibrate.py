"""What this machine computes a second, measured before a run's first epoch: a dense product and a
sum over neighbours, of the sizes that the plan has."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np
import torch

from ratrain.graph.clock import Rates
from ratrain.graph.plan import Laid
from ratrain.graph.spmm import add_product

TIMES = 5
"""So often each is timed, after once that is not; the median counts."""
MOST_ELEMENTS = 1 << 24
"""Of rows that are gone over: more than caches hold."""
MOST_ROWS = 8192
"""Of a product: more add memory, and no knowledge."""


def measured_rates(laid: Laid, dtype: torch.dtype, rates: Rates) -> Rates:
    """The rates with those of computing as this machine has them."""
    return replace(
        rates,
        product_flops=_product_flops(laid, dtype),
        row_bytes_per_s=_row_bytes_per_s(laid, dtype),
        sum_bytes_per_s=_sum_bytes_per_s(laid, dtype, rates.sum_bytes_per_s),
    )


def _product_flops(laid: Laid, dtype: torch.dtype) -> float:
    unit = max(laid.shape.units, key=lambda u: u.width_in * u.width)
    rows = min(laid.shape.largest, MOST_ROWS)
    left = torch.ones(rows, unit.width_in, dtype=dtype)
    right = torch.ones(unit.width_in, unit.width, dtype=dtype)
    out = torch.empty(rows, unit.width, dtype=dtype)
    seconds = _seconds(lambda: torch.mm(left, right, out=out))
    return 2.0 * rows * unit.width_in * unit.width / seconds


def _row_bytes_per_s(laid: Laid, dtype: torch.dtype) -> float:
    """Of rows that are read and written where they are."""
    columns = max(u.width for u in laid.shape.units)
    elements = min(laid.shape.largest * columns, MOST_ELEMENTS)
    rows = torch.ones(elements, dtype=dtype)
    seconds = _seconds(lambda: rows.relu_())
    return 2 * elements * rows.element_size() / seconds


def _sum_bytes_per_s(laid: Laid, dtype: torch.dtype, usual: float) -> float:
    """Of the block with most edges, with the columns of the widest sum. A graph without edges has
    no sums."""
    if not laid.forward:
        return usual
    target, source = max(laid.forward, key=lambda at: laid.forward[at].entries)
    block, sizes = laid.forward[target, source], laid.shape.sizes
    columns = max(u.sum_forward for u in laid.shape.units)
    rows = torch.ones(int(sizes[source]), columns, dtype=dtype)
    out = torch.zeros(int(sizes[target]), columns, dtype=dtype)
    values = np.ones(block.entries, rows.numpy().dtype)
    seconds = _seconds(lambda: add_product(out, block, values, rows))
    return block.entries * columns * rows.element_size() / seconds


def _seconds(work: Callable[[], object]) -> float:
    work()
    taken: list[float] = []
    for _ in range(TIMES):
        began_s = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began_s)
    return max(median(taken), 1e-9)
