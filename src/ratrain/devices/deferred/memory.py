"""Memory of a device whose work is put off: a pool a lane, as in CUDA's caching allocator, whose
free blocks are filled with NaN."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ratrain.devices.deferred.clocks import Place
from ratrain.devices.deferred.queue import Lane, Queue

_ALIGN = 64
_POISON = 0xFF
"""In every byte: NaN in each floating-point dtype, -1 in integers."""


@dataclass(eq=False)
class Block(Place):
    """A piece of memory, and the lane whose pool it is from."""

    memory: Tensor = field(kw_only=True)
    owner: Lane = field(kw_only=True)


class Hold:
    """Keeps a block while tensors lie in it; with the last of them the block is free."""

    __slots__ = ("_pool", "block")

    def __init__(self, pool: Pool, block: Block) -> None:
        self._pool, self.block = pool, block

    def __del__(self) -> None:
        self._pool.give_back(self.block)


class Pool:
    """All memory of a device (`ratrain.devices.Memory`)."""

    counts = True
    product_peak_bytes = 0  # products take their buffers from the process

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._free: dict[tuple[str, int], list[Block]] = defaultdict(list)
        self._limit_bytes: int | None = None
        self.held_bytes = self.peak_bytes = 0

    def take(self, size_bytes: int) -> Hold:
        """A block for a new tensor, full of NaN."""
        size_bytes = max(-(-size_bytes // _ALIGN) * _ALIGN, _ALIGN)
        lane = self._queue.here
        with self._queue.lock:
            held = self.held_bytes + size_bytes
            if self._limit_bytes is not None and held > self._limit_bytes:
                raise torch.OutOfMemoryError(
                    f"deferred: {held:,} bytes are wanted, the limit is {self._limit_bytes:,}"
                )
            self.held_bytes, self.peak_bytes = held, max(self.peak_bytes, held)
            free = self._free[lane.name, size_bytes]
            block = free.pop() if free else self._new(lane, size_bytes)
            block.name, block.made_by = "", lane.doing
        return Hold(self, block)

    def give_back(self, block: Block) -> None:
        """No tensor lies in a block any more. What its lane has been given to do in it comes first;
        other lanes must be done with it."""
        queue = self._queue
        with queue.lock:
            found = block.free(queue.here, block.owner)
            if found is not None:
                queue.missing.append(found)
            block.owner.give(lambda: block.memory.fill_(_POISON))
            self.held_bytes -= len(block.memory)
            self._free[block.owner.name, len(block.memory)].append(block)

    def reset_peak(self) -> None:
        self.peak_bytes = self.held_bytes

    def limit(self, size_bytes: int) -> None:
        """From now on an allocation beyond this many bytes fails, with torch's own error."""
        self._limit_bytes = size_bytes

    @staticmethod
    def _new(lane: Lane, size_bytes: int) -> Block:
        memory = torch.full((size_bytes,), _POISON, dtype=torch.uint8)
        return Block(memory=memory, owner=lane)
