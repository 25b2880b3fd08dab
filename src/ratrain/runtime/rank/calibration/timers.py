"""How long work takes on a device: given to it kernel by kernel, or recorded and replayed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

Timer = Callable[[Callable[[], Any]], tuple[float, Any]]
"""Does work; its seconds, and what it returned."""


def launched(finish: Callable[[], None]) -> Timer:
    """Work as it stands. `finish` waits until the device has done what it was given."""

    def timed(work: Callable[[], Any]) -> tuple[float, Any]:
        began_s = time.perf_counter()
        result = work()
        finish()
        return time.perf_counter() - began_s, result

    return timed


def recorded(finish: Callable[[], None]) -> Timer:
    """Work as a CUDA graph, replayed twice: once for what it computes, once for its time. It must
    have been done before, and not on the default stream; what it adds is added twice."""
    pool: Any = torch.cuda.graph_pool_handle()
    latest: list[Any] = []  # keeps the pool until the next graph has it

    def timed(work: Callable[[], Any]) -> tuple[float, Any]:
        graph: Any = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        result = work()
        graph.capture_end()
        graph.replay()
        finish()
        began_s = time.perf_counter()
        graph.replay()
        finish()
        took_s = time.perf_counter() - began_s
        latest[:] = [graph]
        return took_s, result

    return timed
