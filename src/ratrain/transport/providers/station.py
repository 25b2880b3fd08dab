"""An engine's place on this machine's network: its sockets, and the threads that serve them."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from ratrain.errors import EngineClosed
from ratrain.transport.config import Config
from ratrain.transport.engine.core import Core
from ratrain.transport.engine.peer import Peer
from ratrain.transport.engine.station import Station
from ratrain.transport.loop.dispatch import Dispatcher
from ratrain.transport.loop.driver import Driver
from ratrain.transport.memory.regions import Region
from ratrain.transport.providers.connecting import Connector
from ratrain.transport.providers.handshakes import Handshakes
from ratrain.transport.providers.listening import Listeners
from ratrain.transport.providers.ofi import Devices
from ratrain.transport.wire.address import Address
from ratrain.transport.wire.nics import host_id
from ratrain.transport.wire.tls import Guard


def open_sockets(config: Config) -> Core:
    """The core of a new engine that listens on this machine."""
    station = SocketStation(config)
    core = Core(station, station.connect)
    station.start(core)
    return core


class SocketStation(Station):
    """Real sockets, real time."""

    def __init__(self, config: Config) -> None:
        lock = threading.RLock()
        self.guard = None if config.tls is None else Guard(config.tls)
        self.driver = Driver(lock, config.spin_s)
        self._devices = Devices(config)
        try:
            self.listeners = Listeners(config, self.driver, self._devices)
        except BaseException:
            self._devices.close()
            self.driver.stop()
            raise
        ends = self.listeners.endpoints()
        address = Address(config.name, secrets.randbits(63) | 1, host_id(), ends)
        super().__init__(config, address, lock, time.monotonic)
        self._dispatcher = Dispatcher(config)
        self._handshakes: Handshakes | None = None
        self._connector: Connector | None = None

    def start(self, core: Core) -> None:
        """Begin to accept, to connect and to serve, for `core`."""
        handshakes = Handshakes(self.config, self.driver, core, self._devices, self.guard)
        self._handshakes = handshakes
        self._connector = Connector(self.config, handshakes, self.listeners.nics)
        self.listeners.start(handshakes)
        self.driver.start(core, self.config.name)

    def connect(self, peer: Peer) -> None:
        """Start to open the missing connections to a peer (called under the lock)."""
        assert self._connector is not None
        self._connector.connect(peer)

    def wait_until(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Part of Station."""
        if ready():
            return True
        if self.closed or not self.driver.wait_until(ready, timeout_s):
            if ready():
                return True
            if self.closed:
                raise EngineClosed("this engine was closed", place=str(self.address))
            if self.failure is not None:
                raise self.failure
            return False
        return True

    def dispatch(self, callback: Callable[..., object], *args: Any) -> None:
        """Part of Station."""
        self._dispatcher.put(callback, args)

    def callback_errors(self) -> int:
        """Part of Station."""
        return self._dispatcher.errors

    def reachable(self) -> frozenset[str]:
        """Part of Station."""
        return self._devices.reachable()

    def share(self, region: Region) -> None:
        """Part of Station."""
        assert self._handshakes is not None
        self._devices.register(self._handshakes.core, region)

    def unshare(self, region: Region) -> None:
        """Part of Station."""
        self._devices.forget(region)

    def stop_listening(self) -> None:
        """Part of Station: neither accept nor connect any more."""
        if self._handshakes is not None:
            self._handshakes.closed.set()
        self.listeners.close()

    def close(self) -> None:
        """Part of Station."""
        self.driver.stop()
        if self._handshakes is not None:
            self._handshakes.join()
        self._devices.close()
        self._dispatcher.close()
