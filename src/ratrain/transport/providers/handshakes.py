"""How two engines meet over a new connection: TLS if asked for, proof of the secret, a channel.

This takes place in short-lived threads with a deadline, so that no stranger holds up the engine.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ratrain.errors import ProviderUnavailable
from ratrain.transport.config import Config
from ratrain.transport.engine.core import Core
from ratrain.transport.engine.peer import Peer
from ratrain.transport.loop.driver import Driver
from ratrain.transport.providers.fabric import End
from ratrain.transport.providers.ofi import Devices, FabricChannel
from ratrain.transport.providers.sealed import SealedChannel
from ratrain.transport.providers.shm import Nonce, ShmChannel, can_read
from ratrain.transport.providers.stream import StreamChannel
from ratrain.transport.wire.handshake import Hello, greet, welcome
from ratrain.transport.wire.tls import Guard
from ratrain.transport.wire.tls_socket import TlsSocket

HANDSHAKE_S = 5.0


@dataclass(frozen=True, slots=True)
class Side:
    """Our side of a connection in the making; with `ofi`, libfabric's endpoint for it."""

    provider: str
    nic: str
    end: End | None


class Handshakes:
    """What connections that were accepted and those that were opened have in common."""

    def __init__(
        self, config: Config, driver: Driver, core: Core, devices: Devices, guard: Guard | None
    ) -> None:
        self.core = core
        self.driver = driver
        self.guard = guard
        self.closed = threading.Event()
        self._config = config
        self._devices = devices
        self._nonce = Nonce()
        self._threads: set[threading.Thread] = set()

    # --- threads --------------------------------------------------------------------------

    def spawn(self, target: Callable[..., None], *args: object) -> None:
        """Run a handshake in its own thread."""

        def run() -> None:
            try:
                target(*args)
            finally:
                self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name="ratnet-hello", daemon=True)
        self._threads.add(thread)
        thread.start()

    def join(self) -> None:
        """Wait for the handshakes that are running (each ends by its deadline)."""
        for thread in list(self._threads):
            thread.join(HANDSHAKE_S)

    # --- the handshake --------------------------------------------------------------------

    def side(self, provider: str, nic: str) -> Side:
        """Our side of a new connection."""
        return Side(provider, nic, self._devices.open_end(nic) if provider == "ofi" else None)

    def welcome(self, sock: socket.socket, side: Side) -> tuple[socket.socket, Hello]:
        """The handshake of a connection that was accepted: the socket to talk over (`sock` under
        TLS, or itself), and the peer's hello. `sock` is closed if that fails."""
        deadline_s = time.monotonic() + HANDSHAKE_S
        secured, key = self._secure(sock, side, deadline_s, server=True)
        try:
            return secured, welcome(secured, key, self._hello(side), deadline_s)
        except BaseException:
            secured.close()
            raise

    def greet(
        self, sock: socket.socket, side: Side, deadline_s: float
    ) -> tuple[socket.socket, Hello]:
        """The handshake of a connection that we opened; as `welcome`."""
        secured, key = self._secure(sock, side, deadline_s, server=False)
        try:
            return secured, greet(secured, key, self._hello(side), deadline_s)
        except BaseException:
            secured.close()
            raise

    def _secure(
        self, sock: socket.socket, side: Side, deadline_s: float, *, server: bool
    ) -> tuple[socket.socket, bytes]:
        """The socket to talk over, and the key with which the secret is proved."""
        secret = self._config.secret
        if self.guard is None or side.provider == "shm":
            return sock, secret
        return self.guard.secure(sock, secret, server=server, deadline_s=deadline_s)

    def _hello(self, side: Side) -> Hello:
        probe = None
        if side.end is not None:
            probe = (0, 0, side.end.name.hex())
        if side.provider == "shm":
            probe = self._nonce.probe()
        return Hello(self.core.station.address, side.nic, probe)

    # --- the channel ----------------------------------------------------------------------

    def attach(
        self, sock: socket.socket, side: Side, theirs: Hello, peer: Peer, remote: str = ""
    ) -> None:
        """Give the authenticated connection to the engine (called under the lock)."""
        if side.provider != "shm":
            self._tune(sock)
        if self._config.send_buffer_bytes:
            size = self._config.send_buffer_bytes
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        channel = self._channel(sock, side, theirs)
        link = peer.add_link(channel, remote or theirs.nic)
        reads = side.provider == "ofi" or (side.provider == "shm" and can_read(theirs.probe))
        channel.attach(link, reads_peer=reads)
        for segment in self.core.segments:
            channel.offer(segment)
        peer.opened(link)

    def _channel(self, sock: socket.socket, side: Side, theirs: Hello) -> StreamChannel:
        if side.provider == "shm":
            return ShmChannel(self.driver, sock, theirs.probe[0] if theirs.probe else 0)
        if side.end is not None:
            name = bytes.fromhex(theirs.probe[2] if theirs.probe else "")
            return FabricChannel(self.driver, sock, side.nic, side.end, name)
        if isinstance(sock, TlsSocket):
            return SealedChannel(self.driver, sock, side.provider, side.nic)
        return StreamChannel(self.driver, sock, side.provider, side.nic)

    def _tune(self, sock: socket.socket) -> None:
        """Options of a TCP connection."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        local = str(sock.getpeername()[0]).startswith(("127.", "::1"))
        congestion = self._config.congestion or ("reno" if local else "")
        if congestion:  # nothing is congested within one host, and bbr's pacing halves the rate
            set_congestion(sock, congestion)


def drop(sock: socket.socket | None, side: Side) -> None:
    """Close what no channel has taken over."""
    if sock is not None:
        sock.close()
        if side.end is not None:
            side.end.close()


def set_congestion(sock: socket.socket, name: str) -> None:
    """Choose TCP's congestion control."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except OSError as error:
        raise ProviderUnavailable(
            f'congestion control "{name}" is not available: {error.strerror}',
            place="Config.congestion",
            fix="see /proc/sys/net/ipv4/tcp_allowed_congestion_control",
        ) from error
