"""The core above the providers: peers, liveness, deadlines. No thread, no socket.

Every method is called under the engine's lock. Time comes from `Station.now`, so that the tests
drive the very same code on a simulated clock.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable
from typing import Final

from ratrain.errors import EngineClosed, PeerDown, StaleDescriptor, TransportError
from ratrain.transport.engine.arrivals import Arrivals
from ratrain.transport.engine.link import Link
from ratrain.transport.engine.peer import Peer
from ratrain.transport.engine.station import Station
from ratrain.transport.engine.transfer import Transfer
from ratrain.transport.loop.driver import Work
from ratrain.transport.memory.segments import Segment
from ratrain.transport.wire import frames
from ratrain.transport.wire.address import Address
from ratrain.transport.wire.frames import Head

SWEEP_S: Final = 0.05  # least time between two checks of the peers' liveness
MAX_DEAD: Final = 4096  # peers that went down, remembered


class Core(Work):
    """The state of one engine."""

    def __init__(self, station: Station, connect: Callable[[Peer], None]) -> None:
        self.station = station
        self._connect = connect  # starts to open the links to a peer that are missing
        self.arrivals = Arrivals(station)
        self.peers: dict[int, Peer] = {}
        self.segments: list[Segment] = []
        self.on_peer_down: list[Callable[[Address, TransportError], None]] = []
        self._owing: list[Link] = []
        self._deadlines: list[tuple[float, int, Peer, Transfer]] = []
        self._sweep_s = 0.0

    # --- peers ----------------------------------------------------------------------------

    def peer(self, address: Address) -> Peer:
        """The peer at `address`; the first call starts to connect."""
        peer = self.peers.get(address.incarnation)
        if peer is None:
            peer = self._add(address, initiator=True)
            self._connect(peer)
        return peer

    def accept(self, address: Address) -> Peer:
        """The peer that has authenticated as `address`."""
        return self.peers.get(address.incarnation) or self._add(address, initiator=False)

    def _add(self, address: Address, *, initiator: bool) -> Peer:
        peer = Peer(
            self.station, self.arrivals, address, self._owing, self._lost, initiator=initiator
        )
        self.peers[address.incarnation] = peer
        self.station.dead.pop(address.incarnation, None)
        return peer

    def submit(self, peer: Peer, transfer: Transfer) -> None:
        """Send a transfer, and watch its deadline."""
        heapq.heappush(self._deadlines, (transfer.deadline_s, transfer.tid, peer, transfer))
        peer.outbox.submit(transfer)

    # --- failures -------------------------------------------------------------------------

    def peer_down(
        self, peer: Peer, reason: str, *, nic: str = "", error: TransportError | None = None
    ) -> None:
        """Fail everything that waits for `peer`, once."""
        if self.peers.get(peer.address.incarnation) is not peer:
            return
        del self.peers[peer.address.incarnation]
        peer.state = "DEAD"
        self.station.changed = True
        self.station.stats["peers_down"] += 1
        final = error or _down(peer, reason, nic)
        dead = self.station.dead
        dead[peer.address.incarnation] = final
        if len(dead) > MAX_DEAD:
            del dead[next(iter(dead))]
        for transfer in peer.outbox.unsettled():
            transfer.landed = transfer.landed or False
            transfer.finish(error or _down(peer, reason, nic, transfer.acked_bytes))
        peer.outbox.clear()
        peer.drop_links()
        for callback in self.on_peer_down:
            self.station.dispatch(callback, peer.address, final)

    def _lost(self, peer: Peer, reason: str, nic: str) -> None:
        self.peer_down(peer, reason, nic=nic)

    def break_down(self, error: Exception) -> None:
        """Part of Work: everything that waits fails, and so does every later call. The peers see
        their connections close."""
        station = self.station
        what = f"the transport's loop failed: {type(error).__name__}: {error}"
        fix = "open a new engine, and report this with the log's traceback"
        failure = TransportError(what, place=str(station.address), fix=fix)
        failure.__cause__ = error
        station.failure = failure
        for peer in list(self.peers.values()):
            try:
                self.peer_down(peer, what, error=failure)
            except Exception:  # its state may be the broken one; the others come first
                for transfer in peer.outbox.unsettled():
                    transfer.finish(failure)
        station.stop_listening()

    def connect_failed(self, peer: Peer, reason: str, *, stale: bool) -> None:
        """An attempt to reach a peer has failed; `stale`: another engine is in its place."""
        if stale:
            fix = "ask the restarted peer for new descriptors"
            error = StaleDescriptor(reason, place=str(peer.address), fix=fix)
            self.peer_down(peer, reason, error=error)
        elif not peer.links and peer.state == "CONNECTING":
            self.peer_down(peer, reason)

    def close(self) -> None:
        """Fail what is in flight, and tell the peers."""
        for peer in list(self.peers.values()):
            for link in list(peer.links):
                link.post(Head(frames.BYE))
            gone = EngineClosed("this engine was closed", place=str(self.station.address))
            self.peer_down(peer, "engine closed", error=gone)
        for segment in self.segments:
            os.close(segment.fd)
        self.segments.clear()

    # --- time -----------------------------------------------------------------------------

    def prepare(self) -> float:
        """Part of Work: acknowledge what has come; the seconds until the next deadline or ping."""
        if self._owing:
            self.flush_acks()
        due_s = 0.25 * min(self.station.config.ping_s, 4.0) if self.peers else 5.0
        if self._deadlines:
            due_s = min(due_s, max(0.0, self._deadlines[0][0] - self.station.now()))
        return due_s

    def flush_acks(self) -> None:
        """Send all acknowledgements owed."""
        owing = self._owing
        for link in owing:
            link.flush_acks()
        owing.clear()

    def tick(self) -> bool:
        """Part of Work: serve deadlines and liveness. Called after every turn, so after the events
        that have come."""
        station = self.station
        now_s = station.now()
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now_s or deadlines[0][3].finished):
            _, _, peer, transfer = heapq.heappop(deadlines)
            if not transfer.finished:
                peer.outbox.expire(transfer)
        if now_s >= self._sweep_s:
            self._sweep_s = now_s + SWEEP_S
            for peer in list(self.peers.values()):
                self._watch(peer, now_s)
        changed = station.changed
        station.changed = False
        return changed

    def _watch(self, peer: Peer, now_s: float) -> None:
        """Ping, drop or reconnect what has been silent for too long."""
        config = self.station.config
        silent_s = now_s - peer.heard_s()
        if peer.state == "CONNECTING":
            return  # the connector reports
        if silent_s > config.dead_s:
            self.peer_down(peer, f"silent for {silent_s:.1f} s")
            return
        peer.state = "SUSPECT" if silent_s > config.suspect_s else "UP"
        for link in list(peer.links):
            quiet_s = now_s - link.heard_s
            if quiet_s > config.nic_dead_s and silent_s < 1.5 * config.ping_s:
                peer.on_link_down(link, f"NIC {link.nic} silent for {quiet_s:.1f} s", reset=False)
            elif quiet_s > config.ping_s and now_s - link.pinged_s > config.ping_s:
                link.pinged_s = now_s
                link.post(Head(frames.PING))
        if peer.initiator and now_s >= peer.reconnect_s:
            peer.reconnect_s = now_s + config.reconnect_s
            self._connect(peer)


def _down(peer: Peer, reason: str, nic: str, acked_bytes: int = 0) -> PeerDown:
    fix = "restart the peer, and exchange descriptors again"
    return PeerDown(reason, place=str(peer.address), nic=nic, bytes_acked=acked_bytes, fix=fix)
