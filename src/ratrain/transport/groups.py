"""Small things on top of the engine: targets, groups with a barrier, imm blocks."""

from __future__ import annotations

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
