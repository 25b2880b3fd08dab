"""The sending side of one peer: pieces pulled by links as they have room, resent when one dies.

A link asks for the next piece when its unacknowledged bytes leave room in its window,
`clamp(1.25 * rate * (rtt + 10 ms), 512 KiB, 4 MiB)`: a fast NIC asks more often than a slow one,
so NICs of unequal rate are all busy to the end. The last pieces wait for the link that would land
them first, even when a slower one is free.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

import numpy as np

from ratrain.errors import BadTarget, DeadlineExceeded, TransferCancelled, TransportError
from ratrain.transport import frames
from ratrain.transport.address import Address
from ratrain.transport.frames import Head
from ratrain.transport.ledger import Ledger
from ratrain.transport.link import MAX_WINDOW_BYTES, PULL_PIECE_BYTES, PULL_WINDOW_BYTES, Link
from ratrain.transport.provider import Channel, Iov, pages_iov
from ratrain.transport.transfer import Piece, Transfer, expected_link

if TYPE_CHECKING:
    from ratrain.transport.core import Core

_PAIR: Final = struct.Struct("!QQ")
_INDEX: Final = (1 << 56) - 1
SMALL_BYTES: Final = 4096
MAX_UNACKED: Final = 1024  # pieces of one link
MAX_ACTIVE: Final = 4096  # transfers begun and not ended: bounds what the receiver must remember


class Peer:
    """All that this engine knows of one other engine."""

    def __init__(self, core: Core, address: Address, *, initiator: bool) -> None:
        self.core = core
        self.address = address
        self.initiator = initiator
        self.links: list[Link] = []
        self.state = "CONNECTING"
        self.queue: deque[Transfer] = deque()
        self.waiting_messages: deque[Transfer] = deque()
        self.outstanding: OrderedDict[int, Transfer] = OrderedDict()
        self.active = 0
        self.cancels: dict[int, Transfer] = {}
        self.ledger = Ledger(core, self)
        self.since_s = core.now()
        self.connect_deadline_s = core.now() + core.config.connect_timeout_s
        self.reconnect_s = 0.0
        self.credits = 0
        self.messages_sent = 0
        self.message_bytes = 0
        self.turn = 0
        self.single_path = False
        self.resent_pieces = 0

    # --- sending --------------------------------------------------------------------------

    def submit(self, transfer: Transfer) -> None:
        """Queue a transfer, and send as much of it as the links take."""
        self.outstanding[transfer.tid] = transfer
        if transfer.kind == frames.MSG:
            self.waiting_messages.append(transfer)
            self.release_messages()
        else:
            if not self.queue and transfer.total <= SMALL_BYTES and self._send_small(transfer):
                return
            transfer.queued = True
            self.queue.append(transfer)
        self.pump()

    def release_messages(self) -> None:
        """Queue the messages for which the peer has given credit."""
        while self.waiting_messages and self.messages_sent < self.credits:
            message = self.waiting_messages.popleft()
            if message.finished:
                continue
            if message.total > self.message_bytes:
                self.settle(
                    message,
                    BadTarget(
                        f"message of {message.total} bytes, the peer's buffers hold "
                        f"{self.message_bytes}",
                        place=str(self.address),
                        fix="send it with write(), or enlarge the peer's recv_pool",
                    ),
                )
                continue
            self.messages_sent += 1
            message.queued = True
            self.queue.append(message)

    def pump(self) -> None:
        """Hand pieces to links while a link has room."""
        links = self.links
        if len(self.queue) < 2 or len(links) != 1:
            self._pump()
            return
        channel = links[0].channel
        channel.hold()  # short writes that wait go out in one call
        try:
            self._pump()
        finally:
            channel.release()

    def _pump(self) -> None:
        queue, passed = self.queue, 0
        while queue:
            transfer = queue[0]
            if not transfer.has_more or transfer.finished or transfer.cancelling:
                queue.popleft()
                transfer.queued = False
                continue
            if not transfer.started and self.active >= MAX_ACTIVE:
                return
            if transfer.on_device and not self._can_reach(transfer):
                if transfer.finished:
                    continue
                return
            link = self._pick(transfer)
            if link is None:
                if transfer.nics is None or passed >= len(queue):
                    return
                passed += 1
                queue.rotate(-1)  # its NIC is busy or gone: let the others pass
                continue
            passed = 0
            if not transfer.started:
                self.active += 1
            self._send(link, transfer.take(self._piece_bytes()))

    def _can_reach(self, transfer: Transfer) -> bool:
        """Whether device memory may be sent now. Where it never can, the transfer ends. (Whether
        the target can be reached only the peer knows: it refuses the first piece.)"""
        channels = [k.channel for k in self.links]
        kind = transfer.source_kind
        if kind == "host" or all(kind in (c.reaches or ()) for c in channels):
            waits = any(c.reaches is not None and not c.pulls for c in channels)
            return bool(channels) and not waits
        self.queue.popleft()
        transfer.queued = False
        what = f"this connection does not reach memory on {kind}"
        fix = "write it with transport.staging.Stage, or let ofi alone serve the peer"
        self.settle(transfer, BadTarget(what, place=str(self.address), fix=fix))
        return False

    def _piece_bytes(self) -> int:
        fixed = self.core.config.piece_bytes
        if fixed:
            return fixed
        pulls = bool(self.links) and self.links[0].channel.pulls
        if pulls:
            return PULL_PIECE_BYTES
        return 1 << 20 if len(self.links) == 1 else 256 << 10

    def _pick(self, transfer: Transfer) -> Link | None:
        links = self.links
        if len(links) == 1 and transfer.nics is None:
            link = links[0]
            limit = link.window_bytes
            if self.single_path:
                limit = PULL_WINDOW_BYTES if link.channel.pulls else MAX_WINDOW_BYTES
            room = link.unacked_bytes < limit
            return link if room and len(link.unacked) < MAX_UNACKED else None
        able = [k for k in links if transfer.nics is None or k.nic in transfer.nics]
        if not able:
            return None
        size = min(transfer.left_bytes(), self._piece_bytes())
        if transfer.total < 65536:
            self.turn += 1
            able.sort(key=lambda k: k.unacked_bytes)
            idle = [k for k in able if k.unacked_bytes == able[0].unacked_bytes]
            link = idle[self.turn % len(idle)]
            return link if link.unacked_bytes < link.window_bytes else None
        free = [k for k in able if k.unacked_bytes + size <= k.window_bytes or not k.unacked]
        if not free:
            return None
        link = min(free, key=lambda k: expected_link(k, size))
        left = sum(t.left_bytes() for t in list(self.queue)[:8])
        fastest = min(able, key=lambda k: expected_link(k, left))
        if fastest is not link and expected_link(fastest, left) < expected_link(link, size):
            return None  # the tail: the faster link lands all the rest sooner
        return link

    def _send_small(self, transfer: Transfer) -> bool:
        """Send a transfer of one small piece at once over the only link; false: queue it."""
        if len(self.links) != 1 or transfer.nics is not None or transfer.page_len:
            return False
        if transfer.on_device:
            return False
        link = self.links[0]
        if link.unacked_bytes >= link.window_bytes or len(link.unacked) >= MAX_UNACKED:
            return False
        if self.active >= MAX_ACTIVE:
            return False
        self.active += 1
        size = transfer.total
        transfer.cursor = size or 1
        self._depart(link, Piece(transfer, 0, size))
        floor = transfer.tid if len(self.outstanding) == 1 and not self.cancels else self._floor()
        link.post(transfer.whole_head(floor), b"", transfer.view if size else None)
        return True

    def _send(self, link: Link, piece: Piece) -> None:
        transfer = piece.transfer
        self._depart(link, piece)
        pull = link.channel.pulls and transfer.kind == frames.WRITE and piece.size >= 8192
        if transfer.page_len and transfer.page_len < link.channel.least_page_bytes:
            pull = False
        if transfer.on_device and piece.size:
            pull = link.channel.pulls
        head = transfer.head(piece, self._floor(), pull=pull)
        extra, payload = self._payload(transfer, piece, pull=pull)
        link.post(head, extra, payload)

    def _depart(self, link: Link, piece: Piece) -> None:
        transfer = piece.transfer
        piece.sent_s = self.core.now()
        piece.delivered = link.delivered_bytes
        piece.delivered_s = link.delivered_s if link.unacked else piece.sent_s
        link.unacked[transfer.tid, piece.index] = piece
        link.unacked_bytes += piece.size
        transfer.in_flight += 1

    def _floor(self) -> int:
        """The lowest transfer id that may still have pieces to come."""
        floor = next(iter(self.outstanding), self.core.last_tid)
        return min(floor, min(self.cancels)) if self.cancels else floor

    def _payload(
        self, transfer: Transfer, piece: Piece, *, pull: bool
    ) -> tuple[bytes, memoryview | Iov | None]:
        if transfer.page_len and piece.size:
            assert transfer.src_pages is not None and transfer.dst_pages is not None
            first = piece.index // transfer.page_len
            some = slice(first, first + piece.size // transfer.page_len)
            extra = transfer.dst_pages[some].astype(">u8").tobytes()
            source = transfer.src_pages[some]
            if pull:
                return extra + (source + np.uint64(transfer.base)).astype(">u8").tobytes(), None
            return extra, pages_iov(transfer.base, source, transfer.page_len)
        if pull:
            return (transfer.base + piece.index).to_bytes(8, "big"), None
        if not piece.size:
            return b"", None
        return b"", transfer.view[piece.index : piece.index + piece.size]

    # --- what comes back ------------------------------------------------------------------

    def on_control(self, link: Link, head: Head, extra: bytes) -> None:
        """Serve one frame without payload."""
        kind = head.kind
        if kind == frames.ACK:
            self._on_acks(link, extra)
        elif kind == frames.CANCEL:
            whole = self.ledger.cancel(head.tid)
            link.post(Head(frames.QUIESCED, imm=int(whole), tid=head.tid))
        elif kind == frames.QUIESCED:
            self._on_quiesced(head)
        elif kind == frames.FEATURE:
            self.pump()  # what waited to be read by the peer
        elif kind == frames.PING:
            link.post(Head(frames.PONG, start=head.start))
        elif kind == frames.CREDIT:
            self.credits = max(self.credits, head.total)
            self.message_bytes = head.size
            self.release_messages()
            self.pump()
        elif kind == frames.BYE:
            self.core.peer_down(self, "closed by the peer")

    def _on_acks(self, link: Link, extra: bytes) -> None:
        now_s = self.core.now()
        for tid, index in _PAIR.iter_unpack(extra):
            piece = link.unacked.pop((tid, index & _INDEX), None)
            if piece is None:
                continue
            link.acked(piece, now_s)
            transfer = piece.transfer
            transfer.in_flight -= 1
            code = index >> 56
            if code:
                self._on_refused(transfer, code)
                continue
            transfer.acked_bytes += piece.size
            if transfer.acked_bytes == transfer.total and not transfer.has_more:
                transfer.landed = True
                self.settle(transfer, None)
        if self.queue:
            self.pump()

    def _on_refused(self, transfer: Transfer, code: int) -> None:
        if not transfer.finished and not transfer.cancelling:
            transfer.landed = False
            reason = frames.REASONS.get(code, f"code {code}")
            self.settle(transfer, BadTarget(f"refused: {reason}", place=str(self.address)))

    def _on_quiesced(self, head: Head) -> None:
        transfer = self.cancels.pop(head.tid, None)
        if transfer is None:
            return
        transfer.landed = bool(head.imm)
        if head.imm:
            transfer.acked_bytes = transfer.total
        error = None if head.imm else TransferCancelled("cancelled", place=str(self.address))
        self.settle(transfer, error)

    def settle(self, transfer: Transfer, error: TransportError | None) -> None:
        """End a transfer and forget it, but for its pieces on the wire."""
        if self.outstanding.pop(transfer.tid, None) is not None and transfer.started:
            self.active -= 1
        transfer.finish(error)
        self.core.changed = True

    def cancel(self, transfer: Transfer, error: TransportError | None = None) -> None:
        """Stop a transfer. With `error` it ends at once (a deadline); else when the peer has
        confirmed. Never begun: nothing can land, so it ends at once as well."""
        if transfer.finished or (transfer.cancelling and error is None):
            return
        if not transfer.cancelling:
            transfer.cancelling = True
            if not transfer.started:
                transfer.landed = False
                where = str(self.address)
                self.settle(transfer, error or TransferCancelled("cancelled", place=where))
                return
            self.cancels[transfer.tid] = transfer
            if self.links:
                self.links[0].post(Head(frames.CANCEL, tid=transfer.tid))
        if error is not None:
            self.settle(transfer, error)

    def expire(self, transfer: Transfer) -> None:
        """The transfer's deadline has passed."""
        what = f"{transfer.acked_bytes} of {transfer.total} bytes landed before the deadline"
        fix = "" if self.links else "the peer was never reached: is it running, is the path open?"
        self.cancel(transfer, DeadlineExceeded(what, place=str(self.address), fix=fix))

    # --- links ----------------------------------------------------------------------------

    def add_link(self, channel: Channel, remote: str) -> Link:
        """Use a new, authenticated channel to the peer's NIC `remote`; call `opened` next."""
        link = Link(self, channel, remote, self.core.now())
        self.links.append(link)
        ends = (self.core.address.endpoints, self.address.endpoints)
        counts = [sum(e.provider == channel.provider for e in some) for some in ends]
        self.single_path = max(counts) <= 1  # no other link to leave bytes for
        self.state = "UP"
        return link

    def opened(self, link: Link) -> None:
        """The channel is attached: send what waits."""
        for transfer in list(self.cancels.values()):
            link.post(Head(frames.CANCEL, tid=transfer.tid))
        self.core.grant(self, link)
        self.pump()

    def on_link_down(self, link: Link, reason: str, *, reset: bool) -> None:
        """Take back the pieces of a dead link, and send them over the others."""
        link.alive = False
        link.channel.close()
        if link in self.links:
            self.links.remove(link)
        self.core.changed = True
        if not self.links and reset:
            self.core.peer_down(self, reason, nic=link.nic)
            return
        self.ledger.forget_link()
        for piece in link.unacked.values():
            transfer = piece.transfer
            transfer.in_flight -= 1
            if transfer.finished or transfer.cancelling:
                continue
            self.resent_pieces += 1
            transfer.returned.append(piece)
            if not transfer.queued:
                transfer.queued = True
                self.queue.appendleft(transfer)
        link.unacked.clear()
        for transfer in list(self.cancels.values()):
            if self.links:
                self.links[0].post(Head(frames.CANCEL, tid=transfer.tid))
        self.since_s = self.core.now()
        self.pump()

    def heard_s(self) -> float:
        """When anything last came from this peer."""
        return max((k.heard_s for k in self.links), default=self.since_s)
