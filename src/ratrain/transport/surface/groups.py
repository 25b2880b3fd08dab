"""Groups of peers that meet in barriers, and blocks of immediates."""

from __future__ import annotations

from ratrain.transport.engine.core import Core
from ratrain.transport.surface.traffic import Traffic
from ratrain.transport.wire.address import Address


class PeerGroup:
    """Peers that meet in barriers."""

    def __init__(self, engine: Traffic, others: tuple[Address, ...]) -> None:
        self._engine = engine
        self.others = others

    def barrier(self, imm: int, timeout_s: float | None = None) -> None:
        """Return when every member has called `barrier(imm)` as often as this one. Raises if a
        member died or is late. Counted per member, so a fast one may be a round ahead."""
        engine = self._engine
        counter = engine.counter(imm)
        limit_s = engine.config.deadline_s if timeout_s is None else timeout_s
        for other in self.others:
            engine.imm(other, imm, deadline_s=limit_s)
        counter.take_from(self.others, limit_s)


class ImmBlock:
    """Immediates for one use (8 bits of generation, 24 bits of id); after `release`, late arrivals
    of them are dropped."""

    def __init__(self, core: Core, ids: range) -> None:
        self._core = core
        self._ids = ids

    @property
    def values(self) -> list[int]:
        """The immediates of the present generation."""
        return [self._core.arrivals.value_of(i) for i in self._ids]

    def release(self) -> None:
        """Start the next generation: arrivals of the old values no longer count."""
        with self._core.station.lock:
            for i in self._ids:
                self._core.arrivals.renew(i)
