"""States of units that wait in another memory tier, and the slots in which they are used.

A unit's master weights and moments are tensors of any dtype and shape, its view is one flat tensor.
Away, each is one run of bytes; in a slot they are tensors again, at the same places of that run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ratrain.describe.optimizers import Plain
from ratrain.devices import Device
from ratrain.runtime.step.below import Tier, page_tensor
from ratrain.runtime.step.optimizer import OwnedPart
from ratrain.runtime.step.schedule import Key
from ratrain.storage import Key as StoredKey

Clock = Callable[[], float]
"""Seconds: on the wall, or of a processor."""
HEADER_BYTES = 640
"""Of a file, for what it says of itself, and of each of its tensors; more is not needed."""
ALIGN = 64
"""Bytes: where a tensor of any dtype may begin."""


class AwayUnit(Protocol):
    """One unit's states of one sort. They are nowhere else than in the tier or in a slot."""

    @property
    def key(self) -> StoredKey: ...

    @property
    def tier(self) -> Tier: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def ahead_bytes(self) -> int:
        """Of its file: for what a checkpoint that takes the file says of it."""
        ...

    def fill(self, slot: Tensor) -> None:
        """Copies the states into a slot."""
        ...

    def attach(self, slot: Tensor) -> None:
        """From now on the states are what the slot holds."""
        ...

    def detach(self) -> None:
        """They are nowhere."""
        ...


