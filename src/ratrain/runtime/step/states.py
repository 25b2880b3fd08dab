"""The states of one rank as tensors: what the ledger counts, held where ops find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from ratrain.describe.optimizers import Optimizer, Plain
from ratrain.devices import Device
from ratrain.models.units import Unit
from ratrain.program.kind import Kind, Lane
from ratrain.program.tiers import DISK
from ratrain.runtime.seats import Seat, Seats, at_sites, groups_of, holders_of, numbers_at_sites
from ratrain.runtime.step.away import AwayFlat, AwayOptimizer, AwayStates, Clock
from ratrain.runtime.step.below import Tier, page_tensor
from ratrain.runtime.step.exchange.buckets import Buckets, made_buckets
from ratrain.runtime.step.exchange.narrowing import Wire
from ratrain.runtime.step.held import HeldStates
from ratrain.runtime.step.made_unit import Making, Source
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.schedule import Key, Schedule
from ratrain.runtime.step.spilled import Places, places_of
from ratrain.runtime.step.unit_state import DIRECTLY, Across, Collectives, UnitState

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Numbers(NamedTuple):
    """In what a rank computes, and in what its gradients add up."""

    dtype: torch.dtype
    gradient_dtype: torch.dtype


_NO_TIERS: Mapping[str, Tier] = {}


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
    away: Mapping[str, AwayStates]  # optimizer, view and gradient, where they wait elsewhere
    places: Mapping[Key, Places]  # where what waits of micro-batches waits, of each sort and unit
    bounce: Tensor | None  # where what goes to disk of a micro-batch becomes one run of bytes
    _kept: dict[int, Tensor] | None = None  # gradients that stay in place

    def complete(self, network: Network) -> None:
        """Fills what this rank holds and others own, from them. All ranks call this together, once
        each has read what it owns; units come in model order, so none waits for another that waits
        for it."""
        for unit in self.units:
            if unit.own and unit.across is None:
                continue  # each replica has read its own
            for buffer in chain(unit.replicated, unit.whole_states()):
                unit.gather(network, Lane.GATHER, buffer)
            if unit.dtypes and unit.view is not None and unit.trained:
                unit.complete_view(network)

    def named(self) -> Iterator[tuple[object, str]]:
        """What is there all the time, and what it is; weights that are a view are called one."""
        for unit in self.units:
            for part in () if unit.local.index in self.away["optimizer"] else unit.parts:
                yield part.weights, f"master weights of unit {unit.name}"
                for number, state in enumerate(part.states):
                    if isinstance(state, Plain):  # others have no one tensor
                        yield state.tensor, f"optimizer state {number} of unit {unit.name}"
            for held in (unit.beside, *(part.beside for part in unit.parts)):
                yield from ((e.values(), f"{name} of unit {unit.name}") for name, e in held.items())
            yield unit.view, f"view of unit {unit.name}"
            yield unit.shard_view, f"shard of the view of unit {unit.name}"
        for family, slots in (("transit", self.transit), ("gathered", self.gathered)):
            yield from ((slot, f"slot {n} of {family}") for n, slot in enumerate(slots))

    def moved_bytes(self, index: int) -> dict[str, int]:
        """Of a unit's states of each sort that wait, what a move to their tier takes there."""
        moved = {sort: away.moved_bytes(index) for sort, away in self.away.items() if index in away}
        places = {sort: of.size_bytes for (sort, unit), of in self.places.items() if unit == index}
        return moved | places

    def move_s(self, index: int, sort: str, clock: Clock) -> tuple[float, float]:
        """What states of a sort take from their tier and back, outside of any step."""
        if (sort, index) in self.places:
            return self.places[sort, index].times_s(self.bounce, clock)
        return self.away[sort].times_s(index, clock)

    def new_gradient(self, unit: UnitState) -> Tensor:
        """Zeros for the sum of a unit's gradients over micro-batches."""
        if self._kept is None:
            return torch.zeros(unit.padded, dtype=self.gradient_dtype, device=self.device)
        return self.kept_gradient(unit).zero_()

    def gradient_in(self, unit: UnitState, slot: Key) -> Tensor:
        """A unit's gradient in a slot, of those that wait in another tier."""
        return self.away["gradient"].flat(unit.local.index, slot)

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
    hosts: Sequence[int] = (),
    weights: Sequence[float] = (),
) -> RankStates:
    """The states of a rank. What it owns of weights and states is read from `source`, range by
    range; the rest is for `RankStates.complete`. `collectives`: of each unit. `numbers`,
    `hosts`: of each world rank. `tiers`: where optimizer states wait, by name. `weights`: of the
    sites in a mean (`Across`); left out: all count alike."""
    setup, (dtype, gradient_dtype) = schedule.program.setup, numbers[seat.world_rank]
    holders = holders_of(setup, seats, seat.division.rank)
    groups, unlike = groups_of(setup, seats), numbers_at_sites(setup, seats)
    held = HeldStates(device)
    away = {sort: AwayStates(device) for sort in ("optimizer", "view", "gradient")}
    dtypes = [each.dtype for each in numbers]
    making = Making(
        held,
        setup,
        seat,
        make_unit,
        source,
        device.place,
        optimizer,
        dtypes,
        hosts or (0,) * seats.world_size,
    )
    units: list[UnitState] = []
    leave = (Kind.StoreGradient, Kind.StoreSum)
    stores = {op.unit for op in schedule.ops if op.kind in leave}
    for local in schedule.units:
        name = local.unit.name
        at = at_sites(setup, seats, holders[name])
        here = next(site for site in at if seat.world_rank in site)
        across: Across | None = None
        sites = unlike.get(name, tuple((site,) for site in at))
        if len(sites) > 1:
            site = next(number for number, numbers in enumerate(sites) if here in numbers)
            weight = weights[site] if weights else 1.0
            across = Across(sites, site, weight, unlike=name in unlike)
        unit = making.unit(local, here, groups.get(name), across)
        unit.by = collectives(unit.name)
        units.append(unit)
        views = [view for view in (unit.view, unit.shard_view) if view is not None]
        if local.waits("view"):
            unit.weights.attach_view(None)
            unit.view = unit.shard_view = None
            (view,) = views
            away["view"].add(local.index, AwayFlat(unit.name, tiers[local.tiers["view"]], view))
            views = []
        if local.waits("gradient"):
            tier = tiers[local.tiers["gradient"]]
            zeros = torch.zeros(unit.padded, dtype=gradient_dtype, device=device.place)
            gradient = AwayFlat(unit.name, tier, zeros, "gradient")
            stored, there = local.index in stores, away["gradient"]
            (there.add if stored else there.hold)(local.index, gradient)
            del zeros
        if local.waits("optimizer"):
            tier = tiers[local.tiers["optimizer"]]
            optimizer_away = AwayOptimizer(unit.name, tier, unit.parts, views)
            away["optimizer"].add(local.index, optimizer_away)
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
    places = places_of(schedule, tiers, device)
    spilled = [
        of_unit.size_bytes
        for (sort, unit), of_unit in places.items()
        if schedule.units[unit].tiers[sort] == DISK
    ]
    states = RankStates(
        units,
        dtype,
        gradient_dtype,
        wire,
        device.place,
        transit,
        gathered,
        buckets,
        held,
        away,
        places,
        page_tensor(max(spilled), device) if spilled else None,
    )
    for tensor, words in states.named():
        device.name(tensor, words)
    return states
