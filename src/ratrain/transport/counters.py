"""Counters of immediates: sticky, per source, never twice for one write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from ratrain.errors import DeadlineExceeded, TransportError
from ratrain.transport.address import Address

if TYPE_CHECKING:
    from ratrain.transport.engine import Engine

MAX_KEPT: Final = 65536


class Counter:
    """Arrivals of one immediate value. Arrivals before any interest are kept."""

    def __init__(self, engine: Engine, imm: int) -> None:
        self._engine = engine
        self.imm = imm
        self.value = 0
        self.by_source: dict[int, int] = {}
        self.sources: frozenset[int] = frozenset()
        self._expected: list[tuple[int, Callable[[], object]]] = []

    def wait(self, n: int = 1, timeout_s: float | None = None) -> None:
        """Take `n` arrivals, waiting for them; what is over stays for the next wait.
        Raises the peer's error when one of `sources` died before enough had arrived."""

        def ready() -> bool:
            return self.value >= n or self._dead_source() is not None

        engine = self._engine
        timeout_s = engine.config.deadline_s if timeout_s is None else timeout_s
        engine.wait_until(ready, timeout_s)
        with engine.lock:
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
        """Take one arrival from each of `sources`: the barrier's wait, round by round."""
        wanted = [s.incarnation for s in sources]
        engine = self._engine
        timeout_s = engine.config.deadline_s if timeout_s is None else timeout_s

        def missing() -> list[int]:
            return [s for s in wanted if self.by_source.get(s, 0) < 1]

        def ready() -> bool:
            return all(self.by_source.get(s, 0) or s in engine.core.dead for s in wanted)

        engine.wait_until(ready, timeout_s)
        with engine.lock:
            late = missing()
            if not late:
                for source in wanted:
                    self.by_source[source] -= 1
                self.value -= len(wanted)
                return
            dead = next((engine.core.dead[s] for s in late if s in engine.core.dead), None)
        if dead is not None:
            raise dead
        raise DeadlineExceeded(
            f"{len(late)} of {len(wanted)} peers have not arrived after {timeout_s} s",
            place=f"counter {self.imm:#x}",
        )

    def expect(self, n: int, callback: Callable[[], object]) -> None:
        """Call `callback()` once when `n` arrivals are there (they are taken); one-shot.
        Several expectations are served in the order in which they were set."""
        with self._engine.lock:
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
            self._engine.dispatch(callback)

    def _dead_source(self) -> TransportError | None:
        dead = self._engine.core.dead
        return next((dead[s] for s in self.sources if s in dead), None)
