"""The network that a rank's tensors go over, and how it comes about."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ratrain.devices import Device
from ratrain.program.program import Program
from ratrain.runtime.rank.joining.connections import connect_all
from ratrain.runtime.rank.joining.rendezvous import Joined
from ratrain.runtime.seats import Seat, Seats
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
    routes = routes_of(program, seats)
    pinned = device.kind == "cuda"
    network, others = connected(
        seats, seat, routes, joined, timeout_s, hosts, more, readable=not pinned
    )
    if device.place.type == "cpu":
        return network, others
    return StagedNetwork(network, Staging(pinned=pinned)), others


def connected(
    seats: Seats,
    seat: Seat,
    routes: Routes,
    joined: Joined,
    timeout_s: float,
    hosts: Sequence[int] = (),
    more: Collection[Need] = (),
    *,
    readable: bool = True,
) -> tuple[SocketNetwork, Links]:
    """A rank's network for tensors in host memory, and the connections of `more` needs. `hosts`:
    left out, all are on one; `readable`: others of this machine can read it."""
    hosts = hosts or (0,) * seats.world_size
    needs = [*all_needs(seats, seat, routes), *more]
    links = connect_all(joined, needs, timeout_s, readable=readable)
    others = {need: links[need] for need in more}
    own = {need: link for need, link in links.items() if need not in others}
    return SocketNetwork(seats, seat, own, hosts, divides_rows=routes.divides_rows), others
