"""The core above the providers: peers, liveness, deadlines, counters. No thread, no socket.

Every method is called under the engine's lock. Time comes from `now`, so that the tests drive
the very same code on a simulated clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ratrain.errors import PeerDown, StaleDescriptor, TransportError
from ratrain.transport import frames
from ratrain.transport.address import Address
from ratrain.transport.config import Config
from ratrain.transport.counters import MAX_KEPT, Counter
from ratrain.transport.frames import Head
from ratrain.transport.link import Link
from ratrain.transport.memory import RegionTable
from ratrain.transport.peer import Peer
from ratrain.transport.segments import Segment
from ratrain.transport.transfer import Transfer

if TYPE_CHECKING:
    from ratrain.transport.engine import Engine

SWEEP_S: Final = 0.05  # least time between two looks at the liveness of peers


class Core:
    """The state of one engine."""

    def __init__(
        self,
        engine: Engine,
        config: Config,
        address: Address,
        now: Callable[[], float],
        connect: Callable[[Peer], None],
    ) -> None:
        self.engine = engine
        self.config = config
        self.address = address
        self.now = now
        self.connect = connect
        self.regions = RegionTable(address)
        self.peers: dict[int, Peer] = {}
        self.dead: dict[int, TransportError] = {}
        self.counters: dict[int, Counter] = {}
        self.generations: dict[int, int] = {}
        self.segments: list[Segment] = []
        self.owing: list[Link] = []
        self.changed = False
        self.failure: TransportError | None = None
        self.last_tid = 0
        self.message_bytes = 0
        self.message_count = 0
        self.on_message: Callable[[Address, bytes], None] | None = None
        self.on_imm: Callable[[int, Address], None] | None = None
        self.on_peer_down: list[Callable[[Address, TransportError], None]] = []
        self.stats = {"refused": 0, "stale_imm": 0, "unclaimed_imm": 0, "peers_down": 0}
        self._granted: dict[int, int] = {}
        self._deadlines: list[tuple[float, int, Transfer]] = []
        self._sweep_s = 0.0

    # --- sending --------------------------------------------------------------------------

    def peer(self, address: Address) -> Peer:
        """The peer at `address`; the first call starts to connect."""
        peer = self.peers.get(address.incarnation)
        if peer is None:
            peer = self.peers[address.incarnation] = Peer(self, address, initiator=True)
            self.dead.pop(address.incarnation, None)
            self.connect(peer)
        return peer

    def next_tid(self) -> int:
        """A transfer id, never used before in this life of the engine."""
        self.last_tid += 1
        return self.last_tid

    def submit(self, transfer: Transfer) -> None:
        """Send a transfer, and watch its deadline."""
        heapq.heappush(self._deadlines, (transfer.deadline_s, transfer.tid, transfer))
        transfer.peer.submit(transfer)

    # --- receiving ------------------------------------------------------------------------

    def accept(self, address: Address) -> Peer:
        """The peer that has authenticated as `address`."""
        peer = self.peers.get(address.incarnation)
        if peer is None:
            peer = self.peers[address.incarnation] = Peer(self, address, initiator=False)
            self.dead.pop(address.incarnation, None)
        return peer

    def arrive(self, peer: Peer, imm: int, times: int) -> None:
        """An immediate of a whole write has come."""
        generation = self.generations.get(imm & 0xFFFFFF)
        if generation is not None and generation != imm >> 24:
            self.stats["stale_imm"] += times
            return
        counter = self.counters.get(imm)
        if counter is None:
            if len(self.counters) >= MAX_KEPT or self.on_imm is not None:
                self.stats["unclaimed_imm"] += times
                if self.on_imm is not None:
                    for _ in range(times):
                        self.engine.dispatch(self.on_imm, imm, peer.address)
                return
            counter = self.counters[imm] = Counter(self.engine, imm)
        counter.arrive(peer.address.incarnation, times)
        self.changed = True

    def deliver(self, peer: Peer, data: bytes) -> None:
        """A message has come: hand it over, then give its buffer back to the sender."""
        self.engine.dispatch(self._hand_over, peer, data)

    def _hand_over(self, peer: Peer, data: bytes) -> None:
        try:
            if self.on_message is not None:
                self.on_message(peer.address, data)
        finally:
            with self.engine.lock:
                self._granted[id(peer)] = self._granted.get(id(peer), self.message_count) + 1
                if peer.links:
                    self.grant(peer, peer.links[0])

    def grant(self, peer: Peer, link: Link) -> None:
        """Tell a peer how many messages it may have sent in all (so a repeat does no harm)."""
        if self.message_count:
            total = self._granted.setdefault(id(peer), self.message_count)
            link.post(Head(frames.CREDIT, total=total, size=self.message_bytes))

    # --- failures and time ----------------------------------------------------------------

    def peer_down(
        self, peer: Peer, reason: str, *, nic: str = "", error: TransportError | None = None
    ) -> None:
        """Fail everything that waits for `peer`, once."""
        if self.peers.get(peer.address.incarnation) is not peer:
            return
        del self.peers[peer.address.incarnation]
        self._granted.pop(id(peer), None)
        peer.state = "DEAD"
        self.changed = True
        self.stats["peers_down"] += 1
        place = str(peer.address)
        fix = "restart the peer, and exchange descriptors anew"
        final = error or PeerDown(reason, place=place, nic=nic, fix=fix)
        self.dead[peer.address.incarnation] = final
        if len(self.dead) > 4096:
            del self.dead[next(iter(self.dead))]
        peer.ledger.close()
        for transfer in [*peer.outstanding.values(), *peer.cancels.values()]:
            transfer.landed = transfer.landed or False
            own = error or PeerDown(
                reason, place=place, nic=nic, bytes_acked=transfer.acked_bytes, fix=fix
            )
            transfer.finish(own)
        peer.outstanding.clear()
        peer.cancels.clear()
        peer.queue.clear()
        peer.waiting_messages.clear()
        links, peer.links = peer.links, []
        for link in links:
            link.alive = False
            link.unacked.clear()
            link.channel.close()
        for callback in self.on_peer_down:
            self.engine.dispatch(callback, peer.address, final)

    def break_down(self, cause: Exception) -> None:
        """A part raised what it never should: everything that waits fails, and so does every
        later call. The peers see their connections close."""
        what = f"the transport's loop failed: {type(cause).__name__}: {cause}"
        fix = "open a new engine, and report this with the log's traceback"
        self.failure = TransportError(what, place=str(self.address), fix=fix)
        self.failure.__cause__ = cause
        for peer in list(self.peers.values()):
            try:
                self.peer_down(peer, what, error=self.failure)
            except Exception:  # its state may be the broken one; the others come first
                for transfer in list(peer.outstanding.values()):
                    transfer.finish(self.failure)
        self.engine.stop_listening()

    def connect_failed(self, peer: Peer, reason: str, *, stale: bool) -> None:
        """An attempt to reach a peer has failed for good, or for now."""
        if stale:
            fix = "ask the restarted peer for new descriptors"
            self.peer_down(
                peer, reason, error=StaleDescriptor(reason, place=str(peer.address), fix=fix)
            )
        elif not peer.links and peer.state == "CONNECTING":
            self.peer_down(peer, reason)

    def flush_acks(self) -> None:
        """Send all acknowledgements owed."""
        owing, self.owing = self.owing, []
        for link in owing:
            link.flush_acks()

    def tick(self) -> None:
        """Serve deadlines and liveness. Called after every turn, so after arrived events."""
        now_s = self.now()
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now_s or deadlines[0][2].finished):
            transfer = heapq.heappop(deadlines)[2]
            if not transfer.finished:
                transfer.peer.expire(transfer)
        if now_s < self._sweep_s:
            return
        self._sweep_s = now_s + SWEEP_S
        for peer in list(self.peers.values()):
            self._watch(peer, now_s)

    def next_due_s(self, now_s: float) -> float:
        """Seconds until `tick` must be called again."""
        due = 0.25 * min(self.config.ping_s, 4.0) if self.peers else 5.0
        if self._deadlines:
            due = min(due, max(0.0, self._deadlines[0][0] - now_s))
        return due

    def _watch(self, peer: Peer, now_s: float) -> None:
        config = self.config
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
            self.connect(peer)
