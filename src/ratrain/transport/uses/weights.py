"""New weights from training ranks to inference ranks while both run.

Both sides describe what they hold as byte ranges of the full tensors, so any layout reshards
into any other. The receiver keeps two buffers: the one in use, and the one that is written. It
swaps when every write has landed; a publish that breaks off leaves the old version whole, and
its late writes find no region, because each attempt has a key of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ratrain.errors import SpecError, TransportError
from ratrain.ranges import Block, joined, line, overlaps
from ratrain.transport.engine.transfer import Transfer
from ratrain.transport.memory.regions import Region
from ratrain.transport.surface.engine import Engine
from ratrain.transport.wire.address import Address, Descriptor

Bytes = npt.NDArray[np.uint8]


def shard(
    shapes: Mapping[str, tuple[int, ...]], itemsize: int, axis: int, index: int, count: int
) -> tuple[Block, ...]:
    """What rank `index` of `count` holds when each tensor is cut evenly along `axis` (tensors
    with fewer axes are cut along their first one); packed in the order of `shapes`."""
    held: list[Block] = []
    offset = 0
    for name, shape in shapes.items():
        cut = min(axis, len(shape) - 1)
        if shape[cut] % count:
            raise SpecError(f"{name}: {shape[cut]} rows do not split over {count} ranks")
        inner = math.prod(shape[cut + 1 :]) * itemsize
        width = shape[cut] // count * inner
        for row in range(math.prod(shape[:cut])):
            start = row * shape[cut] * inner + index * width
            held.append(line(name, start, start + width, offset))
            offset += width
    return tuple(held)


def size_of(held: Sequence[Block]) -> int:
    """Bytes of the buffer that holds `held`."""
    return max((block.end for block in held), default=0)


@dataclass(frozen=True, slots=True)
class Offer:
    """Where the next version may be written, and the immediate that counts it."""

    version: int
    place: Descriptor
    imm: int
    held: tuple[Block, ...]


class Subscriber:
    """An inference rank: reads `weights`, takes new versions beside it."""

    def __init__(self, engine: Engine, held: tuple[Block, ...]) -> None:
        self._engine = engine
        self._held = held
        self._buffers: list[Bytes] = [np.zeros(size_of(held), np.uint8) for _ in range(2)]
        self._block = engine.imm_block(1)
        self._region: Region | None = None
        self._active = 0
        self.version = 0

    @property
    def weights(self) -> Bytes:
        """The whole version in use; it does not change until `accept` has swapped."""
        return self._buffers[self._active]

    def offer(self) -> Offer:
        """Open the spare buffer for the next version (and close what an earlier offer opened)."""
        self.abandon()
        self._region = self._engine.register(self._buffers[1 - self._active], own_key=True)
        place = self._region.descriptor()
        return Offer(self.version + 1, place, self._block.values[0], self._held)

    def accept(
        self, sources: Mapping[Address, Sequence[Block]], timeout_s: float | None = None
    ) -> int:
        """Wait for the offered version from `sources` and swap to it; its number. When a source
        dies or is late: its error, and the old version stays in use."""
        plans = [joined(overlaps(held, self._held)) for held in sources.values()]
        covered = sum(place.elements for pairs in plans for _, place in pairs)
        if covered != size_of(self._held):
            raise SpecError(
                f"the sources hold {covered} of {size_of(self._held)} bytes",
                fix="list each byte's holder once",
            )
        counter = self._engine.counter(self._block.values[0], sources=list(sources))
        try:
            counter.wait(sum(map(len, plans)), timeout_s)
        except TransportError:
            self.abandon()
            raise
        self._close()
        self._active = 1 - self._active
        self.version += 1
        return self.version

    def abandon(self) -> None:
        """Give up the open offer: nothing of it lands or counts any more."""
        if self._region is not None:
            self._close()

    def _close(self) -> None:
        if self._region is not None:
            self._engine.revoke(self._region)
            self._region = None
        self._block.release()


class Publisher:
    """A training rank: writes its part of every offer."""

    def __init__(self, engine: Engine, held: tuple[Block, ...], memory: object) -> None:
        self._engine = engine
        self._held = held
        self._region = engine.register(memory, remote=False)

    def publish(self, offers: Sequence[Offer], deadline_s: float | None = None) -> list[Transfer]:
        """Write this rank's part of every offer; the weights must not change until all are done."""
        transfers: list[Transfer] = []
        for offer in offers:
            for here, there in joined(overlaps(self._held, offer.held)):
                span = self._region[here.offset : here.end]
                place = offer.place[there.offset : there.end]
                transfers.append(
                    self._engine.write(span, place, imm=offer.imm, deadline_s=deadline_s)
                )
        return transfers
