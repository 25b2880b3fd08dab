"""What survivors of an episode hold, as the source of the next one: no step since the last
checkpoint is lost.

Each rank says which elements of which units it holds, and in which version: how many steps' updates
are in them. A rank may have updated a unit that another has not yet. The newest version in which
all units are complete is taken; where there is none, the next episode begins from a checkpoint.
Who reads what from whom is the one list of copies (`ratrain.ranges`) that all ranks derive from
what all have said.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ratrain.describe.model import ModelSpec
from ratrain.describe.optimizers import Held, Optimizer
from ratrain.errors import SpecError, TransportError
from ratrain.program.setup import Setup
from ratrain.ranges import Block, Copy, copies, line
from ratrain.readers.json import parse_json
from ratrain.runtime.rank.control import RankReport, Round
from ratrain.runtime.rank.saver import SAVED_AT_ONCE, buffers_of
from ratrain.runtime.seats import Seat, Seats, holders_of
from ratrain.runtime.step.clipping import Clipping
from ratrain.runtime.step.network.connection import Connection
from ratrain.runtime.step.network.links import Links, Need
from ratrain.runtime.step.network.socket_network import bytes_of
from ratrain.runtime.step.states import RankStates
from ratrain.runtime.step.tensor_parts import (
    divisions,
    stored_degrees,
    stored_name,
    stored_sizes,
)
from ratrain.runtime.step.unit_state import TORN

_REQUEST_BYTES = 1 << 12


class KeptUnit(NamedTuple):
    """Elements begin .. end of a unit, or of a tensor rank's part of it: each kind of state."""

    version: int
    begin: int
    end: int
    buffers: Mapping[str, Held]
    mirrored: bool = False  # another rank's, in host memory


@dataclass(frozen=True)
class Kept:
    """What one rank keeps of an episode that has ended early. `units`: by the names of
    checkpoints; `beside`, by version: what goes into a checkpoint's manifest beside the tensors;
    `reports`: of steps that were not told of yet. `later` makes of it what the rank would hold one
    version later, where it does not know whether others have gone on to that."""

    units: Mapping[str, Sequence[KeptUnit]]
    beside: Mapping[int, Mapping[str, float]]
    reports: Mapping[int, RankReport]
    whole: bool = False  # the optimizer takes whole matrices: its states are read at once
    later: Callable[[], Kept] | None = None
    later_beside: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def _parts(self) -> list[KeptUnit]:
        return [part for parts in self.units.values() for part in parts]

    @property
    def size_bytes(self) -> int:
        """Of fp32 elements on the device; what is kept in fewer bits takes less."""
        own = [part for part in self._parts if not part.mirrored]
        return sum((u.end - u.begin) * 4 * len(u.buffers) for u in own)

    def beside_those(self, older: Kept) -> Kept:
        """Both: what this rank has read, and what it held before, as long as others may not have
        read all that they need."""
        units = {name: [*parts] for name, parts in self.units.items()}
        for name, parts in older.units.items():
            units.setdefault(name, []).extend(parts)
        beside = {**older.beside, **self.beside}
        return replace(self, units=units, beside=beside, reports=older.reports or self.reports)

    def at(self, version: int) -> Kept:
        """It once all have agreed to go on from a version."""
        if self.later is not None and all(part.version < version for part in self._parts):
            return self.later()
        return replace(self, later=None)

    def words(self, room_bytes: int | None, *, survived: bool = True) -> str:
        """What all ranks must know of it. `room_bytes`: what this rank may hold beside what the
        next episode's program has all the time; None: as much as there is.
        `survived`: it had an episode before."""
        held = {name: [[u.version, u.begin, u.end] for u in us] for name, us in self.units.items()}
        beside = dict(self.beside)
        if self.later is not None and beside:
            for parts in held.values():
                parts += [[version + 1, begin, end] for version, begin, end in parts]
            beside[max(beside) + 1] = self.later_beside
        fits = room_bytes is None or self.size_bytes <= room_bytes
        reports = {
            step: [None if value != value else value for value in astuple(report)]
            for step, report in self.reports.items()
        }
        return json.dumps(
            {
                "held": held,
                "kinds": sorted({kind for part in self._parts for kind in part.buffers}),
                "beside": beside,
                "reports": reports,
                "fits": fits,
                "survived": survived,
            }
        )

    def read(self, name: str, kind: str, begin: int, end: int) -> Tensor:
        """Elements of a unit, fp32."""
        parts = self.units[name]
        unit = next(each for each in parts if each.begin <= begin and end <= each.end)
        run, held = slice(begin - unit.begin, end - unit.begin), unit.buffers[kind]
        values = held.values()[run] if self.whole else held[run].values()
        return values.detach().cpu()


