"""The memory tiers below the device, in which a rank's states wait, each as one run of bytes."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ratrain.devices import Device
from ratrain.storage import PAGE, TierStore, Traffic, in_pages, page_buffer
from ratrain.storage import Key as StoredKey


class Tier(Protocol):
    """Where states wait. `fetch` and `store` are over when they return, or with the stream that
    they were called in. `traffic`: what both have moved."""

    @property
    def traffic(self) -> Traffic: ...

    @property
    def files(self) -> TierStore | None:
        """The store of its files, where it has any."""
        ...

    def reserve(self, key: StoredKey, size_bytes: int, ahead_bytes: int = 0) -> None:
        """Makes room for a state. `ahead_bytes`: as `TierStore.reserve` has them."""
        ...

    def fetch(self, key: StoredKey, slot: Tensor) -> None: ...

    def store(self, key: StoredKey, slot: Tensor) -> None: ...

    def memory(self, key: StoredKey) -> Tensor | None:
        """A state's bytes there, where they are memory."""
        ...

    def close(self) -> None: ...


class HostTier:
    """A pool of the host's memory, page-locked for devices that copy from it. It is no part of what
    the allocator counts as the device's, which on a CPU is of the same memory."""

    def __init__(self, device: Device) -> None:
        self._pinned = device.place.type == "cuda"
        self._held: dict[StoredKey, Tensor] = {}
        self.traffic = Traffic()

    @property
    def files(self) -> TierStore | None:
        return None

    def reserve(self, key: StoredKey, size_bytes: int, ahead_bytes: int = 0) -> None:
        if self._pinned:
            self._held[key] = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
        else:
            room = torch.frombuffer(page_buffer(size_bytes), dtype=torch.uint8)
            self._held[key] = room[:size_bytes]

    def fetch(self, key: StoredKey, slot: Tensor) -> None:
        held = self._held[key]
        slot[: len(held)].copy_(held, non_blocking=True)
        self.traffic.add_read(len(held))

    def store(self, key: StoredKey, slot: Tensor) -> None:
        held = self._held[key]
        held.copy_(slot[: len(held)], non_blocking=True)
        self.traffic.add_written(len(held))

    def memory(self, key: StoredKey) -> Tensor | None:
        return self._held[key]

    def close(self) -> None:
        self._held.clear()


class DiskTier:
    """Files on a disk, through a page-locked buffer for each direction where a slot is not the
    processor's memory."""

    def __init__(self, store: TierStore, device: Device) -> None:
        self._store, self._device = store, device
        self._buffers: dict[str, Tensor] = {}

    @property
    def traffic(self) -> Traffic:
        return self._store.traffic

    @property
    def files(self) -> TierStore | None:
        return self._store

    def reserve(self, key: StoredKey, size_bytes: int, ahead_bytes: int = 0) -> None:
        self._store.reserve({key: size_bytes}, ahead_bytes)

    def fetch(self, key: StoredKey, slot: Tensor) -> None:
        size, buffer = self._store.length(key), self._buffer(f"fetch {key.family}", slot)
        self._store.read(key, buffer[:size].numpy().data)
        if buffer is not slot:
            slot[:size].copy_(buffer[:size])

    def store(self, key: StoredKey, slot: Tensor) -> None:
        size, buffer = self._store.length(key), self._buffer(f"store {key.family}", slot)
        if buffer is not slot:
            buffer[:size].copy_(slot[:size])
        self._store.write(key, buffer[:size].numpy().data)

    def memory(self, key: StoredKey) -> Tensor | None:
        return None

    def _buffer(self, use: str, slot: Tensor) -> Tensor:
        if slot.device.type == "cpu":
            return slot
        if len(self._buffers.get(use, ())) < len(slot):
            self._buffers[use] = page_tensor(len(slot), self._device, on_host=True)
        return self._buffers[use]

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
