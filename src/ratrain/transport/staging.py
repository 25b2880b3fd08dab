"""Memory on a device: written through host buffers, one chunk copied while others fly.

    stage = Stage(engine, CudaCopier())
    stage.write(tensor, descriptor, imm=7)         # returns when all has landed and counted

An accelerator whose memory a NIC cannot reach is staged like this. `Copier` is all that a new
kind of device has to bring; `HostCopier` is the same thing for memory in RAM, `CudaCopier` uses
torch, pinned buffers and a stream of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ratrain.errors import BadTarget, SpecError
from ratrain.transport.memory import bytes_of
from ratrain.transport.transfer import Transfer

if TYPE_CHECKING:
    from ratrain.transport.address import Descriptor
    from ratrain.transport.engine import Engine


class Copier(Protocol):
    """How bytes get from a device to the host and back."""

    def buffer(self, size_bytes: int) -> Any:
        """A host buffer that can be registered and is fast to copy to."""
        ...

    def size_bytes(self, memory: Any) -> int:
        """The bytes of some device memory."""
        ...

    def copy_out(self, memory: Any, offset: int, buffer: Any, size_bytes: int) -> None:
        """Copy bytes of device memory to the start of a buffer; they are there on return."""
        ...

    def copy_in(self, buffer: Any, memory: Any, offset: int, size_bytes: int) -> None:
        """Copy the start of a buffer into device memory; the bytes are there on return."""
        ...


class HostCopier:
    """Memory in RAM."""

    def buffer(self, size_bytes: int) -> Any:
        """Part of Copier."""
        return np.zeros(size_bytes, np.uint8)

    def size_bytes(self, memory: Any) -> int:
        """Part of Copier."""
        return bytes_of(memory).nbytes

    def copy_out(self, memory: Any, offset: int, buffer: Any, size_bytes: int) -> None:
        """Part of Copier."""
        bytes_of(buffer)[:size_bytes] = bytes_of(memory)[offset : offset + size_bytes]

    def copy_in(self, buffer: Any, memory: Any, offset: int, size_bytes: int) -> None:
        """Part of Copier."""
        bytes_of(memory)[offset : offset + size_bytes] = bytes_of(buffer)[:size_bytes]


class CudaCopier:
    """Contiguous tensors on one CUDA device."""

    def __init__(self, device: str = "cuda") -> None:
        import torch

        if not torch.cuda.is_available():
            raise SpecError("torch sees no CUDA device", fix="register host memory instead")
        self._torch: Any = torch
        self._stream: Any = torch.cuda.Stream(device)

    def buffer(self, size_bytes: int) -> Any:
        """Part of Copier: pinned memory."""
        return self._torch.empty(size_bytes, dtype=self._torch.uint8, pin_memory=True)

    def size_bytes(self, memory: Any) -> int:
        """Part of Copier."""
        return int(self._flat(memory).numel())

    def copy_out(self, memory: Any, offset: int, buffer: Any, size_bytes: int) -> None:
        """Part of Copier: after what the current stream has written."""
        part = self._flat(memory)[offset : offset + size_bytes]
        self._run(lambda: buffer[:size_bytes].copy_(part, non_blocking=True))

    def copy_in(self, buffer: Any, memory: Any, offset: int, size_bytes: int) -> None:
        """Part of Copier."""
        part = self._flat(memory)[offset : offset + size_bytes]
        self._run(lambda: part.copy_(buffer[:size_bytes], non_blocking=True))

    def _flat(self, memory: Any) -> Any:
        if not memory.is_contiguous():
            raise SpecError("only contiguous tensors can be staged", fix="call .contiguous()")
        return memory.reshape(-1).view(self._torch.uint8)

    def _run(self, copy: Any) -> None:
        self._stream.wait_stream(self._torch.cuda.current_stream(self._stream.device))
        with self._torch.cuda.stream(self._stream):
            copy()
        self._stream.synchronize()


class Stage:
    """A few host buffers through which one thread at a time writes device memory."""

    def __init__(
        self, engine: Engine, copier: Copier, chunk_bytes: int = 4 << 20, depth: int = 3
    ) -> None:
        if chunk_bytes < 1 or depth < 1:
            raise SpecError("a stage has one chunk or more, of one byte or more")
        self._engine = engine
        self._copier = copier
        self._chunk_bytes = chunk_bytes
        self._buffers = [copier.buffer(chunk_bytes) for _ in range(depth)]
        self._regions = [engine.register(b, remote=False) for b in self._buffers]

    def write(
        self, memory: Any, dst: Descriptor, *, imm: int | None = None, deadline_s: float = 60.0
    ) -> int:
        """Copy device memory to the start of `dst`; the bytes written. When this returns they
        have landed, and the peer's counter of `imm` has moved by one."""
        total = self._copier.size_bytes(memory)
        if total > dst.size_bytes:
            raise BadTarget(
                f"{total} bytes do not fit into a target of {dst.size_bytes}",
                place=str(dst.address),
            )
        flying: list[Transfer | None] = [None] * len(self._buffers)
        try:
            for number, at in enumerate(range(0, total, self._chunk_bytes)):
                slot = number % len(flying)
                before = flying[slot]
                if before is not None:
                    before.wait()
                size = min(self._chunk_bytes, total - at)
                self._copier.copy_out(memory, at, self._buffers[slot], size)
                span = self._regions[slot][:size]
                flying[slot] = self._engine.write(span, dst[at : at + size], deadline_s=deadline_s)
            for transfer in flying:
                if transfer is not None:
                    transfer.wait()
        finally:
            for transfer in flying:  # after an error the buffers must be free of readers too
                if transfer is not None and not transfer.done():
                    transfer.cancel()
                    transfer.wait_quiet(deadline_s)
        if imm is not None:
            self._engine.imm(dst.address, imm, deadline_s=deadline_s).wait()
        return total

    def close(self) -> None:
        """Give the buffers back."""
        for region in self._regions:
            self._engine.revoke(region)
