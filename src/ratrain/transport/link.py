"""One live channel to a peer: its window, its rate, the acknowledgements it owes.

    window = clamp(1.25 x rate x (round trip + SLACK_S), MIN_WINDOW_BYTES, MAX_WINDOW_BYTES)

SLACK_S stands for processes that are not scheduled at once when bytes arrive.

The rate is BBR's delivery rate (Cardwell et al., ACM Queue 2016): bytes delivered between a
piece's departure and its acknowledgement, smoothed over 8 samples.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from ratrain.transport import frames
from ratrain.transport.frames import Head
from ratrain.transport.provider import Channel, Iov, Landing
from ratrain.transport.transfer import Piece

if TYPE_CHECKING:
    from ratrain.transport.peer import Peer

MIN_WINDOW_BYTES: Final = 512 << 10
MAX_WINDOW_BYTES: Final = 4 << 20
SLACK_S: Final = 0.01
PULL_WINDOW_BYTES: Final = 64 << 20  # only addresses are under way
PULL_ACK_BYTES: Final = 4 << 20  # read, then told
PULL_PIECE_BYTES: Final = 16 << 20  # a millisecond: at 4 MiB a sixth went to what is between


class Link:
    """One live channel to a peer, and what is known of its speed."""

    def __init__(self, peer: Peer, channel: Channel, remote: str, now_s: float) -> None:
        self.peer = peer
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
        self.delivered_s = now_s
        self.heard_s = now_s
        self.pinged_s = now_s
        self.acks: list[int] = []
        self._owed_bytes = 0  # of pieces read out of the peer's memory

    def take(self, head: Head, data: memoryview) -> bool:
        """Part of Receiver: a whole small write, all of it at hand."""
        if self.peer.ledger.take(self, head, data):
            self.heard_s = self.peer.core.now()
            return True
        return False

    def begin(self, head: Head, extra: bytes) -> Landing:
        """Part of Receiver."""
        return self.peer.ledger.begin(head, extra)

    def end(self, landing: Landing, failed: int = 0) -> None:
        """Part of Receiver: count the piece, then owe an acknowledgement."""
        self.heard_s = self.peer.core.now()
        self.peer.ledger.end(self, landing, failed)

    def control(self, head: Head, extra: bytes) -> None:
        """Part of Receiver: a frame without payload."""
        self.heard_s = self.peer.core.now()
        self.peer.on_control(self, head, extra)

    def down(self, reason: str, *, reset: bool) -> None:
        """Part of Receiver: the connection is gone."""
        if self.alive:
            self.peer.on_link_down(self, reason, reset=reset)

    def owe_ack(self, head: Head, code: int) -> None:
        """Remember to acknowledge a piece (code 0: placed, else why not): it goes with the next
        frame, or at the end of the turn; reads that took long enough are told at once."""
        if not self.acks:
            self.peer.core.owing.append(self)
            self._owed_bytes = 0
        self.acks += (head.tid, code << 56 | head.start)
        if head.flags & frames.PULL:
            self._owed_bytes += head.size
        if len(self.acks) >= 2 * 256 or self._owed_bytes >= PULL_ACK_BYTES:
            self.flush_acks()

    def flush_acks(self) -> None:
        """Send the acknowledgements owed."""
        if self.acks and self.alive:
            lead = self._owed()
            self.channel.post(*lead, None)

    def post(self, head: Head, extra: bytes = b"", payload: memoryview | Iov | None = None) -> None:
        """Send one frame, and the acknowledgements owed before it in the same call."""
        self.channel.post(head, extra, payload, self._owed() if self.acks else None)

    def _owed(self) -> tuple[Head, bytes]:
        acks, self.acks = self.acks, []
        return Head(frames.ACK, pages=len(acks) // 2), struct.pack(f"!{len(acks)}Q", *acks)

    def acked(self, piece: Piece, now_s: float) -> None:
        """Learn rate and round trip from one acknowledged piece (as BBR's delivery rate:
        bytes delivered between the piece's departure and its acknowledgement)."""
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
