"""The unix sockets of `shm`: each in a folder of its engine, which only this user can enter."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path

from ratrain.transport.wire.address import Address

_PREFIX = "ratnet-socket-"


def create() -> tuple[str, str]:
    """A new folder, and the path of the socket in it."""
    folder = tempfile.mkdtemp(prefix=_PREFIX)
    return folder, f"{folder}/s"


def is_there(address: Address) -> bool:
    """True when an engine's socket is in this host's file system."""
    return any(e.provider == "shm" and Path(e.host).exists() for e in address.endpoints)


def sweep(older_than_s: float = 60.0) -> int:
    """Remove the socket folders that killed engines of this user have left: nothing listens in
    them. Young ones stay (their engine may be about to listen). Returns how many were removed."""
    removed = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            state = folder.stat()
            if state.st_uid != os.getuid() or time.time() - state.st_mtime < older_than_s:
                continue
            probe.settimeout(0.1)
            try:
                probe.connect(f"{folder}/s")
            except ConnectionRefusedError:
                shutil.rmtree(folder, ignore_errors=True)
                removed += 1
    return removed
