"""Where what peers send goes: writes into regions, immediates to counters, messages to a pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ratrain.errors import SpecError
from ratrain.transport.engine.counters import Counter
from ratrain.transport.engine.station import Station
from ratrain.transport.memory.regions import RegionTable
from ratrain.transport.wire.address import Address

MAX_COUNTERS: Final = 65536  # made by arrivals that nobody has asked for


class ReceivePool:
    """How many messages of what size each peer may send unserved, and who takes them."""

    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = 0
        self.callback: Callable[[Address, bytes], None] | None = None


class Arrivals:
    """What one engine receives, of all its peers."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self.regions = RegionTable(station.address)
        self.pool = ReceivePool()
        self.counters: dict[int, Counter] = {}
        self.on_imm: Callable[[int, Address], None] | None = None
        self._generations: dict[int, int] = {}
        self._next_id = 1

    def counter(self, imm: int) -> Counter:
        """The counter of an immediate (called under the lock)."""
        counter = self.counters.get(imm)
        if counter is None:
            counter = self.counters[imm] = Counter(self._station, imm)
        return counter

    def arrive(self, source: Address, imm: int, times: int) -> None:
        """An immediate of a whole write has come."""
        station = self._station
        generation = self._generations.get(imm & 0xFFFFFF)
        if generation is not None and generation != imm >> 24:
            station.stats["stale_imm"] += times
            return
        counter = self.counters.get(imm)
        if counter is None:
            if len(self.counters) >= MAX_COUNTERS or self.on_imm is not None:
                station.stats["unclaimed_imm"] += times
                if self.on_imm is not None:
                    for _ in range(times):
                        station.dispatch(self.on_imm, imm, source)
                return
            counter = self.counters[imm] = Counter(station, imm)
        counter.arrive(source.incarnation, times)
        station.changed = True

    # --- blocks of immediates: 8 bits of generation, 24 bits of id ------------------------

    def new_ids(self, count: int) -> range:
        """Ids that were never used before."""
        ids = range(self._next_id, self._next_id + count)
        if ids.stop > 1 << 24:
            raise SpecError("no unused immediates left", fix="release blocks and reuse them")
        self._next_id = ids.stop
        for i in ids:
            self._generations[i] = 0
        return ids

    def value_of(self, id_: int) -> int:
        """The immediate of an id, in its present generation."""
        return self._generations[id_] << 24 | id_

    def renew(self, id_: int) -> None:
        """Start the id's next generation: arrivals of its old immediate no longer count."""
        self.counters.pop(self.value_of(id_), None)
        self._generations[id_] = (self._generations[id_] + 1) & 0xFF
