"""Small things on top of the engine: targets, groups with a barrier, imm blocks, words."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratrain.transport.address import Address, Descriptor

if TYPE_CHECKING:
    from ratrain.transport.engine import Engine


@dataclass(frozen=True, slots=True)
class Target:
    """One destination of a scatter: which part of the source goes where."""

    offset: int
    size_bytes: int
    dst: Descriptor
    imm: int | None = None


class PeerGroup:
    """Peers that meet in barriers."""

    def __init__(self, engine: Engine, others: tuple[Address, ...]) -> None:
        self._engine = engine
        self.others = others

    def barrier(self, imm: int, timeout_s: float | None = None) -> None:
        """Return when every member has called `barrier(imm)` as often as this one. Raises when
        a member died or is late. Counted per member, so a fast one may be a round ahead."""
        engine = self._engine
        counter = engine.counter(imm)
        limit_s = engine.config.deadline_s if timeout_s is None else timeout_s
        for other in self.others:
            engine.imm(other, imm, deadline_s=limit_s)
        counter.take_from(self.others, limit_s)


class ImmBlock:
    """Immediates handed out for one use; after `release`, late arrivals of it are dropped."""

    def __init__(self, engine: Engine, ids: range) -> None:
        self._engine = engine
        self._ids = ids

    @property
    def values(self) -> list[int]:
        """The immediates of the present generation."""
        generations = self._engine.core.generations
        return [generations[i] << 24 | i for i in self._ids]

    def release(self) -> None:
        """Start the next generation: arrivals of the old values no longer count."""
        with self._engine.lock:
            core = self._engine.core
            for i in self._ids:
                core.counters.pop(core.generations[i] << 24 | i, None)
                core.generations[i] = (core.generations[i] + 1) & 0xFF


class Word:
    """A watched 64-bit cell, sampled by a thread of its own."""

    def __init__(
        self, engine: Engine, callback: Callable[[int, int], object], period_s: float
    ) -> None:
        self._engine = engine
        self._callback = callback
        self._period_s = period_s
        self._value = 0
        self._stopped = threading.Event()
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ratnet-word", daemon=True)
        self._thread.start()

    @property
    def value(self) -> int:
        """The present value."""
        return self._value

    def set(self, value: int) -> None:
        """Store a value; the callback sees it, or a later one."""
        self._value = value
        self._changed.set()

    def stop(self) -> None:
        """Watch no more."""
        self._stopped.set()
        self._changed.set()

    def _watch(self) -> None:
        seen = self._value
        while True:
            self._changed.wait()
            self._changed.clear()
            now = self._value
            if now != seen:
                old, seen = seen, now
                self._engine.dispatch(self._call, old, now)
            if self._stopped.wait(self._period_s):
                return

    def _call(self, old: int, new: int) -> None:
        if self._callback(old, new) is False:
            self.stop()
