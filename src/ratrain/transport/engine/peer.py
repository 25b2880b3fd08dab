"""All that an engine knows of one other engine: its links, and both directions over them."""

from __future__ import annotations

from collections.abc import Callable

from ratrain.transport.engine.arrivals import Arrivals
from ratrain.transport.engine.channel import Channel
from ratrain.transport.engine.ledger import Ledger
from ratrain.transport.engine.link import Link, LinkOwner
from ratrain.transport.engine.outbox import Outbox
from ratrain.transport.engine.station import Station
from ratrain.transport.wire import frames
from ratrain.transport.wire.address import Address
from ratrain.transport.wire.frames import Head


class Peer(LinkOwner):
    """One other engine."""

    def __init__(
        self,
        station: Station,
        arrivals: Arrivals,
        address: Address,
        owing: list[Link],
        on_down: Callable[[Peer, str, str], None],
        *,
        initiator: bool,
    ) -> None:
        self._station = station
        self._pool = arrivals.pool
        self._owing = owing
        self._on_down = on_down  # called with the reason and the NIC that told
        self.address = address
        self.initiator = initiator
        self.state = "CONNECTING"
        self.links: list[Link] = []
        self.outbox = Outbox(station, address, self.links)
        self.ledger = Ledger(arrivals, address, self._deliver, station.stats)
        self.connect_deadline_s = station.now() + station.config.connect_timeout_s
        self.reconnect_s = 0.0
        self._since_s = station.now()
        self._granted = 0  # messages that the peer may have sent in all

    # --- links ----------------------------------------------------------------------------

    def add_link(self, channel: Channel, remote: str) -> Link:
        """Use a new, authenticated channel to the peer's NIC `remote`; call `opened` next."""
        link = Link(self, self.ledger, channel, remote, self._owing, self._station.now)
        self.links.append(link)
        sides = (self._station.address.endpoints, self.address.endpoints)
        counts = [sum(e.provider == channel.provider for e in ends) for ends in sides]
        self.outbox.balance.single_path = max(counts) <= 1
        self.state = "UP"
        return link

    def opened(self, link: Link) -> None:
        """The channel is attached: send what waits."""
        self.outbox.repeat_cancels(link)
        self.grant(link)
        self.outbox.pump()

    def on_link_down(self, link: Link, reason: str, *, reset: bool) -> None:
        """Take back the pieces of a dead link, and send them over the others."""
        link.alive = False
        link.channel.close()
        if link in self.links:
            self.links.remove(link)
        self._station.changed = True
        if not self.links and reset:
            self._on_down(self, reason, link.nic)
            return
        self.ledger.forget_link()
        self.outbox.take_back(link)
        if self.links:
            self.outbox.repeat_cancels(self.links[0])
        self._since_s = self._station.now()
        self.outbox.pump()

    def drop_links(self) -> None:
        """Close all links; nothing more is placed or sent."""
        self.ledger.close()
        for link in self.links:
            link.alive = False
            link.unacked.clear()
            link.channel.close()
        self.links.clear()

    def heard_s(self) -> float:
        """When anything last came from this peer."""
        return max((k.heard_s for k in self.links), default=self._since_s)

    # --- frames without payload, and messages ---------------------------------------------

    def on_control(self, link: Link, head: Head, extra: bytes) -> None:
        """Serve one frame without payload."""
        kind = head.kind
        if kind == frames.ACK:
            self.outbox.on_acks(link, extra)
        elif kind == frames.CANCEL:
            whole = self.ledger.cancel(head.tid)
            link.post(Head(frames.QUIESCED, imm=int(whole), tid=head.tid))
        elif kind == frames.QUIESCED:
            self.outbox.on_quiesced(head.tid, whole=bool(head.imm))
        elif kind == frames.FEATURE:
            self.outbox.pump()  # what waited to be read by the peer
        elif kind == frames.PING:
            link.post(Head(frames.PONG, start=head.start))
        elif kind == frames.CREDIT:
            self.outbox.credit(head.total, head.size)
        elif kind == frames.BYE:
            self._on_down(self, "closed by the peer", "")

    def grant(self, link: Link) -> None:
        """Tell the peer how many messages it may have sent in all (so a repeat does no harm)."""
        if self._pool.count:
            self._granted = self._granted or self._pool.count
            link.post(Head(frames.CREDIT, total=self._granted, size=self._pool.size_bytes))

    def _deliver(self, data: bytes) -> None:
        self._station.dispatch(self._hand_over, data)

    def _hand_over(self, data: bytes) -> None:
        """Give a message to the user, then its buffer back to the sender."""
        try:
            if self._pool.callback is not None:
                self._pool.callback(self.address, data)
        finally:
            with self._station.lock:
                self._granted = (self._granted or self._pool.count) + 1
                if self.links:
                    self.grant(self.links[0])
