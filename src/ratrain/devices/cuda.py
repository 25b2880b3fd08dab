"""One CUDA GPU: a stream a lane, torch's caching allocator with a limit, the same bits every time.

Each stream has its own pool in the allocator. Memory that one lane's op frees while the device is
still at work on it would be given to another lane at once: so states end behind `finish`.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

POOLED = 1.05
"""The allocator may take this much of a budget from the device: what it keeps in pools, between
tensors, is more than what tensors hold."""
POOLED_BYTES = 64 << 20
_WORKSPACES = ":4096:2:16:8"
"""Of cuBLAS, a stream: without a size of its own its sums may differ from run to run."""


def prepare_environment() -> None:
    """What the libraries read once, before the first use of a GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", _WORKSPACES)
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")


class _CudaStream:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def begin(self, *_: object) -> None:
        """The host's own waits are enough: an op is over when its stream is."""

    def finish(self) -> _Reached:
        """Waits for the stream; the interpreter's lock is released meanwhile."""
        self._stream.synchronize()
        return _REACHED


class _Reached:
    """A mark behind which nothing is under way."""

    def wait(self) -> None:
        """It was waited for already."""


_REACHED = _Reached()


class _CudaMark:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        """The interpreter's lock is released meanwhile."""
        self._event.synchronize()


class CudaMemory:
    """What torch's caching allocator counts for this process on one GPU."""

    counts = True
    product_peak_bytes = 0  # torch allocates workspaces like tensors

    def __init__(self, number: int) -> None:
        self._number = number
        self._base_bytes = torch.cuda.memory_allocated(number)

    @property
    def held_bytes(self) -> int:
        return torch.cuda.memory_allocated(self._number) - self._base_bytes

    @property
    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self._number) - self._base_bytes

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._number)

    def limit(self, size_bytes: int) -> None:
        """Of what the allocator takes from the device: tensors, and what lies between them."""
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(self._number).total_memory
        pooled = self._base_bytes + size_bytes * POOLED + POOLED_BYTES
        torch.cuda.set_per_process_memory_fraction(min(1.0, pooled / total), self._number)


class Cuda:
    """A GPU by its number among those that this process sees."""

    kind = "cuda"
    narrow_terms = 0

    def __init__(self, number: int) -> None:
        prepare_environment()
        torch.cuda.set_device(number)
        torch.use_deterministic_algorithms(True)
        # New memory need not be filled: that costs time, and orders nothing.
        deterministic: Any = import_module("torch.utils.deterministic")
        deterministic.fill_uninitialized_memory = False
        self.number, self.place = number, torch.device("cuda", number)
        self._streams: dict[str, torch.cuda.Stream] = {}
        _warm_up(self.place)
        self.own_memory = CudaMemory(number)

    @property
    def words(self) -> str:
        return f"{torch.cuda.get_device_name(self.number)} (GPU {self.number})"

    @contextmanager
    def stream(self, lane: str) -> Generator[_CudaStream]:
        torch.cuda.set_device(self.number)  # of this thread
        if lane not in self._streams:
            self._streams[lane] = torch.cuda.Stream(self.number)
        stream = self._streams[lane]
        # What was made before, on the default stream, is there.
        stream.wait_stream(torch.cuda.default_stream(self.number))
        with torch.cuda.stream(stream):
            yield _CudaStream(stream)

    def mark(self) -> _CudaMark:
        event = torch.cuda.Event()
        event.record()
        return _CudaMark(event)

    def name(self, *_: object) -> None:
        """Nobody asks."""

    def finish(self) -> None:
        torch.cuda.synchronize(self.number)


def _warm_up(place: torch.device) -> None:
    """Loads what every product needs, so that it is not counted as a step's."""
    square = torch.ones(256, 256, device=place)
    torch.mm(square, square)
    torch.cuda.synchronize(place)


def made(number: int) -> Cuda:
    """The GPU of that number, if it is there."""
    from ratrain.devices.kinds import require_gpu

    prepare_environment()
    require_gpu(number)
    return Cuda(number)
