"""The network of a program whose network ops take turns: tensors go over a communicator
(`communicator`), and words over connections of our own, as everywhere.

Before a tensor leaves, those who send it and those who receive it meet over such a connection, and
say how long it is. So a rank that is late or lost is found there, and named, before anything of a
device waits for it; and what a communicator is given, all of its peers give theirs now. Sums are
made in the order of ranks, on the device, piece by piece: they have the bits that they have over
connections. Those of a tensor group, also inside compute ops, go over connections.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ratrain.cost.algorithms import DIRECT
from ratrain.errors import DeadlineExceeded, PeerDown, TransportError
from ratrain.models.tensor_group import TensorGroup
from ratrain.program.kind import Lane
from ratrain.runtime.seats import Holders, Seat, Seats
from ratrain.runtime.step.exchange.cells import parts_of_group
from ratrain.runtime.step.exchange.collective import Swap, Tensors, gather_by, reduce_by
from ratrain.runtime.step.exchange.sums import add_up, pieces
from ratrain.runtime.step.exchange.unlike_collective import gather_unlike_by
from ratrain.runtime.step.exchange.unlike_views import UnlikeView
from ratrain.runtime.step.network.broadcast import By
from ratrain.runtime.step.network.communicator import Communicator
from ratrain.runtime.step.network.connection import Connection, Landing, Leaving, move
from ratrain.runtime.step.network.links import COPIES, Links, lane_channel, message_channel
from ratrain.runtime.step.network.socket_network import SocketNetwork
from ratrain.runtime.step.network.staged_network import StagedGroup, Staging

_SIZE = struct.Struct("!Q")
_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class DirectNetwork(SocketNetwork):
    """`staging`: of a device with memory of its own, for what goes over connections."""

    def __init__(
        self,
        seats: Seats,
        seat: Seat,
        links: Links,
        hosts: Sequence[int],
        communicator: Communicator,
        staging: Staging | None,
        *,
        divides_rows: bool,
    ) -> None:
        super().__init__(seats, seat, links, hosts, divides_rows=divides_rows)
        self._communicator, self._staging = communicator, staging
        self._groups: dict[Lane, TensorGroup] = {}

    # ---- messages -----------------------------------------------------------------------

    def send(self, lane: Lane, tensor: Tensor, pipeline: int) -> None:
        cells = self._cells(tensor, pipeline)
        name = message_channel(lane, self._seat.world_rank)
        links = self._linked(name, [cell.peer for cell in cells])
        leaving = {cell.peer: [tensor[cell.begin : cell.end]] for cell in cells}
        self._move(lane.word, links, leaving, {})

    def receive(self, lane: Lane, tensor: Tensor, pipeline: int) -> None:
        cells = self._cells(tensor, pipeline)
        links = {
            cell.peer: self._links[cell.peer, message_channel(lane, cell.peer)] for cell in cells
        }
        landing = {cell.peer: [tensor[cell.begin : cell.end]] for cell in cells}
        self._move(lane.word, links, {}, landing)
        self._complete(lane, tensor, pipeline)

    def _put_together(self, tensor: Tensor, name: str) -> None:
        group = self._seats.tensor_group(self._seat.pipeline, self._seat.data)
        parts = dict(zip(group, parts_of_group(tensor, len(group)), strict=True))
        own = parts.pop(self._seat.world_rank)
        landing = {peer: [part] for peer, part in parts.items()}
        self._move(name, self._linked(name, parts), {peer: [own] for peer in parts}, landing)

    def _move(
        self, word: str, links: Mapping[int, Connection], leaving: Tensors, landing: Tensors
    ) -> None:
        self._meet(links, leaving, landing)
        self._carry(word, links, leaving, landing)

    # ---- collectives --------------------------------------------------------------------

    def reduce(
        self,
        flat: Tensor,
        out: Tensor,
        holders: Holders,
        by: str = DIRECT,
        lane: Lane = Lane.REDUCE,
    ) -> None:
        self._meet_all(holders, lane, [flat])
        exchange, place = self._exchange(holders, by), self._place_among(holders)
        if not exchange.rounds:
            add_up([flat], out)
            return
        reduce_by(exchange, place, flat, out, self._swap(holders, lane_channel(lane)))

    def gather(self, lane: Lane, flat: Tensor, holders: Holders, by: str = DIRECT) -> None:
        self._meet_all(holders, lane, [flat])
        exchange, place = self._exchange(holders, by), self._place_among(holders)
        swap = self._swap(holders, lane_channel(lane))
        if exchange.rounds > 1:
            gather_by(exchange, place, flat, swap)
            return
        parts = dict(enumerate(flat.view(len(holders), -1)))
        own = parts.pop(place)
        swap({peer: [own] for peer in parts}, {peer: [part] for peer, part in parts.items()})

    def gather_unlike(self, lane: Lane, view: UnlikeView, by: str = DIRECT) -> None:
        self._meet_all(view.holders, lane, [])
        exchange = self._exchange(view.holders, by)
        gather_unlike_by(exchange, view, self._swap(view.holders, lane_channel(lane)))

    def swap(self, lane: Lane, holders: Holders, leaving: Tensors, landing: Tensors) -> None:
        out, into = _by_rank(holders, leaving), _by_rank(holders, landing)
        links = self._linked(lane_channel(lane), {*out, *into})
        self._move(lane.word, links, out, into)

    def _swap(self, holders: Holders, name: str) -> Swap:
        """Among ranks that have met."""

        def swap(leaving: Tensors, landing: Tensors) -> None:
            out, into = _by_rank(holders, leaving), _by_rank(holders, landing)
            self._carry(name, self._linked(name, {*out, *into}), out, into)

        return swap

    def _add_copy(self, link: Connection, gradient: Tensor) -> None:
        links, here_first = {link.peer: link}, not self._seat.pipeline
        self._meet(links, {link.peer: [gradient]}, {link.peer: [gradient]})
        for mine in pieces(gradient):
            other = torch.empty_like(mine)
            self._carry(COPIES, links, {link.peer: [mine]}, {link.peer: [other]})
            add_up((mine, other) if here_first else (other, mine), mine)

    # ---- over connections ---------------------------------------------------------------

    def tensor_group(self, lane: Lane) -> TensorGroup | None:
        group = super().tensor_group(lane)
        if group is None or self._staging is None:
            return group
        return self._groups.setdefault(lane, StagedGroup(group, self._staging))

    def combine(self, lane: Lane | None, values: Tensor, by: By) -> Tensor:
        return super().combine(lane, values.cpu(), by)

    # ---- the communicator ---------------------------------------------------------------

    def sent_to(self) -> dict[int, int]:
        sent = super().sent_to()
        for peer, size_bytes in self._communicator.sent_bytes.items():
            sent[peer] = sent.get(peer, 0) + size_bytes
        return sent

    def hang_up(self) -> None:
        super().hang_up()
        self._communicator.abort()

    def close(self) -> None:
        """Peers see the end of every stream."""
        super().close()
        self._communicator.close()

    def _linked(self, name: str, peers: Iterable[int]) -> dict[int, Connection]:
        return {peer: self._links[peer, name] for peer in sorted(peers)}

    def _meet_all(self, holders: Holders, lane: Lane, tensors: Sequence[Tensor]) -> None:
        """All holders are there, for tensors of one size."""
        others = {peer: tensors for peer in holders if peer != self._seat.world_rank}
        self._meet(self._linked(lane_channel(lane), others), others, others)

    def _meet(self, links: Mapping[int, Connection], leaving: Tensors, landing: Tensors) -> None:
        """Those whom the rank sends something, and who send it something, are there, and mean the
        same number of bytes. By world rank."""
        words = {peer: _SIZE.pack(_bytes_of(tensors)) for peer, tensors in leaving.items()}
        rooms = {peer: bytearray(_SIZE.size if peer in landing else 0) for peer in links}
        move(
            [Leaving(link, words.get(peer, b"")) for peer, link in links.items()],
            [Landing(link, memoryview(rooms[peer])) for peer, link in links.items()],
        )
        for peer, tensors in landing.items():
            (said,), expected = _SIZE.unpack(rooms[peer]), _bytes_of(tensors)
            if said != expected:
                raise TransportError(
                    f"rank {peer} sends rank {self._seat.world_rank} {said:,} bytes where "
                    f"{expected:,} were expected",
                    fix="run the same version of ratrain, and the same run folder, on all machines",
                )

    def _carry(
        self, word: str, links: Mapping[int, Connection], leaving: Tensors, landing: Tensors
    ) -> None:
        """What ranks that have met send each other. By world rank."""
        began_s = time.monotonic()
        try:
            self._communicator.exchange(leaving, landing, lambda: bool(_ended(links)))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise self._lost(word, links, time.monotonic() - began_s, error) from error

    def _lost(
        self, word: str, links: Mapping[int, Connection], waited_s: float, error: RuntimeError
    ) -> TransportError:
        rank, ended = self._seat.world_rank, _ended(links)
        peers = ended or list(links)
        of = f"rank{'s' if len(peers) > 1 else ''} {', '.join(map(str, peers))}"
        patience_s = min(link.patience_s for link in links.values())
        if waited_s >= patience_s and not ended:
            return DeadlineExceeded(
                f"rank {rank} and {of} did not exchange their tensors in {patience_s:g} s ({word})",
                fix="check whether a rank or a link has stalled; [train] timeout sets how long to "
                "wait",
            )
        because = str(error).strip().partition("\n")[0]
        return PeerDown(
            f"rank {rank} lost its communicator with {of} ({word}): {because}",
            fix="check why that rank ended",
        )


def _ended(links: Mapping[int, Connection]) -> list[int]:
    """Those whose connections have ended."""
    return [peer for peer, link in links.items() if _has_ended(link)]


def _by_rank(holders: Holders, tensors: Tensors) -> Mapping[int, Sequence[Tensor]]:
    """Of world ranks, by place among the holders."""
    return {holders[place]: of_place for place, of_place in tensors.items()}


def _bytes_of(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _has_ended(connection: Connection) -> bool:
    poll = select.poll()
    poll.register(connection.sockets[0], _GONE)
    return any(event & _GONE for _, event in poll.poll(0))
