"""One live channel to a peer: its window, its rate, the acknowledgements it owes.

    window = clamp(1.25 x rate x (round trip + SLACK_S), MIN_WINDOW_BYTES, MAX_WINDOW_BYTES)

SLACK_S allows for processes that are not scheduled at once when bytes arrive.

The rate is BBR's delivery rate (Cardwell et al., ACM Queue 2016): bytes delivered between a
piece's departure and its acknowledgement, smoothed over 8 samples.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from ratrain.transport.engine.channel import Channel, Landing
from ratrain.transport.engine.ledger import UNANSWERED, Ledger
from ratrain.transport.engine.transfer import Piece
from ratrain.transport.memory.rows import Iov
from ratrain.transport.wire import frames
from ratrain.transport.wire.frames import Head

MIN_WINDOW_BYTES: Final = 512 << 10
MAX_WINDOW_BYTES: Final = 4 << 20
SLACK_S: Final = 0.01
PULL_WINDOW_BYTES: Final = 64 << 20  # only addresses are in flight
PULL_ACK_BYTES: Final = 4 << 20  # read before they are acknowledged
PULL_PIECE_BYTES: Final = 16 << 20  # a millisecond: at 4 MiB a sixth was lost between pieces


class LinkOwner:
    """Whom a link tells about what comes in: the peer at its other end."""

    def on_control(self, link: Link, head: Head, extra: bytes) -> None:
        """A frame without payload has come."""
        raise NotImplementedError

    def on_link_down(self, link: Link, reason: str, *, reset: bool) -> None:
        """The link's connection is gone; `reset` if the peer closed it."""
        raise NotImplementedError


class Link:
    """One live channel to a peer, and what is known of its speed."""

    def __init__(
        self,
        owner: LinkOwner,
        ledger: Ledger,
        channel: Channel,
        remote: str,
        owing: list[Link],
        now: Callable[[], float],
    ) -> None:
        self._owner = owner
        self._ledger = ledger
        self._owing = owing  # the engine's links that have acknowledgements to send
        self._now = now
        self.remote = remote
        self.channel = channel
        self.nic = channel.nic
        self.alive = True
        self.unacked: dict[tuple[int, int], Piece] = {}
        self.unacked_bytes = 0
        self.window_bytes = MIN_WINDOW_BYTES
        self.rate_bytes_per_s = 0.0
        self.rtt_s = 0.0
        self.delivered_bytes = 0
        now_s = now()
        self.delivered_s = now_s
        self.heard_s = now_s
        self.pinged_s = now_s
        self._acks: list[int] = []
        self._owed_bytes = 0  # of pieces read out of the peer's memory

    # --- what the channel calls (Receiver) ------------------------------------------------

    def take(self, head: Head, data: memoryview) -> bool:
        """Part of Receiver: a whole small write, all of it at hand."""
        if self._ledger.take(head, data):
            self._owe_ack(head, 0)
            self.heard_s = self._now()
            return True
        return False

    def begin(self, head: Head, extra: bytes) -> Landing:
        """Part of Receiver."""
        return self._ledger.begin(head, extra)

    def end(self, landing: Landing, failed: int = 0) -> None:
        """Part of Receiver: count the piece, then owe its acknowledgement."""
        self.heard_s = self._now()
        answer = self._ledger.end(landing, failed)
        if answer != UNANSWERED:
            self._owe_ack(landing.head, answer)

    def control(self, head: Head, extra: bytes) -> None:
        """Part of Receiver: a frame without payload."""
        self.heard_s = self._now()
        self._owner.on_control(self, head, extra)

    def down(self, reason: str, *, reset: bool) -> None:
        """Part of Receiver: the connection is gone."""
        if self.alive:
            self._owner.on_link_down(self, reason, reset=reset)

    # --- acknowledgements -----------------------------------------------------------------

    def _owe_ack(self, head: Head, code: int) -> None:
        """Remember to acknowledge a piece (code 0: placed, else why not): with the next frame, or
        at the end of the turn. Reads that took long enough are acknowledged at once."""
        if not self._acks:
            self._owing.append(self)
            self._owed_bytes = 0
        self._acks += (head.tid, code << 56 | head.start)
        if head.flags & frames.PULL:
            self._owed_bytes += head.size
        if len(self._acks) >= 2 * 256 or self._owed_bytes >= PULL_ACK_BYTES:
            self.flush_acks()

    def flush_acks(self) -> None:
        """Send the acknowledgements owed."""
        if self._acks and self.alive:
            lead = self._owed()
            self.channel.post(*lead, None)

    def post(self, head: Head, extra: bytes = b"", payload: memoryview | Iov | None = None) -> None:
        """Send one frame, and in the same call the acknowledgements owed before it."""
        self.channel.post(head, extra, payload, self._owed() if self._acks else None)

    def _owed(self) -> tuple[Head, bytes]:
        acks, self._acks = self._acks, []
        return Head(frames.ACK, pages=len(acks) // 2), struct.pack(f"!{len(acks)}Q", *acks)

    def acked(self, piece: Piece, now_s: float) -> None:
        """Learn the rate and the round trip from one acknowledged piece."""
        self.unacked_bytes -= piece.size
        self.delivered_bytes += piece.size
        rtt_s = max(now_s - piece.sent_s, 1e-6)
        self.rtt_s = rtt_s if self.rtt_s == 0 else min(rtt_s, self.rtt_s * 1.002)
        if piece.size >= 32768:
            span_s = max(now_s - piece.delivered_s, 1e-6)
            rate = (self.delivered_bytes - piece.delivered) / span_s
            old = self.rate_bytes_per_s
            self.rate_bytes_per_s = rate if old == 0 else old + (rate - old) / 8
            window = 1.25 * self.rate_bytes_per_s * (self.rtt_s + SLACK_S)
            self.window_bytes = int(min(max(window, MIN_WINDOW_BYTES), MAX_WINDOW_BYTES))
        self.delivered_s = now_s
