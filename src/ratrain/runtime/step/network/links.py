"""Which ranks need a connection between them, and for what: a channel's name for each.

Both ends derive the same names. A message's channel is named by its sender, so that each direction
between two ranks has a connection of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, pairwise, product

import numpy as np

from ratrain.program.kind import Kind, Lane, Partners
from ratrain.program.program import Program
from ratrain.program.setup import Setup
from ratrain.runtime.seats import Holders, Seat, Seats, at_sites, holders_of, numbers_at_sites
from ratrain.runtime.step.exchange.cells import gathers_from, peers_at, peers_at_other_end
from ratrain.runtime.step.network.connection import Connection

Need = tuple[int, str]
"""(the peer's world rank, the channel's name)."""
Links = Mapping[Need, Connection]
Hops = Collection[tuple[int, int]]
"""Pipeline ranks between which activations go, each from the first to the second; gradients go
back. A replica that has no such rank has no such hop."""

BROADCASTS: dict[Lane | None, str] = {None: "control", Lane.UPDATE: "update", Lane.DISK: "disk"}
TENSOR = {Lane.COMPUTE: "sum in compute", Lane.TENSOR: "sum"}
COPIES = "copies"


def hops_of(setup: Setup) -> Hops:
    """The `Hops` of a program, and those to neighbours, over which links are calibrated."""
    hops: set[tuple[int, int]] = set()
    for replica in setup.replicas:
        hops.update(pairwise(range(replica.ranks)))
        for before, after in pairwise(replica.stages):
            hops.update((a.rank, b.rank) for a, b in product(before.members, after.members))
    return {(sender, receiver) for sender, receiver in hops if sender != receiver}


@dataclass(frozen=True)
class Routes:
    """Who sends what to whom, besides words."""

    hops: Hops
    groups: tuple[Holders, ...]  # ranks that reduce together: each group once, in model order
    further: Mapping[Lane, tuple[Holders, ...]] = field(  # of other lanes
        default_factory=dict[Lane, tuple[Holders, ...]]
    )
    tied: bool = False  # the ends of each replica add up their copies of a matrix
    divides_rows: bool = False  # each rank of a tensor group sends its own tokens alone


def routes_of(program: Program, seats: Seats) -> Routes:
    """The `Routes` of a program. Weights that replicas average, and not sites, go where gradients
    would."""
    setup = program.setup
    by_unit = [holders_of(setup, seats, tensor) for tensor in range(seats.tensor)]
    held = dict.fromkeys(
        by_name[name] for name in by_unit[0] for by_name in by_unit if name in by_name
    )
    groups = dict.fromkeys(site for held in held for site in at_sites(setup, seats, held))
    apart = [tuple(chain(*chain(*sites))) for sites in numbers_at_sites(setup, seats).values()]
    among = {Partners.PEERS: tuple(groups), Partners.HOLDERS: tuple(dict.fromkeys([*held, *apart]))}
    kinds = [Kind(number) for number in np.unique(program.table.kind).tolist()]
    further: dict[Lane, tuple[Holders, ...]] = {}
    for kind in kinds:
        if kind.is_collective and (setup.sites or kind.lane is not Lane.AVERAGE):
            further[kind.lane] = (*further.get(kind.lane, ()), *among[kind.partners])
    return Routes(
        hops_of(setup), among[Partners.PEERS], further, setup.tied, setup.sequence_parallel
    )


def message_channel(lane: Lane, sender: int) -> str:
    """Of messages from the world rank `sender`."""
    forward = lane in (Lane.SEND_F, Lane.RECV_F)
    return f"{'activations' if forward else 'gradients'} from {sender}"


def parts_channel(lane: Lane) -> str:
    """Between the ranks of a tensor group that put together what they receive in parts."""
    return f"parts of {'activations' if lane in (Lane.SEND_F, Lane.RECV_F) else 'gradients'}"


def lane_channel(lane: Lane) -> str:
    """Of a lane's collectives, whoever has declared it."""
    return f"{lane.word} among holders"


def word_needs(seats: Seats, seat: Seat, hops: Hops) -> list[Need]:
    """What each of our networks needs: messages to and from other stages, broadcasts to all
    ranks."""
    return [*_messages(seats, seat, hops), *_broadcasts(seats, seat)]


def all_needs(seats: Seats, seat: Seat, routes: Routes) -> list[Need]:
    """What the network over sockets needs, for tensors too."""
    rank = seat.world_rank
    lanes = {Lane.REDUCE: routes.groups, Lane.GATHER: routes.groups, **routes.further}
    group = _others(seats.tensor_group(seat.pipeline, seat.data), rank)
    copies = peers_at_other_end(seats, seat) if routes.tied else []
    return [
        *word_needs(seats, seat, routes.hops),
        *((peer, lane_channel(lane)) for lane, of in lanes.items() for peer in _beside(rank, of)),
        *((peer, name) for peer in group for name in TENSOR.values()),
        *((peer, name) for peer in group for name in _parts(seats, seat, routes)),
        *((peer, COPIES) for peer in copies),
    ]


def _messages(seats: Seats, seat: Seat, hops: Hops) -> list[Need]:
    needs: list[Need] = []
    for forward in hops:
        for lane, (first, second) in ((Lane.SEND_F, forward), (Lane.SEND_B, forward[::-1])):
            if max(forward) >= seats.depth(seat.data):
                continue
            if seat.pipeline == first:
                name = message_channel(lane, seat.world_rank)
                needs += [(peer, name) for peer in peers_at(seats, seat, second)]
            elif seat.pipeline == second:
                senders = peers_at(seats, seat, first)
                needs += [(peer, message_channel(lane, peer)) for peer in senders]
    return sorted(set(needs))


def _parts(seats: Seats, seat: Seat, routes: Routes) -> list[str]:
    """The channels over which a rank's tensor group puts together what it receives in parts."""
    sources = {
        Lane.RECV_F: [first for first, second in routes.hops if second == seat.pipeline],
        Lane.RECV_B: [second for first, second in routes.hops if first == seat.pipeline],
    }
    depth = seats.depth(seat.data)
    return [
        parts_channel(lane)
        for lane, stages in sources.items()
        if any(
            gathers_from(seats, seat, stage, divides_rows=routes.divides_rows)
            for stage in stages
            if stage < depth
        )
    ]


def _broadcasts(seats: Seats, seat: Seat) -> list[Need]:
    """Rank 0 with all others."""
    peers = range(1, seats.world_size) if seat.world_rank == 0 else range(1)
    return [(peer, name) for peer in peers for name in BROADCASTS.values()]


def _beside(rank: int, groups: Iterable[Holders]) -> list[int]:
    """The others of a rank's groups."""
    return _others(sorted({peer for group in groups if rank in group for peer in group}), rank)


def _others(ranks: Iterable[int], rank: int) -> list[int]:
    return [other for other in ranks if other != rank]
