"""Opening connections: one for every pair of NICs of two engines, and again when one was lost."""

from __future__ import annotations

import socket
import time

from ratrain.errors import TransportError
from ratrain.transport.config import Config
from ratrain.transport.engine.peer import Peer
from ratrain.transport.providers import folders
from ratrain.transport.providers.handshakes import Handshakes, Side, drop
from ratrain.transport.wire import nics
from ratrain.transport.wire.address import Endpoint

RECONNECT_LIMIT_S = 2.0  # for one attempt, once the peer has been reached
RETRY_S = 0.05

Route = tuple[int, str, int]
"""The peer's incarnation, our NIC, and the number of the peer's endpoint."""


class Connector:
    """Opens the connections of one engine."""

    def __init__(self, config: Config, handshakes: Handshakes, local: list[nics.Nic]) -> None:
        self._config = config
        self._handshakes = handshakes
        self._nics = local
        self._trying: set[Route] = set()

    def connect(self, peer: Peer) -> None:
        """Try every missing pair of NICs, each in its own thread (called under the lock)."""
        provider = self._provider(peer)
        ends = [e for e in peer.address.endpoints if e.provider == provider]
        if provider == "shm":
            pairs = [(nics.Nic("shm", ""), 0)]
        else:
            pairs = nics.pair(self._nics, [e.host for e in ends])
        if not pairs:
            self._handshakes.core.connect_failed(peer, self._why_none(peer), stale=False)
            return
        open_ = {(k.channel.provider, k.nic, k.remote) for k in peer.links}
        for nic, index in pairs:
            end = ends[index]
            route = (peer.address.incarnation, nic.name, index)
            if route in self._trying or (provider, nic.name, end.nic) in open_:
                continue
            self._trying.add(route)
            self._handshakes.spawn(self._keep_trying, peer, nic, end, route)

    def _provider(self, peer: Peer) -> str:
        """The first of our providers that the peer offers and that can reach it; "" if none."""
        offers = {e.provider for e in peer.address.endpoints}
        for provider in self._config.providers:
            if provider in offers and (provider != "shm" or _on_this_host(peer)):
                return provider
        return ""

    def _why_none(self, peer: Peer) -> str:
        """Why no provider, or no NIC, is common to both."""
        offers = sorted({e.provider for e in peer.address.endpoints})
        if set(offers) & {"sock", "ofi"} & set(self._config.providers):
            here, there = [n.host for n in self._nics], [e.host for e in peer.address.endpoints]
            return f"no common IP version: {', '.join(here)} here, {', '.join(there)} there"
        return f"no common provider: {', '.join(self._config.providers)} here, {offers} there"

    def _keep_trying(self, peer: Peer, nic: nics.Nic, end: Endpoint, route: Route) -> None:
        """Attempt until the peer answers, its time is over, or it cannot succeed."""
        handshakes = self._handshakes
        first = peer.state == "CONNECTING"
        reason = "not reached within the connect timeout"
        stale = final = False
        try:
            while not handshakes.closed.is_set() and not final:
                left_s = peer.connect_deadline_s - time.monotonic() if first else RECONNECT_LIMIT_S
                if left_s <= 0:
                    break
                try:
                    reason = self._attempt(peer, nic, end, left_s)
                except TransportError as error:
                    reason, final = str(error), True
                except OSError as error:
                    reason = f"{end.provider} {end.host}:{end.port}: {error.strerror or error}"
                if not reason:
                    return
                stale = reason.startswith("stale:")
                if stale or not first or peer.links:
                    break
                handshakes.closed.wait(RETRY_S)
        finally:
            with handshakes.driver.lock:
                self._trying.discard(route)
                if reason and not handshakes.closed.is_set():
                    alone = not any(other[0] == route[0] for other in self._trying)
                    if stale or alone:
                        handshakes.core.connect_failed(peer, reason, stale=stale)
                    handshakes.driver.wake()

    def _attempt(self, peer: Peer, nic: nics.Nic, end: Endpoint, left_s: float) -> str:
        """One attempt; the reason why it failed, or ""."""
        handshakes = self._handshakes
        unix = end.provider == "shm"
        family = socket.AF_UNIX if unix else nics.family(end.host)
        sock: socket.socket | None = socket.socket(family, socket.SOCK_STREAM)
        side = Side(end.provider, nic.name, None)
        try:
            side = handshakes.side(end.provider, nic.name)
            deadline_s = time.monotonic() + left_s
            sock.settimeout(left_s)
            if not unix:
                sock.bind(nics.place(nic.host, 0, nic))
            sock.connect(end.host if unix else nics.place(end.host, end.port, nic))
            secured, theirs = handshakes.greet(sock, side, deadline_s)
            sock = secured
            if theirs.address.incarnation != peer.address.incarnation:
                return f"stale: {peer.address} is gone, {theirs.address} listens in its place"
            with handshakes.driver.lock:
                known = handshakes.core.peers.get(peer.address.incarnation) is peer
                if known and not handshakes.closed.is_set():
                    handshakes.attach(secured, side, theirs, peer, end.nic)
                    sock = None
            handshakes.driver.wake()
            return ""
        finally:
            drop(sock, side)


def _on_this_host(peer: Peer) -> bool:
    return peer.address.host_id == nics.host_id() and folders.is_there(peer.address)
