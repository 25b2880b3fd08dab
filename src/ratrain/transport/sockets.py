"""The providers `sock` (TCP) and `shm` (same host): listening, connecting, reconnecting.

`shm` is a connection over AF_UNIX whose large payloads the receiver reads out of the sender's
memory: one copy. Each side tries first whether the kernel lets it read the other's memory
(a nonce at a known address); where it does not, the payload goes through the socket.

Handshakes run in short-lived threads with a deadline, so that no stranger holds up the engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ratrain.errors import HandshakeFailed, ProviderUnavailable, TransportError
from ratrain.transport import fabric, folders, nics
from ratrain.transport.address import Address, Endpoint
from ratrain.transport.config import Config
from ratrain.transport.handshake import Hello, greet, welcome
from ratrain.transport.memory import Region
from ratrain.transport.progress import Driver
from ratrain.transport.rows import read_process
from ratrain.transport.sealed import SealedChannel
from ratrain.transport.stream import StreamChannel
from ratrain.transport.tls import Guard
from ratrain.transport.tls_socket import TlsSocket

if TYPE_CHECKING:
    from ratrain.transport.core import Core
    from ratrain.transport.peer import Peer

MAX_HANDSHAKES = 64
HANDSHAKE_S = 5.0
_TOLD = 16  # reasons of refusals that go to the log, once each: strangers must not fill it
_log = logging.getLogger("ratrain.transport")


class Sockets:
    """Everything that opens sockets, for one engine."""

    def __init__(self, config: Config, driver: Driver) -> None:
        self._config = config
        self._driver = driver
        self._core: Core | None = None
        self._listeners: list[tuple[socket.socket, Endpoint]] = []
        self._nics: list[nics.Nic] = []
        self.devices: dict[str, fabric.Device] = {}  # of the provider `ofi`, by NIC
        self._folder = ""
        self._trying: set[tuple[int, str, int]] = set()
        self._handshakes = 0
        self._told: set[str] = set()
        self._guard = None if config.tls is None else Guard(config.tls)
        self._closed = threading.Event()
        self._threads: set[threading.Thread] = set()
        self._nonce = ctypes.create_string_buffer(secrets.token_bytes(16), 16)

    def listen(self) -> tuple[Endpoint, ...]:
        """Open the listening sockets of the providers asked for."""
        if "shm" in self._config.providers:
            folders.sweep()
            self._folder, path = folders.create()
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.bind(path)
            self._serve(sock, Endpoint("shm", "shm", path))
        stream = [p for p in self._config.providers if p in ("sock", "ofi")]
        self._nics = nics.choose(self._config.nics) if stream else []
        for provider in stream:
            for nic in self._nics:
                if provider == "ofi":
                    far = self._config.devices
                    self.devices[nic.name] = fabric.Device(self._config.fabric, nic.host, far)
                sock = socket.socket(nics.family(nic.host), socket.SOCK_STREAM)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    if self._config.congestion:
                        _set_congestion(sock, self._config.congestion)
                    sock.bind(nics.place(nic.host, 0, nic))
                except OSError as error:
                    sock.close()
                    self.close()
                    raise ProviderUnavailable(
                        f"cannot listen on {nic.host}: {error.strerror}", place=nic.name
                    ) from error
                self._serve(sock, Endpoint(provider, nic.name, nic.host, sock.getsockname()[1]))
        return tuple(end for _, end in self._listeners)

    def start(self, core: Core) -> None:
        """Begin to accept."""
        self._core = core
        for sock, end in self._listeners:
            sock.setblocking(False)
            self._driver.add(sock.fileno(), self._acceptor(sock, end))

    def close(self) -> None:
        """Stop listening and connecting."""
        self._closed.set()
        for sock, _ in self._listeners:
            self._driver.remove(sock.fileno())
            sock.close()
        self._listeners.clear()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def register(self, core: Core, region: Region) -> None:
        """Let peers of the provider `ofi` read the region (called under the lock)."""
        for nic, device in self.devices.items():
            key = device.register(region)
            if key is None:
                continue
            for peer in core.peers.values():
                for link in peer.links:
                    if link.nic == nic and isinstance(link.channel, fabric.FabricChannel):
                        link.channel.announce(key)

    def reachable(self) -> frozenset[str]:
        """Kinds of device memory that `ofi` reaches."""
        return frozenset(self._config.devices) if self.devices else frozenset()

    def forget(self, region: Region) -> None:
        """The region was revoked (called under the lock)."""
        for device in self.devices.values():
            device.forget(region)

    def close_devices(self) -> None:
        """Free libfabric's things, when no connection is left."""
        for device in self.devices.values():
            device.close()
        self.devices.clear()

    def join(self) -> None:
        """Wait for the handshake threads (each ends by its deadline)."""
        for thread in list(self._threads):
            thread.join(HANDSHAKE_S)

    # --- accepting ------------------------------------------------------------------------

    def _serve(self, sock: socket.socket, end: Endpoint) -> None:
        sock.listen(128)
        self._listeners.append((sock, end))

    def _acceptor(self, listener: socket.socket, end: Endpoint):
        def on_events(_: int) -> None:
            with contextlib.suppress(OSError):
                sock, _peer = listener.accept()
                if self._handshakes >= MAX_HANDSHAKES:
                    sock.close()
                else:
                    self._handshakes += 1
                    self._spawn(self._welcome, sock, end)

        return on_events

    def _welcome(self, accepted: socket.socket, end: Endpoint) -> None:
        core = self._core
        assert core is not None
        sock: socket.socket | None = accepted
        far = self._open_end(end.provider, end.nic)
        try:
            mine = self._hello(core, end.provider, end.nic, far)
            deadline_s = time.monotonic() + HANDSHAKE_S
            sock, key = self._secure(accepted, end.provider, deadline_s, server=True)
            theirs = welcome(sock, key, mine, deadline_s)
            with self._driver.lock:
                if not self._closed.is_set():
                    peer = core.accept(theirs.address)
                    self._attach(sock, end.provider, end.nic, theirs, peer, far)
                    sock = None
        except (OSError, TransportError) as error:
            with self._driver.lock:
                core.stats["refused"] += 1
                self._tell(error)
        finally:
            with self._driver.lock:
                self._handshakes -= 1
            _drop(sock, far)

    # --- connecting -----------------------------------------------------------------------

    def connect(self, peer: Peer) -> None:
        """Try every missing pair of NICs, in threads of their own (called under the lock)."""
        for provider in self._choice(peer):
            ends = [e for e in peer.address.endpoints if e.provider == provider]
            have = {(k.channel.provider, k.nic, k.remote) for k in peer.links}
            if provider == "shm":
                plan = [(nics.Nic("shm", ""), 0)]
            else:
                plan = nics.pair(self._nics, [e.host for e in ends])
            if not plan:
                break
            for nic, index in plan:
                end = ends[index]
                mark = (peer.address.incarnation, nic.name, index)
                if mark in self._trying or (provider, nic.name, end.nic) in have:
                    continue
                self._trying.add(mark)
                self._spawn(self._greet, peer, nic, end, mark)
            return
        core = self._core
        assert core is not None
        offers = sorted({e.provider for e in peer.address.endpoints})
        what = f"no common provider: {', '.join(self._config.providers)} here, {offers} there"
        if set(offers) & {"sock", "ofi"} & set(self._config.providers):
            here, there = [n.host for n in self._nics], [e.host for e in peer.address.endpoints]
            what = f"no common IP version: {', '.join(here)} here, {', '.join(there)} there"
        core.connect_failed(peer, what, stale=False)

    def _choice(self, peer: Peer) -> list[str]:
        here = nics.host_id()
        offers = {e.provider for e in peer.address.endpoints}
        found: list[str] = []
        for provider in self._config.providers:
            if provider not in offers:
                continue
            if provider == "shm" and (
                peer.address.host_id != here or not folders.is_there(peer.address)
            ):
                continue
            found.append(provider)
        return found[:1]

    def _greet(self, peer: Peer, nic: nics.Nic, end: Endpoint, mark: tuple[int, str, int]) -> None:
        core = self._core
        assert core is not None
        first = peer.state == "CONNECTING"
        reason = "not reached within the connect timeout"
        stale = False
        final = False
        try:
            while not self._closed.is_set() and not final:
                left_s = peer.connect_deadline_s - time.monotonic() if first else 2.0
                if left_s <= 0:
                    break
                try:
                    reason = self._attempt(core, peer, nic, end, left_s)
                except TransportError as error:
                    reason, final = str(error), True
                except OSError as error:
                    reason = f"{end.provider} {end.host}:{end.port}: {error.strerror or error}"
                if not reason:
                    return
                stale = reason.startswith("stale:")
                if stale or not first or peer.links:
                    break
                self._closed.wait(0.05)
        finally:
            with self._driver.lock:
                self._trying.discard(mark)
                if reason and not self._closed.is_set():
                    alone = not any(m[0] == mark[0] for m in self._trying)
                    if stale or alone:
                        core.connect_failed(peer, reason, stale=stale)
                    self._driver.wake()

    def _attempt(self, core: Core, peer: Peer, nic: nics.Nic, end: Endpoint, left_s: float) -> str:
        """One try; the reason why it failed, or nothing."""
        unix = end.provider == "shm"
        family = socket.AF_UNIX if unix else nics.family(end.host)
        sock = socket.socket(family, socket.SOCK_STREAM)
        far = self._open_end(end.provider, nic.name)
        try:
            deadline_s = time.monotonic() + left_s
            sock.settimeout(left_s)
            if not unix:
                sock.bind(nics.place(nic.host, 0, nic))
            sock.connect(end.host if unix else nics.place(end.host, end.port, nic))
            mine = self._hello(core, end.provider, nic.name, far)
            sock, key = self._secure(sock, end.provider, deadline_s, server=False)
            theirs = greet(sock, key, mine, deadline_s)
            if theirs.address.incarnation != peer.address.incarnation:
                return f"stale: {peer.address} is gone, {theirs.address} listens in its place"
            with self._driver.lock:
                known = core.peers.get(peer.address.incarnation) is peer
                if known and not self._closed.is_set():
                    self._attach(sock, end.provider, nic.name, theirs, peer, far, end.nic)
                    sock = None
            self._driver.wake()
            return ""
        finally:
            _drop(sock, far)

    # --- both -----------------------------------------------------------------------------

    def _secure(
        self, sock: socket.socket, provider: str, deadline_s: float, *, server: bool
    ) -> tuple[socket.socket, bytes]:
        """The socket to talk over (under TLS where that is asked for; `sock` is closed if it
        fails), and the key with which the secret is proved."""
        secret = self._config.secret
        if self._guard is None or provider == "shm":
            return sock, secret
        return self._guard.secure(sock, secret, server=server, deadline_s=deadline_s)

    def _tell(self, error: Exception) -> None:
        """Log why somebody was refused, the first time (called under the lock)."""
        if isinstance(error, HandshakeFailed) and len(self._told) < _TOLD:
            if error.what not in self._told:
                _log.warning("refused a connection: %s", error)
            self._told.add(error.what)

    def _open_end(self, provider: str, nic: str) -> fabric.End | None:
        return self.devices[nic].open_end() if provider == "ofi" else None

    def _hello(self, core: Core, provider: str, nic: str, far: fabric.End | None) -> Hello:
        probe = None
        if far is not None:
            probe = (0, 0, far.name.hex())
        if provider == "shm":
            probe = (os.getpid(), ctypes.addressof(self._nonce), self._nonce.raw.hex())
        return Hello(core.address, nic, probe)

    def _attach(
        self,
        sock: socket.socket,
        provider: str,
        nic: str,
        theirs: Hello,
        peer: Peer,
        far: fabric.End | None,
        remote: str = "",
    ) -> None:
        if provider != "shm":
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            local = str(sock.getpeername()[0]).startswith(("127.", "::1"))
            congestion = self._config.congestion or ("reno" if local else "")
            if congestion:  # inside one host nothing is congested, and bbr's pacing halves the rate
                _set_congestion(sock, congestion)
        if self._config.send_buffer_bytes:
            size = self._config.send_buffer_bytes
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        pid = theirs.probe[0] if theirs.probe else 0
        if isinstance(sock, TlsSocket):
            channel = SealedChannel(self._driver, sock, provider, nic)
        elif far is None:
            channel = StreamChannel(self._driver, sock, provider, nic, pid)
        else:
            channel = fabric.FabricChannel(self._driver, sock, provider, nic, 0)
            channel.use(far, bytes.fromhex(theirs.probe[2] if theirs.probe else ""))
        link = peer.add_link(channel, remote or theirs.nic)
        reads = provider == "ofi" or (provider == "shm" and _can_read(theirs.probe))
        channel.attach(link, reads_peer=reads)
        if provider == "shm":
            for segment in peer.core.segments:
                channel.offer(segment)
        peer.opened(link)

    def _spawn(self, target: Callable[..., None], *args: object) -> None:
        def run() -> None:
            try:
                target(*args)
            finally:
                self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name="ratnet-hello", daemon=True)
        self._threads.add(thread)
        thread.start()


def _drop(sock: socket.socket | None, far: fabric.End | None) -> None:
    """Close what no channel has taken over."""
    if sock is not None:
        sock.close()
        if far is not None:
            far.close()


def _set_congestion(sock: socket.socket, name: str) -> None:
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except OSError as error:
        raise ProviderUnavailable(
            f'congestion control "{name}" is not to be had: {error.strerror}',
            place="Config.congestion",
            fix="see /proc/sys/net/ipv4/tcp_allowed_congestion_control",
        ) from error


def _can_read(probe: tuple[int, int, str] | None) -> bool:
    """True when the kernel lets us read the peer's memory."""
    if probe is None:
        return False
    pid, address, nonce = probe
    found = np.zeros(16, np.uint8)
    local = np.array([[found.ctypes.data, 16]], np.uint64)
    remote = np.array([[address, 16]], np.uint64)
    return read_process(pid, local, remote) and found.tobytes().hex() == nonce


def address_of(config: Config, ends: tuple[Endpoint, ...]) -> Address:
    """The address of an engine that starts now."""
    return Address(config.name, secrets.randbits(63) | 1, nics.host_id(), ends)
