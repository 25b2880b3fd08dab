"""What a launcher passes to its ranks, and where: the names of environment variables.

RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are every launcher's.
These are our own launcher's, which sits on the ranks' machine. None of them is a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ratrain.errors import SpecError
from ratrain.readers.numbers import is_number

LAUNCHER = "RATRAIN_LAUNCHER"
"""The launcher's process id: a rank whose parent is another process has lost it."""

FOLLOWED = "RATRAIN_FOLLOWED"
"""Set where the launcher draws the curves, so that rank 0 need not."""

COMMAND = "RATRAIN_COMMAND"
"""What started the ranks of a host, as the owner of the run's folder is called; else torchrun."""

LISTENER = "RATRAIN_LISTENER"
"""The file descriptor of a listening socket at MASTER_ADDR and MASTER_PORT, which rank 0 inherits:
so the port is a free one, and no one else can have taken it meanwhile."""

PORT = "RATRAIN_PORT"
"""A user's choice, on all hosts the same: the port at which rank 0 is met."""

ADDRESS = "RATRAIN_ADDRESS"
"""A user's choice, for each host: its address for the other ranks."""

_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Set to "True" by torchrun, whose store then listens at MASTER_PORT itself."""


@dataclass(frozen=True)
class Launch:
    """One rank's place among all, and where rank 0 is met."""

    rank: int
    world_size: int
    address: str
    port: int
    listener: int | None = None
    own_address: str | None = None  # of this host, where it was chosen
    ranks_here: int | None = None  # on this host, where the launcher gives it

    @property
    def one_host(self) -> bool:
        """Whether all ranks are known to be on this host."""
        return self.ranks_here == self.world_size

    @property
    def rendezvous_address(self) -> str:
        return f"{self.address}, port {self.port}"


def launch_of(environ: Mapping[str, str]) -> Launch:
    """What the launcher passed to this process. Where torchrun has all ranks on one host, they meet
    on its loopback, whatever MASTER_ADDR says."""
    if not environ.get("MASTER_ADDR"):
        raise _not_set("MASTER_ADDR")
    knows_neighbours = "LOCAL_WORLD_SIZE" in environ
    launch = Launch(
        _number(environ, "RANK"),
        _number(environ, "WORLD_SIZE"),
        environ["MASTER_ADDR"],
        _port(environ),
        _number(environ, LISTENER) if LISTENER in environ else None,
        environ.get(ADDRESS) or None,
        _number(environ, "LOCAL_WORLD_SIZE") if knows_neighbours else None,
    )
    ours = LAUNCHER in environ
    return replace(launch, address="127.0.0.1") if launch.one_host and not ours else launch


def _port(environ: Mapping[str, str]) -> int:
    """Torchrun's own store has MASTER_PORT, so the ranks meet at the next one."""
    if environ.get(PORT):
        return _number(environ, PORT, most=65535)
    agent_has_port = environ.get(_AGENT_STORE) == "True"
    return _number(environ, "MASTER_PORT", most=65534) + agent_has_port


def _number(environ: Mapping[str, str], name: str, most: int = 1 << 20) -> int:
    value = environ.get(name, "")
    if not (is_number(value) and int(value) <= most):
        raise _not_set(name)
    return int(value)


def _not_set(name: str) -> SpecError:
    return SpecError(
        "is not set, or is not what a launcher sets",
        place=name,
        fix="start ranks with `ratrain train JOB`, or with torchrun; any other launcher must set "
        "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
    )
