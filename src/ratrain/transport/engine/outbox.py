"""The sending side of one peer: transfers are queued, cut into pieces, sent, and settled.

Pieces are given to links as they have room (`balance.py`), and sent again when a link dies.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from typing import Final

from ratrain.errors import BadTarget, DeadlineExceeded, TransferCancelled, TransportError
from ratrain.transport.engine.balance import MAX_UNACKED, Balance
from ratrain.transport.engine.link import Link
from ratrain.transport.engine.station import Station
from ratrain.transport.engine.transfer import Carrier, Piece, Transfer
from ratrain.transport.wire import frames
from ratrain.transport.wire.address import Address
from ratrain.transport.wire.frames import Head

_PAIR: Final = struct.Struct("!QQ")
_INDEX: Final = (1 << 56) - 1
SMALL_BYTES: Final = 4096
LEAST_PULL_BYTES: Final = 8192  # smaller pieces are sent, not read by the peer
MAX_ACTIVE: Final = 4096  # transfers begun and not ended: bounds what the receiver must remember


class Outbox(Carrier):
    """The transfers to one peer that have not ended."""

    def __init__(self, station: Station, address: Address, links: list[Link]) -> None:
        self._station = station
        self._address = address
        self._links = links
        self.balance = Balance(links, station.config.piece_bytes)
        self.resent_pieces = 0
        self._outstanding: OrderedDict[int, Transfer] = OrderedDict()
        self._queue: deque[Transfer] = deque()
        self._active = 0
        self._cancels: dict[int, Transfer] = {}
        self._waiting_messages: deque[Transfer] = deque()
        self._messages_sent = 0
        self._credits = 0  # messages that the peer has made room for, in all
        self._message_bytes = 0

    # --- queueing -------------------------------------------------------------------------

    def submit(self, transfer: Transfer) -> None:
        """Queue a transfer, and send as much of it as the links take."""
        self._outstanding[transfer.tid] = transfer
        if transfer.kind == frames.MSG:
            self._waiting_messages.append(transfer)
            self._release_messages()
        else:
            if not self._queue and transfer.total <= SMALL_BYTES and self._send_small(transfer):
                return
            transfer.queued = True
            self._queue.append(transfer)
        self.pump()

    def credit(self, messages: int, message_bytes: int) -> None:
        """The peer has made room for so many messages in all, of at most `message_bytes`."""
        self._credits = max(self._credits, messages)
        self._message_bytes = message_bytes
        self._release_messages()
        self.pump()

    def _release_messages(self) -> None:
        """Queue the messages for which the peer has room."""
        while self._waiting_messages and self._messages_sent < self._credits:
            message = self._waiting_messages.popleft()
            if message.finished:
                continue
            if message.total > self._message_bytes:
                what = f"a message of {message.total} bytes: the peer's buffers hold "
                fix = "send it with write(), or enlarge the peer's recv_pool"
                self._settle(message, self._bad_target(f"{what}{self._message_bytes}", fix))
                continue
            self._messages_sent += 1
            message.queued = True
            self._queue.append(message)

    def pump(self) -> None:
        """Give pieces to links while a link has room."""
        links = self._links
        if len(self._queue) < 2 or len(links) != 1:
            self._pump()
            return
        channel = links[0].channel
        channel.hold()  # short writes that wait leave in one call
        try:
            self._pump()
        finally:
            channel.release()

    def _pump(self) -> None:
        queue, passed = self._queue, 0
        while queue:
            transfer = queue[0]
            if not transfer.has_more or transfer.finished or transfer.cancelling:
                queue.popleft()
                transfer.queued = False
                continue
            if not transfer.started and self._active >= MAX_ACTIVE:
                return
            if transfer.on_device and not self._can_reach(transfer):
                if transfer.finished:
                    continue
                return
            link = self.balance.pick(transfer, queue)
            if link is None:
                if transfer.nics is None or passed >= len(queue):
                    return
                passed += 1
                queue.rotate(-1)  # its NIC is busy or gone: let the others pass
                continue
            passed = 0
            if not transfer.started:
                self._active += 1
            self._send(link, transfer.take(self.balance.piece_bytes()))

    def _can_reach(self, transfer: Transfer) -> bool:
        """Whether device memory may be sent now. Where it never can be, the transfer ends. (Whether
        the target can be reached only the peer knows: it refuses the first piece.)"""
        channels = [k.channel for k in self._links]
        kind = transfer.source_kind
        if kind == "host" or all(kind in (c.reaches or ()) for c in channels):
            waits = any(c.reaches is not None and not c.pulls for c in channels)
            return bool(channels) and not waits
        self._queue.popleft()
        transfer.queued = False
        what = f"this connection does not reach memory on {kind}"
        fix = "write it with transport.Stage, or let only ofi serve the peer"
        self._settle(transfer, self._bad_target(what, fix))
        return False

    # --- sending --------------------------------------------------------------------------

    def _send_small(self, transfer: Transfer) -> bool:
        """Send a transfer of one small piece at once over the only link; false: queue it."""
        if len(self._links) != 1 or transfer.nics is not None or transfer.page_len:
            return False
        if transfer.on_device:
            return False
        link = self._links[0]
        if link.unacked_bytes >= link.window_bytes or len(link.unacked) >= MAX_UNACKED:
            return False
        if self._active >= MAX_ACTIVE:
            return False
        self._active += 1
        size = transfer.total
        transfer.cursor = size or 1
        self._depart(link, Piece(transfer, 0, size))
        alone = len(self._outstanding) == 1 and not self._cancels
        floor = transfer.tid if alone else self._floor()
        link.post(transfer.whole_head(floor), b"", transfer.view if size else None)
        return True

    def _send(self, link: Link, piece: Piece) -> None:
        transfer = piece.transfer
        self._depart(link, piece)
        channel = link.channel
        pull = channel.pulls and transfer.kind == frames.WRITE and piece.size >= LEAST_PULL_BYTES
        if transfer.page_len and transfer.page_len < channel.least_page_bytes:
            pull = False
        if transfer.on_device and piece.size:
            pull = channel.pulls
        head = transfer.head(piece, self._floor(), pull=pull)
        extra, payload = transfer.payload(piece, pull=pull)
        link.post(head, extra, payload)

    def _depart(self, link: Link, piece: Piece) -> None:
        transfer = piece.transfer
        piece.sent_s = self._station.now()
        piece.delivered = link.delivered_bytes
        piece.delivered_s = link.delivered_s if link.unacked else piece.sent_s
        link.unacked[transfer.tid, piece.index] = piece
        link.unacked_bytes += piece.size
        transfer.in_flight += 1

    def _floor(self) -> int:
        """The lowest transfer id that may still have pieces to come."""
        floor = next(iter(self._outstanding), self._station.last_tid)
        return min(floor, min(self._cancels)) if self._cancels else floor

    # --- what comes back ------------------------------------------------------------------

    def on_acks(self, link: Link, pairs: bytes) -> None:
        """Pieces were placed, or refused."""
        now_s = self._station.now()
        for tid, index in _PAIR.iter_unpack(pairs):
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
                self._settle(transfer, None)
        if self._queue:
            self.pump()

    def _on_refused(self, transfer: Transfer, code: int) -> None:
        if not transfer.finished and not transfer.cancelling:
            transfer.landed = False
            reason = frames.REASONS.get(code, f"code {code}")
            self._settle(transfer, self._bad_target(f"refused: {reason}"))

    def on_quiesced(self, tid: int, *, whole: bool) -> None:
        """The peer confirms a cancellation; `whole`: all had been placed before."""
        transfer = self._cancels.pop(tid, None)
        if transfer is None:
            return
        transfer.landed = whole
        if whole:
            transfer.acked_bytes = transfer.total
        self._settle(transfer, None if whole else self._cancelled())

    def _settle(self, transfer: Transfer, error: TransportError | None) -> None:
        """End a transfer and forget it, except for its pieces on the wire."""
        if self._outstanding.pop(transfer.tid, None) is not None and transfer.started:
            self._active -= 1
        transfer.finish(error)
        self._station.changed = True

    # --- cancelling, and failing links ----------------------------------------------------

    def cancel(self, transfer: Transfer, error: TransportError | None = None) -> None:
        """Stop a transfer. With `error` it ends at once (a deadline), else when the peer has
        confirmed. One that has not begun ends at once as well: nothing of it can land."""
        if transfer.finished or (transfer.cancelling and error is None):
            return
        if not transfer.cancelling:
            transfer.cancelling = True
            if not transfer.started:
                transfer.landed = False
                self._settle(transfer, error or self._cancelled())
                return
            self._cancels[transfer.tid] = transfer
            if self._links:
                self._links[0].post(Head(frames.CANCEL, tid=transfer.tid))
        if error is not None:
            self._settle(transfer, error)

    def expire(self, transfer: Transfer) -> None:
        """The transfer's deadline has passed."""
        what = f"{transfer.acked_bytes} of {transfer.total} bytes landed before the deadline"
        fix = "" if self._links else "check that the peer is running and can be reached"
        self.cancel(transfer, DeadlineExceeded(what, place=str(self._address), fix=fix))

    def repeat_cancels(self, link: Link) -> None:
        """Send all unconfirmed cancellations over another link."""
        for tid in list(self._cancels):
            link.post(Head(frames.CANCEL, tid=tid))

    def take_back(self, link: Link) -> None:
        """Queue the unacknowledged pieces of a dead link again."""
        for piece in link.unacked.values():
            transfer = piece.transfer
            transfer.in_flight -= 1
            if transfer.finished or transfer.cancelling:
                continue
            self.resent_pieces += 1
            transfer.returned.append(piece)
            if not transfer.queued:
                transfer.queued = True
                self._queue.appendleft(transfer)
        link.unacked.clear()

    def unsettled(self) -> list[Transfer]:
        """The transfers that have not ended, or whose end the peer has not confirmed."""
        return [*self._outstanding.values(), *self._cancels.values()]

    def clear(self) -> None:
        """Forget everything."""
        self._outstanding.clear()
        self._cancels.clear()
        self._queue.clear()
        self._waiting_messages.clear()

    def _cancelled(self) -> TransferCancelled:
        return TransferCancelled("cancelled", place=str(self._address))

    def _bad_target(self, what: str, fix: str = "") -> BadTarget:
        return BadTarget(what, place=str(self._address), fix=fix)
