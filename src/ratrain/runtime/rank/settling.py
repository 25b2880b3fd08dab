"""The end of a run whose replicas or sites train apart: all get one model, which is then saved.

Where units are averaged by turns, no two have the same weights after any step: one more average of
all of them, of fp32 master weights as they are, makes them one. With averages all in one step
(local SGD) a run's last step has made it. Whether they are the same is then seen by digests of what
each rank holds, told to all. Moments stay each one's own.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

from torch import Tensor

from ratrain.program.setup import Setup
from ratrain.readers.json import parse_json
from ratrain.runtime.seats import Seat, Seats, site_of
from ratrain.runtime.step.mean_weights import becomes_mean
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.state_ops import StateOps
from ratrain.runtime.step.unit_state import UnitState

_Key = tuple[str, int, int, int]
"""A unit, the rank in a tensor group, the number of a range, and at how many places it is."""


class Settling:
    """One rank's part in it, and what it sends to other sites until then, as sockets are given
    it."""

    def __init__(
        self,
        setup: Setup,
        seats: Seats,
        seat: Seat,
        ops: StateOps,
        units: Sequence[UnitState],
        network: Network,
    ) -> None:
        here = site_of(setup, seats, seat.world_rank)
        ranks = range(seats.world_size)
        self._others = [rank for rank in ranks if site_of(setup, seats, rank) != here]
        self._ops, self._units, self._network = ops, units, network
        self.apart = setup.apart > 1
        """Whether replicas or sites train apart at all."""
        self.averages = self.apart and setup.averages.by_turns
        """Whether a last average is needed, behind which a run is saved."""
        self._began = 0, 0
        self._settled: dict[str, Any] | None = None

    def begin(self, step: int) -> None:
        """Before the first step of this start."""
        self._began = step, self._sent_bytes()

    def settle(self, step: int) -> None:
        """Ends a run after so many steps. All ranks call this together, with all lanes at rest."""
        (first, before_bytes), steps_bytes = self._began, self._sent_bytes()
        began_s = time.perf_counter()
        for unit in self._units if self.averages else ():
            if unit.own and unit.trained:
                becomes_mean(unit, self._network, self._ops.average, self._ops.show)
        last_bytes, took_s = self._sent_bytes(), time.perf_counter() - began_s
        ranges, unlike = compared(self._units, self._network)
        self._settled = {
            "ranges": ranges,
            "unlike": unlike,
            "took_s": took_s if self.averages else 0.0,
            "steps": step - first,
            "steps_bytes": steps_bytes - before_bytes,
            "last_bytes": last_bytes - steps_bytes,
        }
        for unit in self._units if self.averages else ():
            self._ops.save_unit(unit, step - 1)

    def as_json(self) -> dict[str, Any] | None:
        """None where nothing trains apart, or the run has not ended."""
        return self._settled

    def _sent_bytes(self) -> int:
        sent = self._network.sent_to()
        return sum(sent.get(rank, 0) for rank in self._others)


def compared(units: Sequence[UnitState], network: Network) -> tuple[int, int]:
    """How many ranges of master weights replicas or sites hold, and of how many they have not all
    the same bits. All ranks call this together."""
    rows = [row for unit in units if unit.trained for row in _digests(unit)]
    held: dict[_Key, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for body in network.exchange_bytes(json.dumps(rows).encode()):
        told, _ = parse_json(body, "a rank's digests")
        for name, tensor, number, places, place, digest in told:
            held[name, tensor, number, places][place].add(digest)
    return len(held), sum(_differ(of, places) for (*_, places), of in held.items())


def _differ(digests: dict[int, set[str]], places: int) -> bool:
    """Whether not all of so many places have the same."""
    return len(digests) < places or len(set[str]().union(*digests.values())) > 1


def _digests(unit: UnitState) -> Iterator[tuple[str, int, int, int, int, str]]:
    """Of what a rank holds of a unit's master weights, range by range: its name, the rank in its
    tensor group, the range, at how many places it is, which of them this is, and a digest."""
    place, places = unit.own_place
    for tensor, number, values in _ranges(unit):
        digest = sha256(values.cpu().numpy().data).hexdigest()
        yield unit.name, tensor, number, places, place, digest


def _ranges(unit: UnitState) -> Iterator[tuple[int, int, Tensor]]:
    """The ranges whose master weights a rank has: of which part of a tensor group, where all have
    the same parts; their numbers, and the elements."""
    shared = unit.shared
    for part in unit.parts:
        if shared is None:
            yield unit.division.rank, part.begin, part.weights
            continue
        tensor = 0 if shared.is_unlike else unit.division.rank
        for number, each in shared.held(unit.division, part.begin, part.end):
            yield tensor, number, each.taken(part.weights, part.begin)
