"""The network that a rank's tensors go over, and how it comes about."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ratrain.devices import CPU, Device
from ratrain.program.program import Program
from ratrain.runtime.rank.joining.connections import connect_all
from ratrain.runtime.rank.joining.meeting import communicator_of
from ratrain.runtime.rank.joining.rendezvous import Joined
from ratrain.runtime.seats import Seat, Seats
from ratrain.runtime.step.network.direct_network import DirectNetwork
from ratrain.runtime.step.network.links import Links, Need, Routes, all_needs, routes_of
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.network.socket_network import SocketNetwork
from ratrain.runtime.step.network.staged_network import StagedNetwork, Staging


def network_of(
    program: Program,
    seats: Seats,
    seat: Seat,
    device: Device,
    joined: Joined,
    timeout_s: float,
    hosts: Sequence[int],
    more: Collection[Need] = (),
) -> tuple[Network, Links]:
    """A program's network, for tensors of a device, and the connections of `more` needs. All ranks
    call this together. `hosts`, by world rank: the number of its host."""
    routes, direct = routes_of(program, seats), program.setup.network_in_turn
    return connected(
        seats, seat, routes, joined, timeout_s, hosts, more, device=device, direct=direct
    )


def connected(
    seats: Seats,
    seat: Seat,
    routes: Routes,
    joined: Joined,
    timeout_s: float,
    hosts: Sequence[int] = (),
    more: Collection[Need] = (),
    *,
    device: Device = CPU,
    direct: bool = False,
) -> tuple[Network, Links]:
    """The same, of whatever sends what. `hosts`: left out, all are on one; `direct`: a rank's
    network ops take turns, so a communicator may carry what they send."""
    hosts = hosts or (0,) * seats.world_size
    pinned, divides_rows = device.kind == "cuda", routes.divides_rows
    staging = None if device.place.type == "cpu" else Staging(pinned=pinned)
    needs = [*all_needs(seats, seat, routes), *more]
    links = connect_all(joined, needs, timeout_s, readable=not pinned)
    others = {need: links[need] for need in more}
    own = {need: link for need, link in links.items() if need not in others}
    if direct:
        communicator = communicator_of(device, staging, joined, timeout_s)
        network = DirectNetwork(
            seats, seat, own, hosts, communicator, staging, divides_rows=divides_rows
        )
        return network, others
    over = SocketNetwork(seats, seat, own, hosts, divides_rows=divides_rows)
    return over if staging is None else StagedNetwork(over, staging), others
