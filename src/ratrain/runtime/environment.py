"""What a launcher passes to its ranks, and where: the names of environment variables.

What engines pass is in `engines/places.py`.
These are our own launcher's, which sits on the ranks' machine. None of them is a secret.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from ratrain.engines.places import Place, place_of
from ratrain.errors import SpecError
from ratrain.readers.numbers import is_number

LAUNCHER = "RATRAIN_LAUNCHER"
"""The launcher's process id: a rank whose parent is another process has lost it."""

FOLLOWED = "RATRAIN_FOLLOWED"
"""Set where the launcher draws the curves, so that rank 0 need not."""

MERGED = "RATRAIN_MERGED"
"""Set where what all hosts print is shown as one text, so that one rank alone reports."""

COMMAND = "RATRAIN_COMMAND"
"""What started the ranks of a host, as the owner of the run's folder is called; else torchrun."""

LISTENER = "RATRAIN_LISTENER"
"""The file descriptor of a listening socket at MASTER_ADDR and MASTER_PORT, which rank 0 inherits:
so the port is a free one, and no one else can have taken it meanwhile."""

ORDERS = "RATRAIN_ORDERS"
"""The file descriptor of a socket over which the launcher and the rank speak (`rank/orders.py`)."""

START = "RATRAIN_START"
"""What the launcher calls this start of the run's ranks, where it tells starts apart."""

PORT = "RATRAIN_PORT"
"""A user's choice, on all hosts the same: the port at which rank 0 is met."""

ADDRESS = "RATRAIN_ADDRESS"
"""A user's choice, for each host: its address for the other ranks. Several, with commas between
them: one on each of several networks, in an order that is the same on all hosts."""

_LOOPBACK = "127.0.0.1"
_ELSEWHERE = "192.0.2.1"
"""An address that nobody has (RFC 5737)."""
_LAST_PORT = 65535
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Set to "True" by torchrun, whose store then listens at MASTER_PORT itself."""


@dataclass(frozen=True)
class Launch:
    """One rank's place among all, and where rank 0 is met. Engines that say no such place let
    rank 0 choose one, which it writes to a file: `address` and `port` are then where it probably is
    for ranks that do not see the file."""

    rank: int
    world_size: int
    address: str
    port: int
    listener: int | None = None
    own_address: str | None = None  # of this host, where it was chosen
    networks: tuple[str, ...] = ()  # its further addresses, one on each of further networks
    ranks_here: int | None = None  # on this host, where the launcher gives it
    told_in: Path | None = None  # the file, where rank 0 chooses
    place: Place | None = None  # where an engine has put this rank; None: our own launcher has
    start: str = ""  # what our own launcher calls this start of the ranks

    @property
    def one_host(self) -> bool:
        """Whether all ranks are known to be on this host."""
        return self.ranks_here == self.world_size

    @property
    def rendezvous_address(self) -> str:
        return f"{self.address}, port {self.port}"


def launch_of(environ: Mapping[str, str], run: Path | None = None) -> Launch:
    """What the launcher passed to this process, of the run in folder `run`. Where all ranks of an
    engine are on one host, they meet on its loopback, whatever it says."""
    place = place_of(environ)
    address, port = place.address, place.port
    ours = LAUNCHER in environ
    told_in: Path | None = None
    if not address and place.mark and run is not None:
        address, port = place.likely_address or own_address(place), place.likely_port or 0
        told_in = run / "owner" / f"rendezvous-{_file_name(place.mark)}.json"
    if environ.get(PORT):
        port = _chosen_port(environ)
    elif port is not None and environ.get(_AGENT_STORE) == "True":
        port += 1  # torchrun's own store has MASTER_PORT
    if not address or port is None:
        raise _not_set("MASTER_PORT" if address else "MASTER_ADDR")
    chosen, *networks = environ.get(ADDRESS, "").split(",")
    return Launch(
        place.rank,
        place.world_size,
        "127.0.0.1" if place.ranks_here == place.world_size and not ours else address,
        port,
        _listener(environ),
        chosen or (own_address(place) if told_in and not place.rank else None),
        tuple(networks),
        place.ranks_here,
        told_in,
        None if ours else place,
        environ.get(START, ""),
    )


def own_address(place: Place) -> str:
    """The address of this host for the ranks on others: that from which it reaches another host
    of the job; where none is known, that of its name, else that of its way to the world."""
    if place.ranks_here == place.world_size:
        return _LOOPBACK
    for other in (place.peer, socket.gethostname(), _ELSEWHERE):
        address = _address_towards(other) if other else _LOOPBACK
        if not ip_address(address.partition("%")[0]).is_loopback:
            return address
    return _LOOPBACK


def _address_towards(other: str) -> str:
    """From which this host reaches another one; its loopback where it does not."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)  # nothing is sent
            return str(probe.getsockname()[0])
    except OSError:
        return _LOOPBACK


def _file_name(mark: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]", "-", mark)[:100]


def _listener(environ: Mapping[str, str]) -> int | None:
    value = environ.get(LISTENER, "")
    if value and not is_number(value):
        raise _not_set(LISTENER)
    return int(value) if value else None


def _chosen_port(environ: Mapping[str, str]) -> int:
    value = environ[PORT]
    if not (is_number(value) and int(value) <= _LAST_PORT):
        raise _not_set(PORT)
    return int(value)


def _not_set(name: str) -> SpecError:
    return SpecError(
        "is not set, or is not what a launcher sets",
        place=name,
        fix="start ranks with `ratrain train JOB`, or with torchrun; any other launcher must set "
        "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
    )
