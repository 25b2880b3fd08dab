"""Memory on a device: written directly if the NIC reaches it, else through host buffers.

    stage = Stage(engine, CudaAdapter())
    stage.write(tensor, descriptor, imm=7)         # returns when all has landed and counted

Which of the two is decided for each peer. Through host buffers, one chunk is copied while others
are in flight. A new kind of device needs only an `Adapter`; `HostAdapter` is one for memory in RAM,
`CudaAdapter` one that uses torch, pinned buffers and its own stream.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ratrain.errors import BadTarget, SpecError
from ratrain.transport.engine.transfer import Transfer
from ratrain.transport.memory.regions import DeviceSpan, Region, bytes_of
from ratrain.transport.surface.engine import Engine
from ratrain.transport.wire.address import Descriptor


class Adapter(Protocol):
    """How bytes get from a device to the host and back, and where a NIC finds them."""

    kind: str
    """As libfabric names it ("cuda", "rocr", ...), or "host"."""

    def span(self, memory: Any) -> object:
        """The memory as `Engine.register` takes it, once all writes to it have ended."""
        ...

    def buffer(self, size_bytes: int) -> Any:
        """A host buffer that can be registered and is fast to copy to."""
        ...

    def size_bytes(self, memory: Any) -> int:
        """How many bytes some device memory has."""
        ...

    def copy_out(self, memory: Any, offset: int, buffer: Any, size_bytes: int) -> None:
        """Copy bytes of device memory to the start of a buffer; they are there on return."""
        ...

    def copy_in(self, buffer: Any, memory: Any, offset: int, size_bytes: int) -> None:
        """Copy the start of a buffer into device memory; the bytes are there on return."""
        ...


class HostAdapter:
    """Memory in RAM, which every provider reaches."""

    kind = "host"

    def span(self, memory: Any) -> object:
        """Part of Adapter."""
        return memory

    def buffer(self, size_bytes: int) -> Any:
        """Part of Adapter."""
        return np.zeros(size_bytes, np.uint8)

    def size_bytes(self, memory: Any) -> int:
        """Part of Adapter."""
        return bytes_of(memory).nbytes

    def copy_out(self, memory: Any, offset: int, buffer: Any, size_bytes: int) -> None:
        """Part of Adapter."""
        bytes_of(buffer)[:size_bytes] = bytes_of(memory)[offset : offset + size_bytes]

    def copy_in(self, buffer: Any, memory: Any, offset: int, size_bytes: int) -> None:
        """Part of Adapter."""
        bytes_of(memory)[offset : offset + size_bytes] = bytes_of(buffer)[:size_bytes]


class CudaAdapter:
    """Contiguous tensors on one CUDA device."""

    kind = "cuda"

    def __init__(self, device: str = "cuda") -> None:
        import torch

        if not torch.cuda.is_available():
            raise SpecError("torch sees no CUDA device", fix="register host memory instead")
        self._torch: Any = torch
        self._stream: Any = torch.cuda.Stream(device)

    def span(self, memory: Any) -> object:
        """Part of Adapter: after what the current stream has written."""
        flat = self._flat(memory)
        self._torch.cuda.current_stream(flat.device).synchronize()
        where = flat.device.index or 0
        return DeviceSpan(self.kind, int(flat.data_ptr()), int(flat.numel()), where, memory)

    def buffer(self, size_bytes: int) -> Any:
        """Part of Adapter: pinned memory."""
        return self._torch.empty(size_bytes, dtype=self._torch.uint8, pin_memory=True)

    def size_bytes(self, memory: Any) -> int:
        """Part of Adapter."""
        return int(self._flat(memory).numel())

    def copy_out(self, memory: Any, offset: int, buffer: Any, size_bytes: int) -> None:
        """Part of Adapter: after what the current stream has written."""
        part = self._flat(memory)[offset : offset + size_bytes]
        self._run(lambda: buffer[:size_bytes].copy_(part, non_blocking=True))

    def copy_in(self, buffer: Any, memory: Any, offset: int, size_bytes: int) -> None:
        """Part of Adapter."""
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
    """Writes device memory, directly or through a few buffers, for one thread at a time."""

    def __init__(
        self, engine: Engine, adapter: Adapter, chunk_bytes: int = 4 << 20, depth: int = 3
    ) -> None:
        if chunk_bytes < 1 or depth < 1:
            raise SpecError("a stage needs at least one chunk of at least one byte")
        self._engine = engine
        self._adapter = adapter
        self._chunk_bytes = chunk_bytes
        self._depth = depth
        self._buffers: list[Any] = []
        self._regions: list[Region] = []

    def write(
        self, memory: Any, dst: Descriptor, *, imm: int | None = None, deadline_s: float = 60.0
    ) -> int:
        """Copy device memory to the start of `dst`; how many bytes. When this returns they have
        landed, and the peer's counter of `imm` has moved by one."""
        total = self._adapter.size_bytes(memory)
        if total > dst.size_bytes:
            raise BadTarget(
                f"{total} bytes do not fit into a target of {dst.size_bytes}",
                place=str(dst.address),
            )
        if self._engine.reaches(dst.address, self._adapter.kind):
            self._directly(memory, total, dst, imm, deadline_s)
        else:
            self._in_chunks(memory, total, dst, imm, deadline_s)
        return total

    def _directly(
        self, memory: Any, total: int, dst: Descriptor, imm: int | None, deadline_s: float
    ) -> None:
        region = self._engine.register(self._adapter.span(memory), remote=False)
        transfer = self._engine.write(region[:total], dst, imm=imm, deadline_s=deadline_s)
        try:
            transfer.wait()
        finally:
            self._end(transfer, deadline_s)
            self._engine.revoke(region)

    def _in_chunks(
        self, memory: Any, total: int, dst: Descriptor, imm: int | None, deadline_s: float
    ) -> None:
        self._open()
        in_flight: list[Transfer | None] = [None] * len(self._buffers)
        try:
            for number, at in enumerate(range(0, total, self._chunk_bytes)):
                slot = number % len(in_flight)
                before = in_flight[slot]
                if before is not None:
                    before.wait()
                size = min(self._chunk_bytes, total - at)
                self._adapter.copy_out(memory, at, self._buffers[slot], size)
                span = self._regions[slot][:size]
                place = dst[at : at + size]
                in_flight[slot] = self._engine.write(span, place, deadline_s=deadline_s)
            for transfer in in_flight:
                if transfer is not None:
                    transfer.wait()
        finally:
            for transfer in in_flight:
                if transfer is not None:
                    self._end(transfer, deadline_s)
        if imm is not None:
            self._engine.imm(dst.address, imm, deadline_s=deadline_s).wait()

    def _open(self) -> None:
        """Make the host buffers, the first time they are needed."""
        if not self._buffers:
            self._buffers = [self._adapter.buffer(self._chunk_bytes) for _ in range(self._depth)]
            self._regions = [self._engine.register(b, remote=False) for b in self._buffers]

    @staticmethod
    def _end(transfer: Transfer, deadline_s: float) -> None:
        """After an error too, nothing may still read its memory."""
        if not transfer.done():
            transfer.cancel()
            transfer.wait_quiet(deadline_s)

    def close(self) -> None:
        """Release the buffers."""
        for region in self._regions:
            self._engine.revoke(region)
