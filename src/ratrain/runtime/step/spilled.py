"""What waits of micro-batches in another memory tier: units' inputs, and what autograd keeps for
backward.

Autograd's graph holds tensors of any shape, several of which may share memory: what leaves are
these memories, each once, and the tensors are made of them again when they are back. A unit's input
stays where it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ratrain.devices import Device
from ratrain.errors import SpecError, StorageError
from ratrain.program.families import SEND_SLOTS
from ratrain.program.kind import Kind, Lane
from ratrain.runtime.step.away import ALIGN, Clock
from ratrain.runtime.step.below import Tier, page_tensor
from ratrain.runtime.step.schedule import Key, Schedule
from ratrain.storage import Key as StoredKey

_SPARE_BYTES = 4096
"""Between the memories of what is kept, each of which begins at a multiple of `ALIGN`."""


class _Window(NamedTuple):
    """A tensor of a memory that begins at a byte of the whole."""

    begin: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, whole: Tensor) -> Tensor:
        first = self.begin // self.dtype.itemsize + self.offset
        flat = whole[: len(whole) // self.dtype.itemsize * self.dtype.itemsize].view(self.dtype)
        return flat.as_strided(self.size, self.stride, flat.storage_offset() + first)


class KeptTensors:
    """The tensors that autograd keeps of one forward. `stays`: of these memory what is kept of them
    is not moved."""

    def __init__(self, *stays: Tensor) -> None:
        kind = stays[0].device.type
        if kind == "deferred":
            raise SpecError(
                f"what autograd keeps cannot be moved on a device {kind!r}: its tensors have no "
                "memory of their own",
                place="[schedule] recovery",
                fix='leave "spill" out, or use --device cpu',
            )
        self._stays = {tensor.untyped_storage().data_ptr() for tensor in stays}
        self._tensors: list[Tensor] = []
        self._windows: list[_Window] = []

    @contextmanager
    def taken(self) -> Iterator[None]:
        """What autograd keeps inside is kept here."""
        with saved_tensors_hooks(self._take, self._give):
            yield

    def _take(self, tensor: Tensor) -> Tensor | int:
        if tensor.untyped_storage().data_ptr() in self._stays:
            return tensor
        self._tensors.append(tensor.detach())
        return len(self._tensors) - 1

    def _give(self, kept: Tensor | int) -> Tensor:
        return kept if isinstance(kept, Tensor) else self._tensors[kept]

    def _memories(self) -> dict[int, tuple[int, Tensor]]:
        """By its address each memory with where it begins in the whole."""
        memories: dict[int, tuple[int, Tensor]] = {}
        end = 0
        for tensor in self._tensors:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in memories:
                begin = -(-end // ALIGN) * ALIGN
                held = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                memories[storage.data_ptr()] = begin, held
                end = begin + len(held)
        return memories

    @property
    def size_bytes(self) -> int:
        """Of the whole."""
        return max((begin + len(held) for begin, held in self._memories().values()), default=0)

    def leave(self, whole: Tensor) -> None:
        """Copies all memories into one, and keeps none."""
        memories = self._memories()
        for begin, held in memories.values():
            whole[begin : begin + len(held)].copy_(held)
        self._windows = [
            _Window(
                memories[tensor.untyped_storage().data_ptr()][0],
                tensor.dtype,
                tuple(tensor.shape),
                tensor.stride(),
                int(tensor.storage_offset()),
            )
            for tensor in self._tensors
        ]
        self._tensors = []

    def return_in(self, whole: Tensor) -> None:
        """They are here again, in what has come back."""
        self._tensors = [window.of(whole) for window in self._windows]


def _copied(room: Tensor, whole: Tensor) -> None:
    size = min(len(room), len(whole))
    whole[:size].copy_(room[:size])


def places_of(schedule: Schedule, tiers: Mapping[str, Tier], device: Device) -> dict[Key, Places]:
    """For each sort and unit of the rank whose states wait micro-batch by micro-batch its places.
    Units that need as much share theirs, of which there are as many as compute may need at once."""
    places: dict[Key, Places] = {}
    for sort in ("input", "saved"):
        moved = {op.unit for op in schedule.ops if op.kind.moves == sort}
        for tier, size in {_room(schedule, sort, unit) for unit in moved}:
            alike = {unit for unit in moved if _room(schedule, sort, unit) == (tier, size)}
            count = _most_at_once(schedule, alike, sort)
            made = Places.made(f"{sort}-{size}", tiers[tier], size, device, count)
            places |= {(sort, unit): made for unit in alike}
    return places


Cell = tuple[int, int]
"""A unit and a micro-batch of a step."""
_NO_CELL: Cell = -1, -1


def _room(schedule: Schedule, sort: str, unit: int) -> tuple[str, int]:
    """The tier in which a unit's states of a sort wait, and what a micro-batch's need there."""
    local = schedule.units[unit]
    size = local.unit.input_bytes if sort == "input" else local.unit.saved_bytes + _SPARE_BYTES
    return local.tiers[sort], size


def _most_at_once(schedule: Schedule, units: set[int], sort: str) -> int:
    """Of micro-batches of units that leave and return as many as are away at once: one is back
    before its backward, and leaves no earlier than its forward, but for inputs that have arrived
    ahead of it."""
    moves = (op for op in schedule.ops if op.kind.moves == sort)
    moved = {(op.unit, op.micro_batch) for op in moves if op.lane.moves == "away"}
    back = (Kind.R,) if sort == "input" else (Kind.B, Kind.I)
    away = most = 0
    for op in schedule.of_step(Lane.COMPUTE, 0):
        if op.unit in units and (op.unit, op.micro_batch) in moved:
            away += (op.kind is Kind.F) - (op.kind in back)
            most = max(most, away)
    arrive = sum(not schedule.units[unit].previous_is_local for unit in units)
    ahead = SEND_SLOTS * arrive if sort == "input" else 0
    return min(most + ahead, len(moved))


@dataclass
class Places:
    """A tier's places for what units have of micro-batches, each taken by one at a time."""

    tier: Tier
    size_bytes: int
    device: Device
    free: deque[StoredKey]
    taken: dict[Cell, StoredKey]

    @classmethod
    def made(cls, sort: str, tier: Tier, size_bytes: int, device: Device, count: int) -> Places:
        """So many for units that need as much."""
        keys = [StoredKey(sort, str(number)) for number in range(count)]
        for key in keys:
            tier.reserve(key, size_bytes)
        return cls(tier, size_bytes, device, deque(keys), {})

    def store(
        self, cell: Cell, size_bytes: int, fill: Callable[[Tensor], None], via: Tensor | None
    ) -> None:
        """Puts there what `fill` copies into memory: the place's own, or `via`."""
        if size_bytes > self.size_bytes:
            raise StorageError(
                f"{size_bytes:,} bytes are kept of a micro-batch, and its place has "
                f"{self.size_bytes:,}",
                fix="this is a bug in how activations are counted: please report it",
            )
        key = self.taken[cell] = self.free.popleft()
        memory = self.tier.memory(key)
        if memory is not None:
            fill(memory)
            self.tier.traffic.add_written(size_bytes)
            return
        assert via is not None
        fill(via)
        self.tier.store(key, via)

    def times_s(self, via: Tensor | None, clock: Clock) -> tuple[float, float]:
        """What fetching and storing one takes, outside of any step; with a copy into one run of
        bytes."""
        room = page_tensor(self.size_bytes, self.device)
        began_s = clock()
        self.store(_NO_CELL, self.size_bytes, partial(_copied, room), via)
        stored_s = clock()
        self.fetch(_NO_CELL)
        return clock() - stored_s, stored_s - began_s

    def fetch(self, cell: Cell) -> Tensor:
        """Brings it back into memory of its own, and its place is free."""
        key, room = self.taken.pop(cell), page_tensor(self.size_bytes, self.device)
        self.tier.fetch(key, room)
        self.free.append(key)
        return room
