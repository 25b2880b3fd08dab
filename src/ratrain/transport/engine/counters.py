"""Counters of immediates: arrivals are kept, per source, and never counted twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ratrain.errors import DeadlineExceeded, TransportError
from ratrain.transport.engine.station import Station
from ratrain.transport.wire.address import Address


class Counter:
    """Arrivals of one immediate value, also of those that came before anyone asked."""

    def __init__(self, station: Station, imm: int) -> None:
        self._station = station
        self.imm = imm
        self.value = 0
        self.by_source: dict[int, int] = {}
        self.sources: frozenset[int] = frozenset()
        self._expected: list[tuple[int, Callable[[], object]]] = []

    def wait(self, n: int = 1, timeout_s: float | None = None) -> None:
        """Wait for `n` arrivals and take them; any surplus stays for the next wait. Raises the
        peer's error if one of `sources` died before enough had arrived."""

        def ready() -> bool:
            return self.value >= n or self._dead_source() is not None

        station = self._station
        timeout_s = station.config.deadline_s if timeout_s is None else timeout_s
        station.wait_until(ready, timeout_s)
        with station.lock:
            if self.value >= n:
                self.value -= n
                return
            dead = self._dead_source()
        if dead is not None:
            raise dead
        raise DeadlineExceeded(
            f"{self.value} of {n} arrivals after {timeout_s} s", place=f"counter {self.imm:#x}"
        )

    def take_from(self, sources: Iterable[Address], timeout_s: float | None = None) -> None:
        """Wait for one arrival from each of `sources`, and take them: one round of a barrier."""
        wanted = [s.incarnation for s in sources]
        station = self._station
        timeout_s = station.config.deadline_s if timeout_s is None else timeout_s

        def missing() -> list[int]:
            return [s for s in wanted if self.by_source.get(s, 0) < 1]

        def ready() -> bool:
            return all(self.by_source.get(s, 0) or s in station.dead for s in wanted)

        station.wait_until(ready, timeout_s)
        with station.lock:
            late = missing()
            if not late:
                for source in wanted:
                    self.by_source[source] -= 1
                self.value -= len(wanted)
                return
            dead = next((station.dead[s] for s in late if s in station.dead), None)
        if dead is not None:
            raise dead
        raise DeadlineExceeded(
            f"{len(late)} of {len(wanted)} peers have not arrived after {timeout_s} s",
            place=f"counter {self.imm:#x}",
        )

    def expect(self, n: int, callback: Callable[[], object]) -> None:
        """Call `callback()` once, when `n` arrivals are there; it takes them. Several
        expectations are served in the order in which they were set."""
        with self._station.lock:
            self._expected.append((n, callback))
            self._serve()

    def arrive(self, source: int, times: int) -> None:
        """Count `times` arrivals (called under the engine's lock)."""
        self.value += times
        self.by_source[source] = self.by_source.get(source, 0) + times
        if self._expected:
            self._serve()

    def _serve(self) -> None:
        while self._expected and self.value >= self._expected[0][0]:
            n, callback = self._expected.pop(0)
            self.value -= n
            self._station.dispatch(callback)

    def _dead_source(self) -> TransportError | None:
        dead = self._station.dead
        return next((dead[s] for s in self.sources if s in dead), None)
