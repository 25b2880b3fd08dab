"""One unit's states on one rank: its persistent buffers, and what lies where in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import lcm
from typing import NamedTuple

import torch
from torch import Tensor

from ratrain.cost.algorithms import DIRECT
from ratrain.describe.optimizers import Held
from ratrain.describe.saved import RESIDUAL
from ratrain.models.division import Division
from ratrain.models.units import Unit
from ratrain.models.weights import Weights
from ratrain.program.kind import Lane
from ratrain.runtime.seats import Groups, Holders
from ratrain.runtime.step.exchange.between_sites import Meeting, OwnRange, Shared
from ratrain.runtime.step.exchange.feedback import Residual
from ratrain.runtime.step.exchange.integers import Averaging, Integers
from ratrain.runtime.step.exchange.slots import Slots, Unlike
from ratrain.runtime.step.exchange.stored import Stored, stored_in
from ratrain.runtime.step.exchange.unlike_views import UnlikeView
from ratrain.runtime.step.frozen import FrozenShare
from ratrain.runtime.step.held import HeldStates
from ratrain.runtime.step.mirror import Mirror
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.optimizer import OwnedPart
from ratrain.runtime.step.outer import OuterStates
from ratrain.runtime.step.schedule import LocalUnit

TORN = -1
"""The version of a unit whose update has begun and not ended."""


class Collectives(NamedTuple):
    """By which algorithms a unit's holders reduce its gradient, and gather its weights."""

    reduces: str
    gathers: str


DIRECTLY = Collectives(DIRECT, DIRECT)


@dataclass(frozen=True)
class Across:
    """Who holds a unit at each site, number by number in its tensor groups (where sites have one
    tensor degree those of the own number alone), and at which of them this rank is. `weight`: of
    the site's weights in a mean, over that of a mean of equal sites."""

    sites: tuple[Groups, ...]
    site: int
    weight: float = 1.0
    unlike: bool = False  # sites have other tensor degrees than each other


