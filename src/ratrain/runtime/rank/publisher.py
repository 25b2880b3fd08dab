"""Weights for those who follow a run while it goes on: written into their memory by Save ops.

A Save reads a unit's new weights before the next step's update of the unit, so what is written is
of one step, and nothing is copied for it: the update waits for what is still under way. All ranks
serve the same offers in the same step, those that rank 0 has found; so a follower gets all of a
version, or, where anybody fails, keeps the one before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ratrain.describe.optimizers import Optimizer
from ratrain.describe.saved import WEIGHTS
from ratrain.errors import SpecError, TransportError
from ratrain.proof import derived
from ratrain.ranges import joined, overlaps
from ratrain.readers.json import as_table, parse_json
from ratrain.runtime.encryption import tls_of
from ratrain.runtime.published import (
    PURPOSE,
    Piece,
    block_of,
    nics_of,
    offers_of,
    parse_offer,
    write_layout,
    write_sources,
)
from ratrain.runtime.rank.context import RankContext
from ratrain.runtime.rank.saver import SaveSpec, written
from ratrain.runtime.secret import read_secret
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.states import RankStates
from ratrain.runtime.step.unit_state import UnitState
from ratrain.transport import Config, Engine
from ratrain.transport.engine.transfer import Transfer
from ratrain.transport.uses.weights import Offer

_DEAD_S = 5.0
"""A follower that is silent for longer gets nothing more."""


@dataclass
class _Served:
    """An offer that a step's weights go to."""

    name: str
    offer: Offer
    lost: bool = False


def publisher_of(
    context: RankContext, saving: SaveSpec, states: RankStates, network: Network
) -> WeightsPublisher | None:
    """That of a job which publishes; rank 0 begins the folder of offers anew."""
    train, rank = context.job.train, context.seat.world_rank
    if not train.publish_every:
        return None
    if rank == 0:
        write_layout(context.folder.path, saving.unit_sizes)
    return WeightsPublisher(
        context.folder.path,
        train.publish_every,
        train.publish_nics,
        derived(read_secret(context.folder.secret), PURPOSE),
        train.tls,
        rank,
        states,
        network,
        train.rule,
        context.log.say,
    )


class WeightsPublisher:
    """One rank's part. `every`: steps; `nics`, `tls`: as a job says them."""

    def __init__(
        self,
        run: Path,
        every: int,
        nics: str,
        secret: bytes,
        tls: str,
        rank: int,
        states: RankStates,
        network: Network,
        optimizer: Optimizer,
        say: Callable[[str], None],
    ) -> None:
        config = Config(secret, f"rank {rank}", nics=nics_of(nics), tls=tls_of(tls), dead_s=_DEAD_S)
        try:
            self._engine = Engine(config)
        except SpecError as error:
            raise SpecError(error.what, place="[train] publish_nics", fix=error.fix) from error
        self._run, self._every, self._rank = run, every, rank
        self._states, self._network, self._optimizer = states, network, optimizer
        self._say = say
        self._considered = -1
        self._served: list[_Served] = []

    def save(self, unit: UnitState, step: int) -> None:
        """One unit's part, in a step whose weights are published, to whoever waits for them."""
        if step != self._considered:
            self._considered = step
            self._served = self._offers(step) if (step + 1) % self._every == 0 else []
        if any(not served.lost for served in self._served):
            self._write(unit)

    def close(self) -> None:
        self._engine.close()

    def _offers(self, step: int) -> list[_Served]:
        """Those that all ranks serve in this step. All ranks call it together."""
        found = offers_of(self._run, self._say) if self._rank == 0 else {}
        offers: dict[str, str] = self._told(json.dumps(found))[0]
        if not offers:
            return []
        own = {"address": self._engine.address.to_bytes().decode(), "pieces": self._pieces()}
        sources = self._told(json.dumps(own))
        if self._rank == 0:
            for name in offers:
                write_sources(self._run, name, step + 1, sources)
        return [_Served(name, parse_offer(words)) for name, words in offers.items()]

    def _told(self, words: str) -> list[dict[str, Any]]:
        replies = self._network.exchange_bytes(words.encode())
        return [as_table(*parse_json(reply, "a rank's words"))[0] for reply in replies]

    def _pieces(self) -> list[dict[str, object]]:
        return [asdict(piece) for unit in self._states.units for piece, _ in self._held(unit)]

    def _held(self, unit: UnitState) -> list[tuple[Piece, Tensor]]:
        """What this rank writes of a unit."""
        held: list[tuple[Piece, Tensor]] = []
        for entry, pieces in written(unit, self._optimizer):
            if entry.kind == WEIGHTS:
                at = entry.begin
                for values in pieces:
                    held.append((Piece(entry.unit, at, len(values)), values))
                    at += len(values)
        return held

    def _write(self, unit: UnitState) -> None:
        """Returns when everybody has it, or is lost."""
        for piece, values in self._held(unit):
            memory = values.detach().cpu().contiguous().numpy()
            region = self._engine.register(memory, remote=False)
            block = block_of(piece, 0)
            transfers = {
                served.name: self._begin(
                    served, region, joined(overlaps([block], served.offer.held))
                )
                for served in self._served
                if not served.lost
            }
            for served in self._served:
                self._finish(served, transfers.get(served.name, []))
            self._engine.revoke(region)

    def _begin(self, served: _Served, region: Any, pairs: Sequence[Any]) -> list[Transfer]:
        offer = served.offer
        try:
            return [
                self._engine.write(
                    region[here.offset : here.end],
                    offer.place[there.offset : there.end],
                    imm=offer.imm,
                )
                for here, there in pairs
            ]
        except TransportError as error:
            self._lose(served, error)
            return []

    def _finish(self, served: _Served, transfers: Sequence[Transfer]) -> None:
        try:
            for transfer in transfers:
                transfer.wait()
        except TransportError as error:
            self._lose(served, error)

    def _lose(self, served: _Served, error: TransportError) -> None:
        served.lost = True
        self._say(f"weights: {served.name} gets no more of this version: {error.what}")
