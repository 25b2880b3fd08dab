"""Which link carries the next piece of a transfer, and how large the piece is.

A link takes another piece while its unacknowledged bytes leave room in its window (`link.py`), so a
fast NIC takes more pieces than a slow one and NICs of unequal rate are all busy to the end. The
last pieces wait for the link that lands them first, even if a slower one is free.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from ratrain.transport.engine.link import (
    MAX_WINDOW_BYTES,
    PULL_PIECE_BYTES,
    PULL_WINDOW_BYTES,
    Link,
)
from ratrain.transport.engine.transfer import Transfer

MAX_UNACKED: Final = 1024  # pieces of one link
_SHORT_BYTES: Final = 65536  # shorter transfers take turns on the links


class Balance:
    """Shares the pieces for one peer among its links."""

    def __init__(self, links: list[Link], piece_bytes: int) -> None:
        self._links = links
        self._piece_bytes = piece_bytes
        self._turn = 0
        self.single_path = False  # neither side has another NIC to leave bytes for

    def piece_bytes(self) -> int:
        """The size of the next piece."""
        if self._piece_bytes:
            return self._piece_bytes
        links = self._links
        if links and links[0].channel.pulls:
            return PULL_PIECE_BYTES
        return 1 << 20 if len(links) == 1 else 256 << 10

    def pick(self, transfer: Transfer, queue: Iterable[Transfer]) -> Link | None:
        """The link for the next piece of `transfer`, the first in `queue`; None: wait."""
        links = self._links
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
        if transfer.total < _SHORT_BYTES:
            return self._turns(able)
        return self._fastest(able, transfer, queue)

    def _turns(self, able: list[Link]) -> Link | None:
        """The least busy links take turns; None if none has room."""
        self._turn += 1
        able.sort(key=lambda k: k.unacked_bytes)
        idle = [k for k in able if k.unacked_bytes == able[0].unacked_bytes]
        link = idle[self._turn % len(idle)]
        return link if link.unacked_bytes < link.window_bytes else None

    def _fastest(
        self, able: list[Link], transfer: Transfer, queue: Iterable[Transfer]
    ) -> Link | None:
        """The link with room that would land the piece first; None: wait for a faster one."""
        size = min(transfer.left_bytes(), self.piece_bytes())
        free = [k for k in able if k.unacked_bytes + size <= k.window_bytes or not k.unacked]
        if not free:
            return None
        link = min(free, key=lambda k: landing_s(k, size))
        left = sum(t.left_bytes() for t in islice(queue, 8))
        fastest = min(able, key=lambda k: landing_s(k, left))
        if fastest is not link and landing_s(fastest, left) < landing_s(link, size):
            return None  # near the end: the faster link lands all the rest sooner
        return link


def landing_s(link: Link, size: int) -> float:
    """Seconds until `size` more bytes would have landed over `link`, at its present rate."""
    if link.rate_bytes_per_s <= 0:
        return 0.0
    return (link.unacked_bytes + size) / link.rate_bytes_per_s