NOTHING = Kept({}, {}, {})


def kept_of(
    states: RankStates,
    clipping: Clipping,
    optimizer: Optimizer,
    reports: Mapping[int, RankReport],
) -> Kept:
    """What a rank keeps once its lanes are back. Nothing where it would not be enough: where ranks
    hold states of which each has its own, or have them in another tier."""
    units: dict[str, list[KeptUnit]] = defaultdict(list)
    for unit in states.units:
        if not unit.trained:
            continue
        if (
            unit.own
            or unit.beside
            or unit.slots is not None
            or unit.local.index in states.away["optimizer"]
        ):
            return NOTHING
        mirror = None if unit.part.beside else unit.mirror  # which has weights and states alone
        for held in filter(None, (unit, mirror)):
            part = held.part
            end = min(part.end, unit.unit.layout.size)
            buffers = dict(buffers_of(part, optimizer))
            if held.version != TORN and part.begin < end:
                kept = KeptUnit(held.version, part.begin, end, buffers, held is unit.mirror)
                units[stored_name(unit.name, unit.division)].append(kept)
    versions = {part.version for parts in units.values() for part in parts}
    beside = {version: clipping.state_after(version - 1) for version in versions}
    return Kept(units, beside, reports, optimizer.whole)


@dataclass(frozen=True)
class LiveStates:
    """What all survivors together hold of the version that the next episode begins with. `copies`:
    who reads which elements of what from whom, those of its own included; `reports`: what there is
    of steps before it for which no round of control has ended."""

    step: int
    beside: Mapping[str, Any]
    degrees: Mapping[str, int]
    kinds: Collection[str]  # of state, that they hold of each unit
    copies: Sequence[Copy]
    reports: Mapping[int, Round]

    def needs(self, rank: int) -> list[Need]:
        """The connections that a rank needs to read from others, and to be read."""
        pairs = dict.fromkeys((c.source, c.target) for c in self.copies if c.source != c.target)
        reads = [(source, _channel(source)) for source, target in pairs if target == rank]
        return reads + [(target, _channel(rank)) for source, target in pairs if source == rank]


def live_states(
    model: ModelSpec, setup: Setup, seats: Seats, told: Sequence[Mapping[str, Any]]
) -> LiveStates | None:
    """What the ranks have `told`, by their ranks in the next episode, as its source; None where it
    is not enough, or not everybody has room for it."""
    names = set(chain.from_iterable(of_rank["held"] for of_rank in told))
    if not names or not all(of_rank["fits"] for of_rank in told):
        return None
    degrees = stored_degrees(model, names)
    sizes = stored_sizes(model, degrees)
    if not names <= set(sizes):
        return None  # two degrees of one unit
    needed = {
        seat.world_rank: [line(n, 0, sizes[n], 0) for n in _needed(setup, seats, seat, degrees)]
        for seat in seats.all()
    }
    versions = {
        version for of_rank in told for parts in of_rank["held"].values() for version, _, _ in parts
    }
    for version in sorted(versions, reverse=True):
        held: dict[int, list[Block]] = {
            rank: [
                line(name, begin, end, begin)
                for name, parts in of_rank["held"].items()
                for of, begin, end in parts
                if of == version
            ]
            for rank, of_rank in enumerate(told)
        }
        with suppress(SpecError):  # nobody has some of it: an older version may be complete
            wanted = copies(held, needed)
            beside = (of_rank["beside"].get(str(version)) for of_rank in told)
            steps = {int(step) for each in told for step in each.get("reports", ())}
            reports = {step: _reports_of(step, told) for step in steps if step < version}
            kinds = frozenset(chain.from_iterable(of_rank["kinds"] for of_rank in told))
            return LiveStates(version, next(filter(None, beside)), degrees, kinds, wanted, reports)
    return None


