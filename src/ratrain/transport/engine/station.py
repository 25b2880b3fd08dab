"""What every part of one engine shares, and how a thread waits: the engine's place on a network.

The providers bring two: real sockets and threads, and a network simulated in one process. All else
is the same code on both.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from ratrain.errors import EngineClosed, TransportError
from ratrain.transport.config import Config
from ratrain.transport.memory.regions import Region
from ratrain.transport.wire.address import Address


class Station:
    """One engine's options, address, lock, clock and counts, and the peers it has lost."""

    def __init__(
        self,
        config: Config,
        address: Address,
        lock: threading.RLock,
        now: Callable[[], float],
    ) -> None:
        self.config = config
        self.address = address
        self.lock = lock
        self.now = now
        self.dead: dict[int, TransportError] = {}  # peers that went down, by incarnation
        self.stats = {"refused": 0, "stale_imm": 0, "unclaimed_imm": 0, "peers_down": 0}
        self.changed = False  # something that a thread may wait for, since the last turn
        self.closed = False
        self.failure: TransportError | None = None
        self.last_tid = 0
        self._pid = os.getpid()

    def use(self) -> threading.RLock:
        """The lock, for a call by the user; the error if the engine can serve none."""
        if self.closed or not self.is_ours():
            what = "this engine was closed" if self.closed else "this engine belongs to the parent"
            raise EngineClosed(what, place=str(self.address), fix="open a new engine")
        if self.failure is not None:
            raise self.failure
        return self.lock

    def is_ours(self) -> bool:
        """False in a child that this process has forked."""
        return os.getpid() == self._pid

    def next_tid(self) -> int:
        """A transfer id that this engine has never used before."""
        self.last_tid += 1
        return self.last_tid

    # --- what a network brings ------------------------------------------------------------

    def wait_until(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Serve the network until `ready()`; false after `timeout_s`."""
        raise NotImplementedError

    def dispatch(self, callback: Callable[..., object], *args: Any) -> None:
        """Run a user's callback soon, without the lock."""
        raise NotImplementedError

    def callback_errors(self) -> int:
        """How many callbacks have raised."""
        raise NotImplementedError

    def reachable(self) -> frozenset[str]:
        """Kinds of device memory that a provider here reads and fills without the CPU."""
        return frozenset()

    def share(self, region: Region) -> None:
        """Let the peers' NICs read the region, where they can (called under the lock)."""

    def unshare(self, region: Region) -> None:
        """The region was revoked (called under the lock)."""

    def stop_listening(self) -> None:
        """Accept no more connections (called under the lock)."""
        raise NotImplementedError

    def close(self) -> None:
        """Free threads and sockets, once the engine has told its peers."""
        raise NotImplementedError