@dataclass
class UnitState:
    """One unit's persistent buffers, and where its gradients are held."""

    held: HeldStates
    local: LocalUnit
    unit: Unit
    weights: Weights
    division: Division
    holders: Holders  # this rank among them: they reduce its gradient, and gather it
    place: int  # of this rank among the holders
    padded: int  # elements of the flat buffers
    shares: tuple[slice, ...]  # what this rank owns in a reduction
    parts: tuple[OwnedPart, ...]  # what it updates: its shares, or where nothing is sharded all
    replicated: tuple[Tensor, ...]  # weights of the whole unit, of which this rank owns its shares
    has_all: bool  # the states of the whole unit too, in its own memory
    slots: Slots | None = None  # where the unit is shared at different tensor degrees
    view: Tensor | None = None  # levels 0 to 2
    shard_view: Tensor | None = None  # level 3: of the shares, one after another
    beside: Mapping[str, Held] = field(default_factory=dict[str, Held])  # entries of all of it
    by: Collectives = DIRECTLY
    overflowed: bool | None = None  # as its owners agreed; None: they have no parts to agree on
    dtypes: tuple[torch.dtype, ...] = ()  # of the holders' views; (): all have this rank's
    frozen_share: FrozenShare | None = None  # level 3, of weights that nobody updates
    outer: OuterStates | None = None  # of an outer optimizer
    updated: Tensor | None = None  # own shares, until a view that waits elsewhere is gathered
    own: bool = False  # other replicas' or sites' states differ, and are saved by themselves
    across: Across | None = None  # where sites average weights
    shared: Shared | None = None  # what they average, of what is updated
    mirror: Mirror | None = None  # of another holder's part
    version: int = 0  # steps whose update is in its weights and states; `TORN` during one

    @property
    def trained(self) -> bool:
        """Whether anything of it is updated: else it has no gradient."""
        return self.unit.layout.size > 0

    @property
    def residual(self) -> Residual | None:
        """What rounding took away from the gradient last sent."""
        held = self.beside.get(RESIDUAL)
        return held if isinstance(held, Residual) else None

    @property
    def gathered_elements(self) -> int:
        """Of the views that level 3 gathers, one behind the other: of what is updated, and of what
        is not."""
        return self.padded + (self.frozen_share.padded if self.frozen_share else 0)

    def attach_gathered(self, flat: Tensor | None) -> None:
        """Weights are read from what was gathered from now on; None: not for a while."""
        if self.frozen_share is not None:
            share, end = self.frozen_share, self.gathered_elements
            buffer = None if flat is None else share.buffer(flat[self.padded : end])
            self.weights.attach_frozen(buffer)
        self.weights.attach_view(None if flat is None else flat[: self.padded])

    @property
    def name(self) -> str:
        return self.local.unit.name

    @property
    def gradient(self) -> Tensor | None:
        """Of the whole unit."""
        return self.held.get(("gradient", self.local.index))

    @gradient.setter
    def gradient(self, value: Tensor) -> None:
        self.held.put(("gradient", self.local.index), value)

    @property
    def shard(self) -> Tensor | None:
        """Sharded accumulation: of the shares, one after another."""
        return self.held.get(("shard", self.local.index))

    @shard.setter
    def shard(self, value: Tensor) -> None:
        self.held.put(("shard", self.local.index), value)

    @property
    def owned(self) -> slice:
        """The share, of a unit that all replicas hold at one tensor degree."""
        (share,) = self.shares
        return share

    @property
    def part(self) -> OwnedPart:
        """The part that this rank updates, of such a unit."""
        (part,) = self.parts
        return part

    @property
    def windows(self) -> list[tuple[slice, slice]]:
        """Each share, and where it lies in a shard, which has all of them one after another."""
        ends = list(accumulate(share.stop - share.start for share in self.shares))
        begins = [0, *ends[:-1]]
        return [(s, slice(b, e)) for s, b, e in zip(self.shares, begins, ends, strict=True)]

    @property
    def owned_elements(self) -> int:
        """Elements of all shares."""
        return sum(share.stop - share.start for share in self.shares)

    def in_shard(self, piece: slice) -> slice:
        """Where a piece of one share lies in a shard."""
        for share, window in self.windows:
            if share.start <= piece.start and piece.stop <= share.stop:
                first = window.start - share.start
                return slice(first + piece.start, first + piece.stop)
        raise AssertionError(f"{self.name}: {piece} is not owned here")

    def averaged(self) -> Iterator[Tensor]:
        """Master weights and states of the whole unit, where this rank has all of them, each to be
        changed in place before the next one is asked for."""
        yield from self.master()
        yield from self.whole_states()

    def master(self) -> Iterator[Tensor]:
        """Master weights of the whole unit, where this rank has all of them."""
        yield from (buffer for buffer in self.replicated if buffer.dtype == torch.float32)

    def whole_states(self) -> Iterator[Tensor]:
        """The optimizer's states of the whole unit in the same way, in fp32."""
        for number in range(len(self.parts[0].states) if self.has_all else 0):
            held = [(slice(part.begin, part.end), part.states[number]) for part in self.parts]
            values = held[0][1].values()
            if len(held) > 1:
                values = values.new_zeros(self.padded)
                for run, state in held:
                    values[run] = state.values()
            yield values
            for run, state in held:
                state.take(values[run])

    @property
    def replicas(self) -> int:
        """How many copies of the unit there are: ranks, or tensor groups of unlike degrees."""
        return len(self.holders) if self.slots is None else self.slots.replicas

    @property
    def own_place(self) -> tuple[int, int]:
        """Of which replica or site its states are, where they are its own, and of how many."""
        if self.across is None:
            return self.place, len(self.holders)
        return self.across.site, len(self.across.sites)

    @property
    def meeting(self) -> Meeting | None:
        """Its part in the averages of sites."""
        if self.across is None or self.shared is None:
            return None
        owned, first = self.owned, self.part.begin
        return Meeting(self.shared, self.across.site, self.place, self.division, owned, first)

    @property
    def ranges(self) -> list[OwnRange]:
        """What this rank averages with other sites; none where sites average nothing."""
        meeting = self.meeting
        return [] if meeting is None else meeting.ranges

    @property
    def saves(self) -> list[slice]:
        """What this rank writes of states that all holders have alike."""
        if self.across is None:
            return [self.owned]
        parts = ((r.blocks[0].offset, r.part(self.across.site)) for r in self.ranges)
        return [slice(begin + part.start, begin + part.stop) for begin, part in parts]

    @property
    def stored(self) -> Iterator[Stored]:
        """What this rank writes of its site's states where sites have unlike tensor degrees: as the
        parts that all of these have."""
        assert self.shared is not None
        owned, whole = self.owned, slice(self.part.begin, self.part.end)
        blocks = self.shared.blocks(self.division, owned.start, owned.stop)
        count = lcm(*map(len, self.shared.sites))
        return stored_in(self.shared.layout, self.division, count, ((b, whole) for b in blocks))

    def own_master(self) -> Tensor:
        """Master weights that this rank updates, where replicas or sites average by turns: of its
        part, or of all."""
        if self.across is not None:
            return self.part.weights
        (whole,) = self.master()
        return whole

    def counts(self, master: Tensor) -> slice:
        """What of a tensor as `own_master` no other rank of the replica or site has too."""
        if self.across is None:
            return slice(0, len(master))
        return slice(self.owned.start - self.part.begin, self.owned.stop - self.part.begin)

    def average(self, network: Network, flat: Tensor) -> None:
        """Of a tensor as `own_master`, the mean over all sites in its place."""
        meeting = self.meeting
        assert meeting is not None
        meeting.average(network, flat)
        self._tell(network, flat)

    def _tell(self, network: Network, mean: Tensor) -> None:
        """The ranks of a site, each of which updates the whole unit, tell each other their
        parts."""
        if len(mean) > self.owned_elements:
            network.gather(Lane.AVERAGE, mean, self.holders)

    def weigh(self, flat: Tensor) -> None:
        """What this site's weights, or what they learnt, count in a mean, in their place: as many
        times as it takes sequences, where sites take other numbers of them."""
        if self.across is not None and self.across.weight != 1.0:
            flat *= self.across.weight

    def average_learnt(self, network: Network, integers: Integers, learnt: Tensor) -> None:
        """The same of what replicas or sites learnt, which is sent as integers."""
        assert self.outer is not None and self.outer.residual is not None
        kept, meeting = self.outer.residual.kept, self.meeting
        if meeting is None:
            averaging = Averaging(network, Lane.REDUCE, self.holders, self.place)
            averaging.average(integers, learnt, kept)
            return
        meeting.average_learnt(network, integers, learnt, kept)
        self._tell(network, learnt)

    @property
    def counted(self) -> list[slice]:
        """Pieces of the shares whose gradients the global norm counts on this rank: vectors that
        all ranks of a tensor group have count on the first alone."""
        if self.division.rank == 0:
            return list(self.shares)
        return [
            slice(tensor.offset + low, tensor.offset + high)
            for share in self.shares
            for tensor, low, high in self.unit.layout.overlaps(share.start, share.stop)
            if tensor.cut is not None
        ]

    def reduce(self, network: Network, flat: Tensor) -> None:
        """Adds up all holders' `flat`; this rank's shares of the sum lie in its own."""
        if self.slots is not None:
            self.slots.reduce(network, flat)
        else:
            network.reduce(flat, flat[self.owned], self.holders, self.by.reduces)

    def gather_view(self, network: Network, lane: Lane, flat: Tensor) -> None:
        """Fills a view with all holders' shares in this rank's dtype; the own ones are there."""
        if not self.dtypes:
            self.gather(network, lane, flat)
        elif self.slots is not None:
            self.slots.gather(network, lane, flat, Unlike(self.dtypes, self._master))
        else:
            master = self.part.weights
            view = UnlikeView(flat, master, self.holders, self.place, self.dtypes)
            network.gather_unlike(lane, view, self.by.gathers)

    def _master(self, run: slice) -> Tensor:
        """The master weights of a run that this rank owns."""
        for part in self.parts:
            if part.begin <= run.start and run.stop <= part.end:
                return part.weights[run.start - part.begin : run.stop - part.begin]
        raise AssertionError(f"{self.name}: {run} is not owned here")

    def complete_view(self, network: Network) -> None:
        """Fills a view that others have in other dtypes: from the master weights where this rank
        has them all, else from their owners."""
        assert self.view is not None
        if not self.replicated:
            self.gather_view(network, Lane.GATHER, self.view)
            return
        for part in self.parts:
            target = self.view[part.begin : part.end]
            if target.data_ptr() != part.weights.data_ptr():
                target.copy_(part.weights)

    def gather(self, network: Network, lane: Lane, flat: Tensor) -> None:
        """Fills `flat` with all holders' shares; the own ones are already there."""
        if self.slots is not None:
            self.slots.gather(network, lane, flat)
        else:
            network.gather(lane, flat, self.holders, self.by.gathers)
