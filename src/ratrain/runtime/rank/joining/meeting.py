"""Where the communicators of all ranks find each other (`step.network.communicator`).

Rank 0 listens with torch's own store, at the address at which it met the others, as long as it
trains; whoever reaches that port may read and write what communicators tell each other there
(docs/how-to/security.md). Only its number goes over the run's own, proved connections.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from ratrain.describe.runs_on import is_gpu
from ratrain.devices import Device
from ratrain.errors import RunFailed
from ratrain.runtime.rank.joining.rendezvous import Joined
from ratrain.runtime.step.network.communicator import (
    DIST,
    Carrier,
    Communicator,
    Gloo,
    Nccl,
    Store,
)
from ratrain.runtime.step.network.staged_network import Staging


def communicator_of(
    device: Device, staging: Staging | None, joined: Joined, timeout_s: float
) -> Communicator:
    """A rank's communicator with all others, for tensors of a device; all ranks call this
    together. `staging`: of one with memory of its own, which gloo does not reach."""
    try:
        store = _store(joined, timeout_s)
        carrier = _carrier(device, store, joined, timeout_s)
    except RuntimeError as error:
        because = str(error).strip().partition("\n")[0]
        raise RunFailed(
            f"rank {joined.rank} has no communicator with the others: {because}",
            place="[train] network",
            fix="check that the machines can reach each other on all ports, or set "
            'network = "sockets"',
        ) from error
    return Communicator(carrier, None if is_gpu(device.kind) else staging)


def _carrier(device: Device, store: Store, joined: Joined, timeout_s: float) -> Carrier:
    rank, world_size = joined.rank, joined.world_size
    if is_gpu(device.kind):
        return Nccl(store, rank, world_size, timeout_s, device.place)
    return Gloo(store, rank, world_size, timeout_s, joined.book[rank][0])


def _store(joined: Joined, timeout_s: float) -> Store:
    address, patience = joined.book[0][0], timedelta(seconds=timeout_s)
    if joined.rank:
        port = int(joined.everybody("")[0])
        return DIST.TCPStore(address, port, joined.world_size, False, patience)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family)
    port = int(listener.getsockname()[1])
    store = DIST.TCPStore(
        address,
        port,
        joined.world_size,
        is_master=True,
        timeout=patience,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    joined.everybody(str(port))
    return store
