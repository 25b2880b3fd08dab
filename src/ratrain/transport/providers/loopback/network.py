"""Engines on the simulated network: `Engine(config, LoopbackNetwork(seed).open)`.

They run the very same core as engines on real sockets; only time and the wire are simulated: delays
that reorder, duplicated frames, pieces placed by halves, links that break, peers that die with or
without a sign. One seed gives one history.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ratrain.transport.config import Config
from ratrain.transport.engine.core import Core
from ratrain.transport.engine.peer import Peer
from ratrain.transport.engine.station import Station
from ratrain.transport.loop.dispatch import Dispatcher
from ratrain.transport.providers.loopback.channel import LoopbackChannel
from ratrain.transport.providers.loopback.simulation import Faults, Simulation
from ratrain.transport.wire.address import Address, Endpoint

TICK_S: Final = 0.05
FOREVER_S: Final = 3600.0


class LoopbackNetwork(Simulation):
    """The wire and all engines on it."""

    def __init__(self, seed: int = 0, faults: Faults | None = None) -> None:
        super().__init__(seed, faults or Faults())
        self._cores: dict[int, Core] = {}
        self._calls: deque[tuple[LoopbackStation, Callable[..., object], tuple[Any, ...]]] = deque()

    def open(self, config: Config) -> Core:
        """The core of a new engine on this network."""
        incarnation = self.dice.getrandbits(63) | 1
        ends = tuple(Endpoint("loopback", f"nic{i}", "") for i in range(self.faults.nics))
        station = LoopbackStation(self, config, Address(config.name, incarnation, "loopback", ends))

        def connect(peer: Peer) -> None:
            self.at(0.001, lambda: self._open_links(core, peer))

        core = Core(station, connect)
        self._cores[incarnation] = core
        self.at(TICK_S, lambda: self._tick(core))
        return core

    def _tick(self, core: Core) -> None:
        if core.station.address.incarnation in self._cores:
            core.tick()
            self.at(TICK_S, lambda: self._tick(core))

    def run_until(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Let time pass until `ready()`; false after `timeout_s` of simulated time."""
        end_s = self.now_s + (FOREVER_S if timeout_s is None else timeout_s)
        self._settle()
        while not ready():
            if not self.next_event(end_s):
                return ready()
            self._settle()
        return True

    def call(self, station: LoopbackStation, callback: Callable[..., object], args: Any) -> None:
        """Run a callback after the present event."""
        self._calls.append((station, callback, args))

    def kill(self, address: Address, *, silently: bool) -> None:
        """The process of an engine ends, as by kill -9; `silently`: its host is unplugged."""
        core = self._cores.pop(address.incarnation)
        self.killed.add(address.incarnation)
        for peer in core.peers.values():
            for link in peer.links:
                channel = link.channel
                assert isinstance(channel, LoopbackChannel)
                channel.closed = True
                if not silently:
                    channel.tell_other("connection reset by peer", reset=True)

    def leave(self, address: Address) -> None:
        """An engine was closed."""
        self._cores.pop(address.incarnation, None)

    def _open_links(self, core: Core, peer: Peer) -> None:
        """Open the missing links between two engines."""
        if core.peers.get(peer.address.incarnation) is not peer:
            return
        other = self._cores.get(peer.address.incarnation)
        if other is None:
            if peer.state == "CONNECTING" and self.now_s >= peer.connect_deadline_s:
                core.connect_failed(peer, "connection refused", stale=False)
            elif peer.state == "CONNECTING":
                self.at(0.05, lambda: self._open_links(core, peer))
            return
        for number in range(self.faults.nics):
            nic = f"nic{number}"
            if not any(k.nic == nic for k in peer.links):
                self._open_link(core, peer, other, nic)

    def _open_link(self, core: Core, peer: Peer, other: Core, nic: str) -> None:
        here, there = core.station.address, other.station.address
        theirs = other.accept(here)
        for stale in [k for k in theirs.links if k.nic == nic]:
            stale.down("replaced", reset=False)
            theirs = other.accept(here)
        ours = LoopbackChannel(self, here.incarnation, nic)
        ours.other = LoopbackChannel(self, there.incarnation, nic)
        ours.other.other = ours
        link, their_link = peer.add_link(ours, nic), theirs.add_link(ours.other, nic)
        ours.receiver, ours.other.receiver = link, their_link
        peer.opened(link)
        theirs.opened(their_link)

    def _settle(self) -> None:
        busy = True
        while busy:
            busy = bool(self._calls)
            while self._calls:
                station, callback, args = self._calls.popleft()
                if station.address.incarnation not in self.killed:
                    station.run(callback, args)
            for core in list(self._cores.values()):
                core.flush_acks()


class LoopbackStation(Station):
    """An engine's place on a simulated network: waiting lets simulated time pass."""

    def __init__(self, network: LoopbackNetwork, config: Config, address: Address) -> None:
        super().__init__(config, address, threading.RLock(), network.now)
        self._network = network
        self._dispatcher = Dispatcher(config)  # for its report of errors: no thread is started

    def wait_until(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Part of Station."""
        return self._network.run_until(ready, timeout_s)

    def dispatch(self, callback: Callable[..., object], *args: Any) -> None:
        """Part of Station: after the present event, on the caller's thread."""
        self._network.call(self, callback, args)

    def run(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Run a callback; what it raises is counted."""
        try:
            callback(*args)
        except Exception as error:
            self._dispatcher.report(error)

    def callback_errors(self) -> int:
        """Part of Station."""
        return self._dispatcher.errors

    def stop_listening(self) -> None:
        """Part of Station."""
        self._network.leave(self.address)

    def close(self) -> None:
        """Part of Station: nothing is held."""
