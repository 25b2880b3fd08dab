"""The states of one rank as tensors: what the ledger counts, held where ops find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ratrain.checkpoint.own import OUTER_MOMENTUM, OUTER_RESIDUAL, OUTER_WEIGHTS, own_kind
from ratrain.checkpoint.residuals import residual_kind
from ratrain.cost.algorithms import DIRECT
from ratrain.describe.optimizers import Optimizer, Plain
from ratrain.devices import Device
from ratrain.models.division import Division
from ratrain.models.parameters import UnitParameters
from ratrain.models.shapes import EMBEDDING, HEAD
from ratrain.models.units import Unit
from ratrain.models.weights import Weights
from ratrain.program.kind import Lane
from ratrain.program.setup import Setup
from ratrain.runtime.seats import (
    Groups,
    Holders,
    Seat,
    Seats,
    groups_of,
    holders_of,
    parts_of_units,
)
from ratrain.runtime.step.away import AwayStates, AwayUnit, Tier
from ratrain.runtime.step.exchange.buckets import Buckets, made_buckets
from ratrain.runtime.step.exchange.feedback import Residual
from ratrain.runtime.step.exchange.narrowing import Wire
from ratrain.runtime.step.exchange.slots import Slots, Unlike
from ratrain.runtime.step.exchange.unlike_views import UnlikeView
from ratrain.runtime.step.frozen import FROZEN, FrozenShare
from ratrain.runtime.step.held import HeldStates
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.optimizer import OwnedPart, owned_range, parameters_in
from ratrain.runtime.step.outer import OuterStates
from ratrain.runtime.step.schedule import LocalUnit, Schedule

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Numbers(NamedTuple):
    """In what a rank computes, and in what its gradients add up."""

    dtype: torch.dtype
    gradient_dtype: torch.dtype


Source = Callable[[str, str, int, int], Tensor]
"""(unit, kind of state in a checkpoint, begin, end) -> fp32 values of that range."""


class Collectives(NamedTuple):
    """By which algorithms a unit's holders reduce its gradient, and gather its weights."""

    reduces: str
    gathers: str


DIRECTLY = Collectives(DIRECT, DIRECT)
_NO_TIERS: Mapping[str, Tier] = {}


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
    residual: Residual | None = None  # what rounding took away from the gradient last sent
    by: Collectives = DIRECTLY
    overflowed: bool | None = None  # as its owners agreed; None: they have no parts to agree on
    dtypes: tuple[torch.dtype, ...] = ()  # of the holders' views; (): all have this rank's
    frozen_share: FrozenShare | None = None  # level 3, of weights that nobody updates
    outer: OuterStates | None = None  # of an outer optimizer
    own: bool = False  # other replicas' states differ, and are saved by themselves

    @property
    def trained(self) -> bool:
        """Whether anything of it is updated: else it has no gradient."""
        return self.unit.layout.size > 0

    @property
    def gathered_elements(self) -> int:
        """Of the views that level 3 gathers, one behind the other: of what is updated, and of what
        is not."""
        return self.padded + (self.frozen_share.padded if self.frozen_share else 0)

    def attach_gathered(self, flat: Tensor | None) -> None:
        """Weights are read from what was gathered from now on; None: not for a while."""
        if self.frozen_share is not None:
            self.weights.attach_frozen(None if flat is None else flat[self.padded :])
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


