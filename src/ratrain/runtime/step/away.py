"""Optimizer states that wait in another memory tier, and the slots in which they are updated.

A unit's master weights and moments are tensors of any dtype and shape. Away, they are one run of
bytes; in a slot they are tensors again, at the same places of that run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ratrain.devices import Device
from ratrain.runtime.step.optimizer import OwnedPart
from ratrain.runtime.step.schedule import Key
from ratrain.storage import PAGE, TierStore, in_pages
from ratrain.storage import Key as StoredKey

ALIGN = 64
"""Bytes: where a tensor of any dtype may begin."""


class Tier(Protocol):
    """Where units' states wait, each as one run of bytes. `fetch` and `store` are over when they
    return, or with the stream that they were called in."""

    def reserve(self, unit: str, size_bytes: int) -> None:
        """Makes room for a unit."""
        ...

    def fetch(self, unit: str, slot: Tensor) -> None: ...

    def store(self, unit: str, slot: Tensor) -> None: ...

    def close(self) -> None: ...


class HostTier:
    """The host's memory; page-locked for devices that copy from it."""

    def __init__(self, device: Device) -> None:
        self._pinned = device.place.type == "cuda"
        self._held: dict[str, Tensor] = {}

    def reserve(self, unit: str, size_bytes: int) -> None:
        self._held[unit] = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=self._pinned)

    def fetch(self, unit: str, slot: Tensor) -> None:
        held = self._held[unit]
        slot[: len(held)].copy_(held, non_blocking=True)

    def store(self, unit: str, slot: Tensor) -> None:
        held = self._held[unit]
        held.copy_(slot[: len(held)], non_blocking=True)

    def close(self) -> None:
        self._held.clear()


class DiskTier:
    """Files on a disk, through a page-locked buffer for each direction where a slot is not the
    processor's memory."""

    def __init__(self, store: TierStore, device: Device) -> None:
        self._store, self._device = store, device
        self._buffers: dict[str, Tensor] = {}

    def reserve(self, unit: str, size_bytes: int) -> None:
        self._store.reserve({StoredKey("optimizer", unit): size_bytes})

    def fetch(self, unit: str, slot: Tensor) -> None:
        key = StoredKey("optimizer", unit)
        size, buffer = self._store.length(key), self._buffer("fetch", slot)
        self._store.read(key, buffer[:size].numpy().data)
        if buffer is not slot:
            slot[:size].copy_(buffer[:size])

    def store(self, unit: str, slot: Tensor) -> None:
        key = StoredKey("optimizer", unit)
        size, buffer = self._store.length(key), self._buffer("store", slot)
        if buffer is not slot:
            buffer[:size].copy_(slot[:size])
        self._store.write(key, buffer[:size].numpy().data)

    def _buffer(self, direction: str, slot: Tensor) -> Tensor:
        if slot.device.type == "cpu":
            return slot
        if len(self._buffers.get(direction, ())) < len(slot):
            self._buffers[direction] = page_tensor(len(slot), self._device, on_host=True)
        return self._buffers[direction]

    def close(self) -> None:
        self._store.close()


def page_tensor(size_bytes: int, device: Device, *, on_host: bool = False) -> Tensor:
    """Bytes in whole pages, which begin on one where they are the processor's."""
    size, kind = in_pages(size_bytes), device.place.type
    if kind != "cpu" and not on_host:
        return torch.empty(size, dtype=torch.uint8, device=device.place)
    room = torch.empty(size + PAGE, dtype=torch.uint8, pin_memory=kind == "cuda")
    begin = -room.data_ptr() % PAGE
    return room[begin : begin + size]