def _reports_of(step: int, told: Sequence[Mapping[str, Any]]) -> Round:
    """What survivors report of a step that was done and that no round of control has ended for."""
    rows = [of_rank.get("reports", {}).get(str(step)) for of_rank in told]
    return tuple(
        RankReport(*(float("nan") if value is None else value for value in row))
        for row in rows
        if row
    )


def _needed(setup: Setup, seats: Seats, seat: Seat, degrees: Mapping[str, int]) -> list[str]:
    """The stored names of what a rank may read."""
    names: list[str] = []
    for unit, ranks in holders_of(setup, seats, seat.division.rank).items():
        if seat.world_rank in ranks:
            same = seat.division.degree == degrees[unit]
            parts = [seat.division] if same else divisions(degrees[unit])
            names += [stored_name(unit, part) for part in parts]
    return names


class LiveReader:
    """One rank's end of `LiveStates`: reads from peers, and is read by them until `finish`.
    `links` has the connections of `LiveStates.needs`."""

    def __init__(self, live: LiveStates, rank: int, kept: Kept, links: Links) -> None:
        self._rank, self._kept = rank, kept
        self._copies: dict[str, list[Copy]] = defaultdict(list)
        for copy in live.copies:
            if copy.target == rank:
                self._copies[copy.needed.name].append(copy)
        self._sources = {
            peer: link for (peer, name), link in links.items() if name == _channel(peer)
        }
        readers = [link for (_, name), link in links.items() if name == _channel(rank)]
        self._links = list(links.values())
        self._servers = [
            threading.Thread(target=_serve, args=(link, kept.read), name="live", daemon=True)
            for link in readers
        ]
        for server in self._servers:
            server.start()

    def read(self, name: str, kind: str, begin: int, end: int) -> Tensor:
        """Elements of a unit, or of a part of it, from whoever holds them."""
        out = torch.empty(end - begin)
        for copy in self._copies[name]:
            low, high = max(begin, copy.needed.columns[0]), min(end, copy.needed.columns[1])
            for at in range(low, high, SAVED_AT_ONCE):
                upto = min(at + SAVED_AT_ONCE, high)
                self._fill(out[at - begin : upto - begin], copy.source, (name, kind, at, upto))
        return out

    def _fill(self, room: Tensor, source: int, wanted: tuple[str, str, int, int]) -> None:
        if source == self._rank:
            room.copy_(self._kept.read(*wanted))
            return
        link = self._sources[source]
        link.send(json.dumps(wanted).encode())
        link.receive(bytes_of(room))

    def finish(self) -> None:
        """This rank has read all that it needs; returns when nobody reads from it any more."""
        for link in self._sources.values():
            link.send(b"")
        for server in self._servers:
            server.join()
        for link in self._links:
            link.close()
        self._kept = NOTHING

    def hang_up(self) -> None:
        """Nobody waits for what is read, here or elsewhere; from any thread."""
        for link in self._links:
            link.hang_up()


def _serve(link: Connection, read: Callable[[str, str, int, int], Tensor]) -> None:
    """Answers one reader until it has all; a reader that is lost fails elsewhere."""
    with suppress(TransportError):
        while request := link.receive_bytes(_REQUEST_BYTES):
            (name, kind, begin, end), _ = parse_json(request, "a survivor's request")
            link.send(bytes_of(read(name, kind, begin, end).contiguous()))


def _channel(source: int) -> str:
    """Of states that are read from a rank."""
    return f"states of {source}"