@dataclass
class RankStates:
    """Everything that one rank holds. Gradients add up in `gradient_dtype` and are sent as `wire`
    says, rounded once, when their sum over micro-batches is complete. `held`: what ops make and
    the program frees."""

    units: list[UnitState]
    dtype: torch.dtype
    gradient_dtype: torch.dtype
    wire: Wire
    device: torch.device
    transit: list[Tensor]
    gathered: list[Tensor]
    buckets: Buckets | None  # for gradients that leave while backward makes them
    held: HeldStates
    away: AwayStates  # optimizer states that wait in another tier
    _kept: dict[int, Tensor] | None = None  # gradients that stay in place

    def complete(self, network: Network) -> None:
        """Fills what this rank holds and others own, from them. All ranks call this together, once
        each has read what it owns; units come in model order, so none waits for another that waits
        for it."""
        for unit in self.units:
            if unit.own:
                continue  # each replica has read its own
            for buffer in chain(unit.replicated, unit.whole_states()):
                unit.gather(network, Lane.GATHER, buffer)
            if unit.dtypes and unit.view is not None and unit.trained:
                unit.complete_view(network)

    def named(self) -> Iterator[tuple[object, str]]:
        """What is there all the time, and what it is; weights that are a view are called one."""
        for unit in self.units:
            for part in () if unit.local.index in self.away else unit.parts:
                yield part.weights, f"master weights of unit {unit.name}"
                for number, state in enumerate(part.states):
                    if isinstance(state, Plain):  # others have no one tensor
                        yield state.tensor, f"optimizer state {number} of unit {unit.name}"
            yield unit.view, f"view of unit {unit.name}"
            yield unit.shard_view, f"shard of the view of unit {unit.name}"
        for family, slots in (("transit", self.transit), ("gathered", self.gathered)):
            yield from ((slot, f"slot {n} of {family}") for n, slot in enumerate(slots))

    def new_gradient(self, unit: UnitState) -> Tensor:
        """Zeros for the sum of a unit's gradients over micro-batches."""
        if self._kept is None:
            return torch.zeros(unit.padded, dtype=self.gradient_dtype, device=self.device)
        return self.kept_gradient(unit).zero_()

    def keep_gradients(self) -> None:
        """From now on each unit's gradient is in the same memory in every step."""
        self._kept = {}

    def kept_gradient(self, unit: UnitState) -> Tensor:
        """That memory."""
        assert self._kept is not None
        index = unit.local.index
        if index not in self._kept:
            size, dtype = unit.padded, self.gradient_dtype
            self._kept[index] = torch.empty(size, dtype=dtype, device=self.device)
        return self._kept[index]

    def new_shard(self, unit: UnitState) -> Tensor:
        """Zeros for the sum of what this rank owns of a unit's gradients."""
        return torch.zeros(unit.owned_elements, dtype=self.gradient_dtype, device=self.device)


def rank_states(
    schedule: Schedule,
    seats: Seats,
    seat: Seat,
    make_unit: Callable[[str], Unit],
    source: Source,
    numbers: Sequence[Numbers],
    wire: Wire,
    device: Device,
    optimizer: Optimizer,
    collectives: Callable[[str], Collectives] = lambda _: DIRECTLY,
    tiers: Mapping[str, Tier] = _NO_TIERS,
) -> RankStates:
    """The states of a rank. What it owns of weights and states is read from `source`, range by
    range; the rest is for `RankStates.complete`. `collectives`: of each unit. `numbers`: of each
    world rank. `tiers`: where optimizer states wait, by name."""
    setup, (dtype, gradient_dtype) = schedule.program.setup, numbers[seat.world_rank]
    holders = holders_of(setup, seats, seat.division.rank)
    groups = groups_of(setup, seats)
    held = HeldStates(device)
    away = AwayStates(device)
    units: list[UnitState] = []
    for local in schedule.units:
        unit = _unit_state(
            held,
            local,
            setup,
            holders[local.unit.name],
            groups.get(local.unit.name),
            seat,
            make_unit,
            source,
            device.place,
            optimizer,
            [each.dtype for each in numbers],
        )
        unit.by = collectives(unit.name)
        units.append(unit)
        if local.optimizer_tier:
            views = (view for view in (unit.view, unit.shard_view) if view is not None)
            tier = tiers[local.optimizer_tier]
            away.add(local.index, AwayUnit(unit.name, tier, unit.parts, views))
    largest = max(unit.padded for unit in units)

    def slots(count: int, dtype: torch.dtype, elements: int) -> list[Tensor]:
        return [torch.zeros(elements, dtype=dtype, device=device.place) for _ in range(count)]

    transit = slots(1 + max(op.transit for op in schedule.ops), gradient_dtype, largest)
    # Views that are gathered for a whole pass come and go with it.
    turns = 0 if setup.gathers_per_pass else 1 + max(op.gathered for op in schedule.ops)
    largest_view = max(unit.gathered_elements for unit in units)
    gathered = slots(turns, dtype, largest_view)
    buckets: Buckets | None = None
    if setup.backward_sends and setup.bucket_bytes is not None:
        owners = max(len(unit.holders) for unit in units)
        buckets = made_buckets(
            setup.transit_slots,
            setup.bucket_bytes,
            largest,
            owners,
            gradient_dtype,
            device,
            widest=max(each.gradient_dtype.itemsize for each in numbers),
            in_pieces=any(each.gradient_dtype != each.dtype for each in numbers),
        )
    states = RankStates(
        units, dtype, gradient_dtype, wire, device.place, transit, gathered, buckets, held, away
    )
    for tensor, words in states.named():
        device.name(tensor, words)
    return states