class AwayUnit:
    """One unit's states: the parts that they belong to, and how large they are as one run."""

    def __init__(
        self, name: str, tier: Tier, parts: Iterable[OwnedPart], stays: Iterable[Tensor]
    ) -> None:
        self.name, self.tier, self._parts = name, tier, tuple(parts)
        memory = [(t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in stays]
        # In fp32 the weights are their own master: a window on what compute reads, which stays.
        self._masters = [
            not any(begin <= part.weights.data_ptr() < end for begin, end in memory)
            for part in self._parts
        ]
        self.size_bytes = self._each(lambda tensor, _: tensor)

    def fill(self, slot: Tensor) -> None:
        """Copies the states into a slot."""

        def filled(tensor: Tensor, at: int) -> Tensor:
            _placed(tensor, slot, at).copy_(tensor)
            return tensor

        self._each(filled)

    def attach(self, slot: Tensor) -> None:
        """From now on the states are what the slot holds."""
        self._each(lambda tensor, at: _placed(tensor, slot, at))

    def detach(self) -> None:
        """They are nowhere: whoever reads them gets torch's error, not another unit's."""
        self._each(lambda tensor, _: torch.empty_like(tensor, device="meta"))

    def _each(self, change: Callable[[Tensor, int], Tensor]) -> int:
        """Puts another tensor in the place of each, given where it begins; returns where they
        end."""
        end = 0

        def changed(tensor: Tensor) -> Tensor:
            nonlocal end
            begin = -(-end // ALIGN) * ALIGN
            end = begin + tensor.numel() * tensor.element_size()
            return change(tensor, begin)

        for part, with_master in zip(self._parts, self._masters, strict=True):
            if with_master:
                part.weights = changed(part.weights)
            part.states = mapped(part.states, changed)
        return end


def _placed(tensor: Tensor, slot: Tensor, at: int) -> Tensor:
    size = tensor.numel() * tensor.element_size()
    return slot[at : at + size].view(tensor.dtype).view(tensor.shape)


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same with other tensors in the places of its own: through tuples and dataclasses."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(mapped(each, change) for each in value)  # pyright: ignore[reportUnknownVariableType]
    if is_dataclass(value) and not isinstance(value, type):
        inner = {field.name: getattr(value, field.name) for field in fields(value)}
        return replace(value, **{name: mapped(each, change) for name, each in inner.items()})
    return value


class AwayStates:
    """All units of a rank whose optimizer states wait in another tier. Lanes use it at once, each
    with units and slots of its own ops."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._units: dict[int, AwayUnit] = {}
        self._slots: dict[Key, Tensor] = {}
        self._inside: dict[Key, AwayUnit] = {}

    def __contains__(self, unit: int) -> bool:
        return unit in self._units

    def add(self, index: int, unit: AwayUnit) -> None:
        """A unit's states go to the tier."""
        unit.tier.reserve(unit.name, unit.size_bytes)
        slot = page_tensor(unit.size_bytes, self._device)
        unit.fill(slot)
        unit.tier.store(unit.name, slot)
        self._device.finish()
        unit.detach()
        self._units[index] = unit

    def fetch(self, index: int, slot: Key) -> None:
        """Brings a unit's states into a slot, in the place of what was stored from there."""
        if slot in self._inside:
            self._inside[slot].detach()
        unit = self._inside[slot] = self._units[index]
        unit.tier.fetch(unit.name, self._slot(slot))
        unit.attach(self._slot(slot))

    def store(self, index: int, slot: Key) -> None:
        """Takes them back. They can be read here until the slot is filled again."""
        unit = self._units[index]
        unit.tier.store(unit.name, self._slot(slot))

    def times_s(self, index: int) -> tuple[float, float]:
        """What a unit's fetch and its store take, outside of any step."""
        if index not in self._units:
            return 0.0, 0.0
        unit = self._units[index]
        slot = page_tensor(unit.size_bytes, self._device)
        reached_s = [time.perf_counter()]
        for move in (unit.tier.fetch, unit.tier.store):
            move(unit.name, slot)
            self._device.finish()
            reached_s.append(time.perf_counter())
        began_s, fetched_s, stored_s = reached_s
        return fetched_s - began_s, stored_s - fetched_s

    @contextmanager
    def present(self, index: int) -> Iterator[None]:
        """A unit's states are here meanwhile, outside of any step; changes are lost."""
        if index not in self._units:
            yield
            return
        unit = self._units[index]
        slot = page_tensor(unit.size_bytes, self._device)
        unit.tier.fetch(unit.name, slot)
        self._device.finish()
        unit.attach(slot)
        yield
        unit.detach()

    def _slot(self, key: Key) -> Tensor:
        if key not in self._slots:
            largest = max(unit.size_bytes for unit in self._units.values())
            self._slots[key] = page_tensor(largest, self._device)
        return self._slots[key]
