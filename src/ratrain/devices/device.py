"""What the runtime needs of a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

import torch


class Mark(Protocol):
    """A point in a stream."""

    def wait(self) -> None:
        """Waits until the stream has come to it."""
        ...


Marks = Callable[[], Iterable[Mark]]
"""Called by devices that want to know them."""


class DeclaredOp(Protocol):
    """An op, and what its kind says that it does."""

    @property
    def word(self) -> str: ...

    @property
    def uses(self) -> Iterable[tuple[int, bool, bool]]:
        """(the number of a state, whether it is written or freed, whether an op must have made it
        before)."""
        ...


class Stream(Protocol):
    """Work that one lane has given the device, done in order."""

    def begin(
        self, op: DeclaredOp, step: int, after: Marks, state: Callable[[int], str], /
    ) -> None:
        """An op begins. The host has waited until the marks of `after` were reached; nothing else
        orders what the op does with other lanes. `state`: a state's name for people."""
        ...

    def finish(self) -> Mark:
        """Waits until all of it is done: the end of the op."""
        ...


class Memory(Protocol):
    """What this process holds of a device's memory for tensors, since it was first asked."""

    @property
    def counts(self) -> bool:
        """Whether anything is known."""
        ...

    @property
    def held_bytes(self) -> int: ...

    @property
    def peak_bytes(self) -> int:
        """The most held at once since `reset_peak`."""
        ...

    @property
    def product_peak_bytes(self) -> int:
        """The most that the library which multiplies matrices took for itself at once, in none of
        the other figures."""
        ...

    def reset_peak(self) -> None: ...

    def limit(self, size_bytes: int) -> None:
        """From now on an allocation beyond this many bytes fails, with torch's own error."""
        ...


class Device(Protocol):
    """One device as one rank uses it."""

    @property
    def kind(self) -> str:
        """A name in `ratrain.describe.runs_on.RUNS_ON`."""
        ...

    @property
    def place(self) -> torch.device:
        """Where its tensors lie."""
        ...

    @property
    def words(self) -> str:
        """For people: "NVIDIA H100 80GB HBM3 (GPU 0)"."""
        ...

    @property
    def narrow_terms(self) -> int:
        """Terms of a sum over fp16 that it adds in fp16, before it adds that to a sum in fp32; 0:
        it adds all of them in fp32."""
        ...

    @property
    def own_memory(self) -> Memory | None:
        """Its memory where that is not the process's; None: the process's own allocator knows."""
        ...

    def stream(self, lane: str) -> AbstractContextManager[Stream]:
        """The stream of a lane, on whose thread it is entered: what the thread does on tensors goes
        there meanwhile."""
        ...

    def mark(self) -> Mark:
        """Here, in the stream of the thread that asks."""
        ...

    def name(self, value: object, words: str, /) -> None:
        """What a tensor is, for messages about its memory."""
        ...

    def finish(self) -> None:
        """Waits until the device has done everything."""
        ...
