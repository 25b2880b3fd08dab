"""Where the ranks of one attempt find each other, and nothing that an earlier attempt left.

torch's elastic agent keeps one key-value store for all attempts of a run (since 2.5, pytorch
issue 135712), and counts restarts on each machine by itself. So rank 0 names each attempt anew,
and a rank believes in a name only when rank 0 has answered it there.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from uuid import uuid4

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from ratrain.errors import RunFailed

_NAME = "ratrain-attempt"
_PAUSE_S = 0.02
_KNOCK_S = 0.25
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Set by torch's agents, whose store is there before any rank is."""

REACH_S = 60.0
"""So long a rank looks for the store. Where rank 0 makes it (a launcher other than torch's), the
ranks must begin this close to each other."""


def join(backend: str, timeout_s: float) -> None:
    """Makes torch's default group of the ranks of this attempt; RANK and WORLD_SIZE are set."""
    timeout = timedelta(seconds=timeout_s)
    patience_s = min(timeout_s, REACH_S)
    # torch tries twice, and logs a page for each time that it meets nobody.
    _await_listener(patience_s)
    try:
        found = rendezvous(
            "env://", timeout=timeout if _hosts() else timedelta(seconds=patience_s / 2)
        )
        shared, rank, world_size = next(iter(found))
    except (dist.DistError, ValueError) as error:
        raise _unreached(str(error).splitlines()[0]) from error
    shared.set_timeout(timeout)
    store = attempt_store(shared, rank, world_size, timeout_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)


def _hosts() -> bool:
    """Whether this process makes the store itself: rank 0 of a launcher that has none."""
    return os.environ["RANK"] == "0" and os.environ.get(_AGENT_STORE) != "True"


def _await_listener(patience_s: float) -> None:
    """Returns when anybody answers where the launcher's store should be."""
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if _hosts() or not (address and port.isdigit() and int(port) < 1 << 16):
        return  # torch names what is missing
    end_s = time.monotonic() + patience_s
    while True:
        try:
            left_s = max(end_s - time.monotonic(), _PAUSE_S)
            socket.create_connection((address, int(port)), timeout=left_s).close()
            return
        except OSError as error:
            if time.monotonic() + _KNOCK_S > end_s:
                said = error.strerror or str(error)
                raise _unreached(f"{said}, for {patience_s:g} s") from error
        time.sleep(_KNOCK_S)


def _unreached(why: str) -> RunFailed:
    address, port = os.environ.get("MASTER_ADDR", "?"), os.environ.get("MASTER_PORT", "?")
    return RunFailed(
        f"the launcher's store was not reached at MASTER_ADDR {address}, MASTER_PORT {port}: {why}",
        place=f"rank {os.environ['RANK']}",
        fix="see that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are the launcher's, and "
        "that its machine can be reached",
    )


def attempt_store(shared: Store, rank: int, world_size: int, timeout_s: float) -> Store:
    """A part of the store that all ranks of this attempt have, and no earlier one had."""
    own = uuid4().hex
    if rank == 0:
        shared.set(_NAME, own)
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        name = _read(shared, _NAME)
        if name:
            shared.set(f"{name}/came-{rank}", own)
            if rank == 0:
                came = [_read(shared, f"{name}/came-{other}") for other in range(world_size)]
                if all(came):
                    shared.set(f"{name}/together", ",".join(came))
            if own in _read(shared, f"{name}/together").split(","):
                return PrefixStore(name, shared)
        time.sleep(_PAUSE_S)
    raise RunFailed(
        f"waited {timeout_s:g} s for all {world_size} ranks to come",
        place=f"rank {rank}",
        fix="see that every machine runs its ranks and reaches MASTER_ADDR",
    )


def _read(store: Store, key: str) -> str:
    """The value of a key, "" where it has none; `get` alone would wait for one."""
    return store.get(key).decode() if store.check([key]) else ""