class AwayOptimizer:
    """Master weights and optimizer states, by the parts that they belong to."""

    def __init__(
        self, name: str, tier: Tier, parts: Iterable[OwnedPart], stays: Iterable[Tensor]
    ) -> None:
        self.key, self.tier, self._parts = StoredKey("optimizer", name), tier, tuple(parts)
        memory = [(t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in stays]
        # In fp32 the weights are their own master: a window on what compute reads, which stays.
        self._masters = [
            not any(begin <= part.weights.data_ptr() < end for begin, end in memory)
            for part in self._parts
        ]
        self.places = self._places()
        self.ahead_bytes = HEADER_BYTES * (1 + len(self.places))
        self.size_bytes = self._each(lambda tensor, _: tensor)

    def _places(self) -> Mapping[tuple[int, int], int]:
        """Where what is kept as fp32 numbers, one an element, begins: by its part's number and its
        own, 0 for the master weights and from 1 on for states."""
        begins: list[int] = []

        def begun(tensor: Tensor, at: int) -> Tensor:
            begins.append(at)
            return tensor

        self._each(begun)
        left, places = iter(begins), dict[tuple[int, int], int]()
        for number, (part, with_master) in enumerate(zip(self._parts, self._masters, strict=True)):
            held = (Plain(part.weights), *part.states) if with_master else part.states
            for state, each in enumerate(held, 0 if with_master else 1):
                at = next(left)
                if isinstance(each, Plain):
                    places[number, state] = at
                else:
                    tensors: list[Tensor] = []
                    mapped(each, lambda tensor, found=tensors: found.append(tensor) or tensor)
                    for _ in tensors[1:]:
                        next(left)
        return places

    def fill(self, slot: Tensor) -> None:
        def filled(tensor: Tensor, at: int) -> Tensor:
            _placed(tensor, slot, at).copy_(tensor)
            return tensor

        self._each(filled)

    def attach(self, slot: Tensor) -> None:
        self._each(lambda tensor, at: _placed(tensor, slot, at))

    def detach(self) -> None:
        """Whoever reads them gets torch's error, not another unit's."""
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


@dataclass
class AwayFlat:
    """What compute, or a gather, reads of a unit's weights, or a gradient that adds up: ops find it
    in the slot that the program names."""

    name: str
    tier: Tier
    first: Tensor | None  # until it is stored
    sort: str = "view"
    dtype: torch.dtype = torch.float32
    elements: int = 0
    ahead_bytes: int = 0

    def __post_init__(self) -> None:
        assert self.first is not None
        self.dtype, self.elements = self.first.dtype, self.first.numel()

    @property
    def key(self) -> StoredKey:
        return StoredKey(self.sort, self.name)

    @property
    def size_bytes(self) -> int:
        return self.elements * self.dtype.itemsize

    def of(self, slot: Tensor) -> Tensor:
        """It in a slot."""
        return slot[: self.size_bytes].view(self.dtype)

    def fill(self, slot: Tensor) -> None:
        assert self.first is not None
        self.of(slot).copy_(self.first)
        self.first = None

    def attach(self, slot: Tensor) -> None:
        pass

    def detach(self) -> None:
        pass


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
    """All units of a rank whose states of one sort wait in another tier. Lanes use it at once, each
    with units and slots of its own ops."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._units: dict[int, AwayUnit] = {}
        self._moved: set[int] = set()
        self._slots: dict[Key, Tensor] = {}
        self._inside: dict[Key, AwayUnit] = {}

    def __contains__(self, unit: int) -> bool:
        return unit in self._units

    def add(self, index: int, unit: AwayUnit) -> None:
        """A unit's states go to the tier."""
        unit.tier.reserve(unit.key, unit.size_bytes, unit.ahead_bytes)
        slot = page_tensor(unit.size_bytes, self._device)
        unit.fill(slot)
        unit.tier.store(unit.key, slot)
        self._device.finish()
        unit.detach()
        self._units[index] = unit
        self._moved.add(index)

    def unit(self, index: int) -> AwayUnit | None:
        """A unit whose states of this sort wait elsewhere."""
        return self._units.get(index)

    def hold(self, index: int, unit: AwayUnit) -> None:
        """A unit that needs slots, and never leaves them for the tier."""
        if isinstance(unit, AwayFlat):
            unit.first = None
        self._units[index] = unit

    def fetch(self, index: int, slot: Key) -> None:
        """Brings a unit's states into a slot, in the place of what was there."""
        if slot in self._inside:
            self._inside[slot].detach()
        unit = self._inside[slot] = self._units[index]
        unit.tier.fetch(unit.key, self.slot(slot))
        unit.attach(self.slot(slot))

    def store(self, index: int, slot: Key) -> None:
        """Takes them back. They can be read here until the slot is filled again."""
        unit = self._units[index]
        unit.tier.store(unit.key, self.slot(slot))

    def flat(self, index: int, slot: Key) -> Tensor:
        """A unit's flat tensor in a slot."""
        unit = self._units[index]
        assert isinstance(unit, AwayFlat)
        return unit.of(self.slot(slot))

    def moved_bytes(self, index: int) -> int:
        """What a unit's fetch moves, and its store; 0: it never leaves its slots."""
        return self._units[index].size_bytes if index in self._moved else 0

    def times_s(self, index: int, clock: Clock) -> tuple[float, float]:
        """What a unit's fetch and its store take, outside of any step."""
        unit = self._units[index]
        slot = page_tensor(unit.size_bytes, self._device)
        reached_s = [clock()]
        for move in (unit.tier.fetch, unit.tier.store):
            move(unit.key, slot)
            self._device.finish()
            reached_s.append(clock())
        began_s, fetched_s, stored_s = reached_s
        return fetched_s - began_s, stored_s - fetched_s

    @contextmanager
    def present(self, index: int) -> Iterator[Tensor | None]:
        """A unit's states are here meanwhile, outside of any step; changes are lost."""
        if index not in self._units:
            yield None
            return
        unit = self._units[index]
        slot = page_tensor(unit.size_bytes, self._device)
        unit.tier.fetch(unit.key, slot)
        self._device.finish()
        unit.attach(slot)
        yield slot
        unit.detach()

    def slot(self, key: Key) -> Tensor:
        """The memory of a slot."""
        if key not in self._slots:
            largest = max(unit.size_bytes for unit in self._units.values())
            self._slots[key] = page_tensor(largest, self._device)
        return self._slots[key]
