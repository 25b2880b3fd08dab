"""Sums over neighbours: a block times rows of another partition, added to rows of this one.

The compiled form stands in spmm.c; where it was not built torch does the same, but for rounding.
"""

from __future__ import annotations

import ctypes
import itertools
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch

from ratrain.compiled import address, c_long, library
from ratrain.graph.blocks import Block
from ratrain.graph.csr import Floats

MANY = 1 << 20
"""Multiplications from which on more threads than one share a block."""


def add_product(out: torch.Tensor, block: Block, values: Floats, rows: torch.Tensor) -> None:
    """Adds to `out` the block, with these values, times `rows`. Both are columns of larger rows."""
    c = library("graph", "spmm_c")
    if c is None:
        _by_torch(out, block, values, rows)
        return
    function = c[f"ratrain_spmm_{values.dtype.name}"]
    count, width = len(block.rows), rows.shape[1]
    arrays = (address(block.rows), address(block.starts), address(block.columns), address(values))
    ends = (
        *(ctypes.c_void_p(rows.data_ptr()), c_long(rows.stride(0))),
        *(ctypes.c_void_p(out.data_ptr()), c_long(out.stride(0)), c_long(width)),
    )
    threads = torch.get_num_threads() if block.entries * width >= MANY else 1
    cuts = _even_cuts(block, threads)
    spans = [(c_long(a), c_long(b)) for a, b in itertools.pairwise(cuts)]
    assert cuts[-1] == count
    if len(spans) == 1:
        function(*spans[0], *arrays, *ends)
        return
    for done in [_pool(threads).submit(function, *span, *arrays, *ends) for span in spans]:
        done.result()


def _even_cuts(block: Block, threads: int) -> list[int]:
    """Rows at which to cut so that entries are even."""
    wanted = np.arange(1, threads) * block.entries // threads
    inner = np.searchsorted(block.starts, wanted).tolist()
    return [0, *inner, len(block.rows)]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="sums")


def _by_torch(out: torch.Tensor, block: Block, values: Floats, rows: torch.Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR a beta
        matrix = torch.sparse_csr_tensor(
            torch.from_numpy(block.starts),
            torch.from_numpy(block.columns),
            torch.from_numpy(values),
            (len(block.rows), len(rows)),
        )
        out.index_add_(0, torch.from_numpy(block.rows), matrix @ rows.contiguous())
