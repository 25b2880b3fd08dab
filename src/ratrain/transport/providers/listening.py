"""Where an engine listens: the sockets of its providers, and the connections they accept."""

from __future__ import annotations

import contextlib
import logging
import shutil
import socket
from collections.abc import Callable

from ratrain.errors import HandshakeFailed, ProviderUnavailable, TransportError
from ratrain.proof import Callers
from ratrain.transport.config import Config
from ratrain.transport.loop.driver import Driver
from ratrain.transport.providers import folders
from ratrain.transport.providers.handshakes import Handshakes, Side, drop, set_congestion
from ratrain.transport.providers.ofi import Devices
from ratrain.transport.wire import nics
from ratrain.transport.wire.address import Endpoint

_log = logging.getLogger("ratrain.transport")


class Listeners:
    """The listening sockets of one engine."""

    def __init__(self, config: Config, driver: Driver, devices: Devices) -> None:
        self._config = config
        self._driver = driver
        self._sockets: list[tuple[socket.socket, Endpoint]] = []
        self._folder = ""
        self.nics: list[nics.Nic] = []
        self.callers = Callers()
        try:
            self._open(devices)
        except BaseException:
            self.close()
            raise

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where peers find them."""
        return tuple(end for _, end in self._sockets)

    def start(self, handshakes: Handshakes) -> None:
        """Begin to accept."""
        for sock, end in self._sockets:
            sock.setblocking(False)
            self._driver.add(sock.fileno(), self._acceptor(handshakes, sock, end))

    def close(self) -> None:
        """Stop listening."""
        for sock, _ in self._sockets:
            self._driver.remove(sock.fileno())
            sock.close()
        self._sockets.clear()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _open(self, devices: Devices) -> None:
        """Open the sockets of the providers asked for."""
        if "shm" in self._config.providers:
            folders.sweep()
            self._folder, path = folders.create()
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.bind(path)
            self._listen(sock, Endpoint("shm", "shm", path))
        stream = [p for p in self._config.providers if p in ("sock", "ofi")]
        self.nics = nics.choose(self._config.nics) if stream else []
        for provider in stream:
            for nic in self.nics:
                if provider == "ofi":
                    devices.open(nic.name, nic.host)
                sock = self._bound(nic)
                port = sock.getsockname()[1]
                self._listen(sock, Endpoint(provider, nic.name, nic.host, port))

    def _bound(self, nic: nics.Nic) -> socket.socket:
        """A TCP socket at the NIC's address."""
        sock = socket.socket(nics.family(nic.host), socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._config.congestion:
                set_congestion(sock, self._config.congestion)
            sock.bind(nics.place(nic.host, 0, nic))
        except OSError as error:
            sock.close()
            what = f"cannot listen on {nic.host}: {error.strerror}"
            raise ProviderUnavailable(what, place=nic.name) from error
        except ProviderUnavailable:
            sock.close()
            raise
        return sock

    def _listen(self, sock: socket.socket, end: Endpoint) -> None:
        sock.listen(128)
        self._sockets.append((sock, end))

    # --- accepting ------------------------------------------------------------------------

    def _acceptor(
        self, handshakes: Handshakes, listener: socket.socket, end: Endpoint
    ) -> Callable[[int], None]:
        def on_events(_: int) -> None:
            with contextlib.suppress(OSError):
                sock, peer = listener.accept()
                self.callers.add(sock, str(peer[0]) if peer else "")
                handshakes.spawn(self._welcome, handshakes, sock, end)

        return on_events

    def _welcome(self, handshakes: Handshakes, accepted: socket.socket, end: Endpoint) -> None:
        """One handshake; the peer's connection goes to the engine, or is refused."""
        core, lock = handshakes.core, self._driver.lock
        sock: socket.socket | None = accepted
        side = Side(end.provider, end.nic, None)
        try:
            side = handshakes.side(end.provider, end.nic)
            secured, theirs = handshakes.welcome(accepted, side)
            sock = secured
            with lock:
                if not handshakes.closed.is_set():
                    handshakes.attach(secured, side, theirs, core.accept(theirs.address))
                    sock = None
        except (OSError, TransportError) as error:
            with lock:
                core.station.stats["refused"] += 1
                if isinstance(error, HandshakeFailed) and self.callers.is_news(error.what):
                    _log.warning("refused a connection: %s", error)
        finally:
            with lock:
                self.callers.remove(accepted)
            drop(sock, side)
