"""Which rendezvous of a run's ranks is the last: it alone writes into the run's folder.

A rank 0 that hung, or was cut off, may wake up when others have met without it: what it was told
before is enough for a line in the metrics, or for the name of a checkpoint, which are no news then.
"""

from __future__ import annotations

import os
from pathlib import Path

from ratrain.errors import PeerDown
from ratrain.readers.writing import write_whole


class Attempt:
    """One, seen from its rank 0. A later one puts another file in the place of its own."""

    def __init__(self, owner: Path) -> None:
        owner.mkdir(exist_ok=True)
        self._path = owner / "met"
        write_whole(self._path, f"{os.getpid()}\n")
        self._mark = self._now

    @property
    def _now(self) -> tuple[int, int] | None:
        try:
            there = self._path.stat()
        except OSError:
            return None
        return there.st_ino, there.st_mtime_ns

    def require(self) -> None:
        """Raises where ranks have met again since."""
        if self._now != self._mark:
            raise PeerDown("the run's ranks have met again without this one, which was silent")
