"""The device itself, as the runtime uses it."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch

from ratrain.devices.deferred.backend import register, require_backward
from ratrain.devices.deferred.clocks import Access, Place
from ratrain.devices.deferred.memory import Pool
from ratrain.devices.deferred.queue import Lane, Mark, Queue
from ratrain.devices.deferred.tensor import NAME, DeferredTensor, Operators, use
from ratrain.devices.device import DeclaredOp, Marks
from ratrain.errors import SpecError
from ratrain.readers.numbers import is_number

SEED = "RATRAIN_DEFERRED_SEED"
"""The environment variable that says which random order; each rank has its own."""


class DeferredStream:
    """A lane's queue, op by op."""

    def __init__(self, device: Deferred, lane: Lane) -> None:
        self._device, self._lane = device, lane

    def begin(self, op: DeclaredOp, step: int, after: Marks, state: Callable[[int], str]) -> None:
        """An op begins behind these marks, and accesses the states that it declares."""
        queue, lane = self._device.queue, self._lane
        queue.dawdle()
        for mark in after():
            mark.wait()
        lane.doing = lambda: f"{op.word} of step {step + 1}"
        with queue.lock:
            at = queue.give(None)
            for number, writes, must_exist in op.uses:
                place = self._device.place_of(number, state)
                access = Access(lane, at, writes, 0, 1, "", lane.doing)
                found = place.declared(access, must_exist=must_exist)
                if found is not None:
                    queue.missing.append(found)
        queue.raise_missing()

    def finish(self) -> Mark:
        """Lets the device work until this lane is done; raises an order that is missing."""
        mark = self._device.queue.mark(self._lane)
        mark.wait()
        self._device.queue.raise_missing()
        return mark


class Deferred:
    """Operators run later, in a random order; freed memory is NaN; missing order is an error."""

    kind = NAME
    words = "deferred, which finds missing order"
    narrow_terms = 0

    def __init__(self, number: int = 0, seed: int | None = None) -> None:
        register()
        self.place = torch.device(NAME, 0)
        self.queue = Queue(f"{_seed() if seed is None else seed} {number}")
        self.own_memory = Pool(self.queue)
        self._states: dict[int, Place] = {}
        use(Operators(self.queue, self.own_memory))
        require_backward()

    @contextmanager
    def stream(self, lane: str) -> Generator[DeferredStream]:
        queue = self.queue
        before = queue.enter(queue.lane(lane))
        try:
            # What was made before, in no lane, is there.
            queue.mark(queue.lane("default")).wait()
            yield DeferredStream(self, queue.lane(lane))
        finally:
            queue.enter(before)

    def mark(self) -> Mark:
        return self.queue.mark()

    def name(self, value: object, words: str) -> None:
        if isinstance(value, DeferredTensor):
            value.hold.block.name = words

    def place_of(self, number: int, name: Callable[[int], str]) -> Place:
        """What is known of a state."""
        if number not in self._states:
            self._states[number] = Place(name(number))
        return self._states[number]

    def finish(self) -> None:
        """Everything is over, and seen here; another program may follow, with states of its own."""
        for lane in list(self.queue.lanes.values()):
            self.queue.mark(lane).wait()
        self._states.clear()
        self.queue.raise_missing()


def _seed() -> int:
    given = os.environ.get(SEED, "0")
    if not is_number(given):
        raise SpecError(f"{given!a} is not a whole number", place=SEED, fix=f"{SEED}=1")
    return int(given)
