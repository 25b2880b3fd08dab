"""What this process allocates for tensors on its CPUs: counted, and held to a limit.

A small preloaded library (allocator.c) sits in front of the C library's allocator. Where it is not,
nothing is known or limited.
"""

from __future__ import annotations

import ctypes

from ratrain.devices import Device, Memory
from ratrain.runtime.step.process import code_of

_PRODUCTS = "libtorch_cpu.so"
"""MKL is linked into it. Its tensors come from another one, by posix_memalign."""


def memory_of(device: Device) -> Memory:
    """What a device holds for this process."""
    return device.own_memory or Allocator()


class Allocator:
    """Bytes held by tensors since `begin`, and their peak."""

    def __init__(self) -> None:
        self._library = _preloaded()
        self._base = self._held()

    @property
    def counts(self) -> bool:
        """Whether anything is known."""
        return self._library is not None

    @property
    def product_peak_bytes(self) -> int:
        """The most that the library which multiplies matrices took for itself at once since the
        process began: buffers of its own, in none of the other figures."""
        return 0 if self._library is None else int(self._library.ratrain_product_peak_bytes())

    @property
    def held_bytes(self) -> int:
        return self._held() - self._base

    @property
    def peak_bytes(self) -> int:
        """The most held at once since `reset_peak`."""
        if self._library is None:
            return 0
        return int(self._library.ratrain_peak_bytes()) - self._base

    def reset_peak(self) -> None:
        if self._library is not None:
            self._library.ratrain_reset_peak()

    def limit(self, size_bytes: int) -> None:
        """From now on an allocation beyond this many bytes fails, with torch's own error."""
        if self._library is not None:
            self._library.ratrain_set_limit(ctypes.c_longlong(self._base + size_bytes))

    def _held(self) -> int:
        return int(self._library.ratrain_held_bytes()) if self._library is not None else 0


def _preloaded() -> ctypes.CDLL | None:
    """The library, where it sits in front of this process's allocator."""
    library = ctypes.CDLL(None)
    try:
        for name in ("ratrain_held_bytes", "ratrain_peak_bytes", "ratrain_product_peak_bytes"):
            getattr(library, name).restype = ctypes.c_longlong
    except AttributeError:
        return None
    library.ratrain_set_product_code(*map(ctypes.c_size_t, code_of(_PRODUCTS)))
    return library