def _cut_alike(name: str, setup: Setup) -> tuple[str, ...]:
    """Units whose buffers are of one size. Those of a tied matrix are, in both of which it comes
    first: so owners at both ends have the same part of it, to add up with each other."""
    tied = (EMBEDDING, HEAD)
    return tied if setup.tied and name in tied else (name,)


def _unlike(dtypes: Sequence[torch.dtype], holders: Holders) -> tuple[torch.dtype, ...]:
    """The dtypes of a unit's holders; none where all have one."""
    of_holders = tuple(dtypes[rank] for rank in holders)
    return of_holders if len(set(of_holders)) > 1 else ()


def _unit_state(
    held_states: HeldStates,
    local: LocalUnit,
    setup: Setup,
    holders: Holders,
    groups: Groups | None,
    seat: Seat,
    make_unit: Callable[[str], Unit],
    source: Source,
    device: torch.device,
    optimizer: Optimizer,
    dtypes_of_ranks: Sequence[torch.dtype],
) -> UnitState:
    unit, name = make_unit(local.unit.name), local.unit.name
    dtype = dtypes_of_ranks[seat.world_rank]
    layout, place = unit.layout, holders.index(seat.world_rank)
    slots = None
    if groups is not None:
        slots = Slots(layout, groups, seat.world_rank, parts_of_units(setup)[name])
    dtypes = _unlike(dtypes_of_ranks, holders if slots is None else slots.holders)
    if slots is not None:
        padded, shares = layout.size, slots.owned
    else:
        alike = _cut_alike(name, setup)
        padded = max(make_unit(replica_unit).layout.padded(len(holders)) for replica_unit in alike)
        shares = (slice(*owned_range(padded, len(holders), place)),)
    if not layout.size:
        shares = ()
    whole, is_sharded = slice(0, padded), bool(setup.sharding) and len(holders) > 1
    is_away = bool(local.optimizer_tier)
    is_own = setup.averages.by_turns and len(holders) > 1

    def owned(kind: str, held: slice) -> Tensor:
        """A range of a buffer, of which what this rank owns is read; all of it where that waits in
        another tier, and is complete from the start."""
        values = torch.zeros(held.stop - held.start, dtype=torch.float32, device=device)
        kind = own_kind(kind, place, len(holders)) if is_own else kind
        for share in (held,) if is_own or (is_away and not is_sharded) else shares:
            known = min(share.stop, layout.size)
            if held.start <= share.start < min(known, held.stop):
                at = slice(share.start - held.start, known - held.start)
                values[at] = source(name, kind, share.start, known).to(device)
        return values

    view = shard_view = None
    if local.gathered:
        of_shares = [owned("weights", share) for share in shares] or [torch.zeros(0, device=device)]
        shard_view = (of_shares[0] if len(of_shares) == 1 else torch.cat(of_shares)).to(dtype)
    else:
        view = owned("weights", whole).to(dtype)

    def read_frozen(run: slice) -> Tensor:
        return source(name, FROZEN, run.start, run.stop).to(device=device, dtype=dtype)

    def master(held: slice, first: int = 0) -> Tensor:
        """Master weights; in fp32 the weights that compute reads. `first`: where a share begins in
        the shard."""
        weights = None if view is None else view[held]
        if shard_view is not None:
            weights = shard_view[first : first + held.stop - held.start]
        if weights is None or dtype != torch.float32:
            weights = owned("weights", held)
        return weights

    def part(run: slice, weights: Tensor) -> OwnedPart:
        inside = parameters_in(layout, run)
        states = tuple(state.hold(owned(state.name, run), inside) for state in optimizer.states)
        return OwnedPart(run.start, run.stop, layout.decay_end, weights, states, inside)

    replicated = [] if view is None or dtypes else [view]
    if not layout.size:
        replicated, parts = [], list[OwnedPart]()
    elif is_sharded:
        sizes = [share.stop - share.start for share in shares]
        begins = [0, *accumulate(sizes[:-1])]
        parts = [part(run, master(run, at)) for run, at in zip(shares, begins, strict=True)]
    else:
        weights = master(whole)
        if not is_away and (dtypes or view is None or view.data_ptr() != weights.data_ptr()):
            replicated.append(weights)
        runs = (whole,) if slots is None else slots.runs
        parts = [part(run, weights[run]) for run in runs]
    weights, frozen_share = Weights(layout), None
    if view is not None:
        weights.attach_view(view)
    if layout.frozen is not None and local.gathered:
        frozen_share = _frozen_share(
            layout.frozen, holders, groups, seat, parts_of_units(setup)[name], read_frozen
        )
    elif layout.frozen is not None:
        weights.attach_frozen(read_frozen(slice(0, layout.frozen.size)))
    residual = None
    if setup.error_feedback and len(holders) > 1 and layout.size:
        kind = residual_kind(place, len(holders))
        kept = torch.zeros(padded, dtype=torch.float32, device=device)
        kept[: layout.size] = source(name, kind, 0, layout.size).to(device)
        residual = Residual(kept, torch.zeros_like(kept) if setup.error_feedback == 2 else None)
    outer = None
    if setup.outer and is_own and layout.size:
        read = (OUTER_WEIGHTS, OUTER_MOMENTUM)
        kept_outer = [torch.zeros(padded, dtype=torch.float32, device=device) for _ in read]
        for kind, into in zip(read, kept_outer, strict=True):
            into[: layout.size] = source(name, kind, 0, layout.size).to(device)
        outer = OuterStates(*kept_outer)
        if setup.narrow_averages:
            unsent = torch.zeros(padded, dtype=torch.float32, device=device)
            kind = own_kind(OUTER_RESIDUAL, place, len(holders))
            unsent[: layout.size] = source(name, kind, 0, layout.size).to(device)
            outer.residual = Residual(unsent)
    return UnitState(
        held_states,
        local,
        unit,
        weights,
        seat.division,
        holders,
        place,
        padded,
        shares,
        tuple(parts),
        tuple(replicated) if len(holders) > 1 else (),
        len(holders) > 1 and not is_sharded and not is_away and layout.size > 0,
        slots,
        view,
        shard_view,
        residual=residual,
        dtypes=dtypes,
        frozen_share=frozen_share,
        outer=outer,
        own=is_own,
    )


def _frozen_share(
    frozen: UnitParameters,
    holders: Holders,
    groups: Groups | None,
    seat: Seat,
    count: int,
    read: Callable[[slice], Tensor],
) -> FrozenShare:
    """This rank's share of a unit's weights that nobody updates, owned as those are that are."""
    if groups is not None:
        slots = Slots(frozen, groups, seat.world_rank, count)
        padded, shares = frozen.size, slots.owned
    else:
        slots, padded = None, frozen.padded(len(holders))
        place = holders.index(seat.world_rank)
        shares = (slice(*owned_range(padded, len(holders), place)),)
    pieces = [
        functional.pad(read(slice(share.start, end)), (0, share.stop - end))
        for share in shares
        for end in (max(share.start, min(share.stop, frozen.size)),)
    ]
    values = torch.cat(pieces) if pieces else read(slice(0, 0))
    return FrozenShare(padded, shares, values, holders, slots)
