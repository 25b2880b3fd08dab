"""One unit's states on one rank, made: what the rank owns is read, the rest is for its owners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import lcm

import torch
from torch import Tensor
from torch.nn import functional

from ratrain.checkpoint.own import own_kind
from ratrain.describe.optimizers import Held, Optimizer
from ratrain.describe.saved import (
    OUTER_MOMENTUM,
    OUTER_RESIDUAL,
    OUTER_WEIGHTS,
    SAVED,
    WEIGHTS,
    Saved,
    saved_as,
)
from ratrain.errors import SpecError
from ratrain.models.division import Division
from ratrain.models.packed import packed_range
from ratrain.models.parameters import UnitParameters, lay_out
from ratrain.models.shapes import EMBEDDING, HEAD
from ratrain.models.units import Unit
from ratrain.models.weights import Weights
from ratrain.plugins import named
from ratrain.program.promise import buddies
from ratrain.program.setup import Setup
from ratrain.program.tiers import DISK
from ratrain.runtime.seats import Groups, Holders, Seat, parts_of_units
from ratrain.runtime.step.exchange.between_sites import Shared, alike
from ratrain.runtime.step.exchange.feedback import Residual
from ratrain.runtime.step.exchange.slots import Slots
from ratrain.runtime.step.frozen import FROZEN, FrozenShare
from ratrain.runtime.step.held import HeldStates
from ratrain.runtime.step.mirror import Mirror, in_pages, room
from ratrain.runtime.step.optimizer import OwnedPart, owned_range, parameters_in
from ratrain.runtime.step.outer import OuterStates
from ratrain.runtime.step.schedule import LocalUnit
from ratrain.runtime.step.unit_state import Across, UnitState

Source = Callable[[str, str, int, int], Tensor]
"""(unit, kind of state in a checkpoint, begin, end) -> fp32 values of that range."""


@dataclass(frozen=True)
class Making:
    """What all units of a rank are made of. `dtypes`, `hosts`: of each world rank."""

    held: HeldStates
    setup: Setup
    seat: Seat
    make_unit: Callable[[str], Unit]
    source: Source
    device: torch.device
    optimizer: Optimizer
    dtypes: Sequence[torch.dtype]
    hosts: Sequence[int]

    def unit(
        self, local: LocalUnit, holders: Holders, groups: Groups | None, across: Across | None
    ) -> UnitState:
        """The states of a unit that these ranks hold; `groups`: where at unlike tensor degrees."""
        return _OfUnit(self, local, holders, groups, across).made()


class _OfUnit:
    """One unit's states, while they are made."""

    def __init__(
        self,
        making: Making,
        local: LocalUnit,
        holders: Holders,
        groups: Groups | None,
        across: Across | None,
    ) -> None:
        self._across = across
        self._of, self._local, self._holders, self._groups = making, local, holders, groups
        self._unit, self._name = making.make_unit(local.unit.name), local.unit.name
        self._layout, self._dtype = self._unit.layout, making.dtypes[making.seat.world_rank]
        self._place = holders.index(making.seat.world_rank)
        self._is_shared = len(holders) > 1
        self._is_sharded = bool(making.setup.sharding) and self._is_shared
        self._is_away = local.waits("optimizer")
        self._view_is_away = local.waits("view")
        self._place_of_own = (self._place, len(holders))
        if across is not None:
            self._place_of_own = (across.site, len(across.sites))
        alone = self._is_shared and not making.setup.sites
        self._is_own = making.setup.averages.by_turns and (alone or across is not None)
        self._slots: Slots | None = None
        if groups is not None:
            self._slots = Slots(self._layout, groups, making.seat.world_rank, self._parts_of_unit)
        self._padded, self._shares = self._sizes()

    @property
    def _parts_of_unit(self) -> int:
        return parts_of_units(self._of.setup)[self._name]

    def _sizes(self) -> tuple[int, tuple[slice, ...]]:
        """Elements of the flat buffers, and what this rank owns of them."""
        if self._slots is not None:
            padded, shares = self._layout.size, self._slots.owned
        else:
            padded = self._padded_at(self._of.seat.division, self._owners)
            shares = (slice(*owned_range(padded, len(self._holders), self._place)),)
        return padded, shares if self._layout.size else ()

    def _padded_at(self, division: Division, owners: int) -> int:
        """Elements of the buffers of a part of the unit that so many ranks own."""
        layouts = [self._of.make_unit(name).layout for name in self._cut_alike()]
        if division != self._of.seat.division:
            layouts = [lay_out(_shapes(layout), division) for layout in layouts]
        return max(layout.padded(owners) for layout in layouts)

    @property
    def _owners(self) -> int:
        """How many equal parts the flat buffers have: one of each holder; where sites average
        weights in place every owner anywhere has whole ones of each site's."""
        if self._across is None or self._across.unlike:
            return len(self._holders)
        return len(self._across.sites) * lcm(*(len(own) for (own,) in self._across.sites))

    def _shared(self) -> Shared | None:
        """What sites average of it."""
        across = self._across
        if across is None or not self._layout.size:
            return None
        if not across.unlike:
            return alike(tuple(own for (own,) in across.sites), self._padded)
        sizes = tuple(
            self._padded_at(Division(0, len(numbers)), len(numbers[0])) for numbers in across.sites
        )
        return Shared(across.sites, sizes, _shapes(self._layout))

    def _cut_alike(self) -> tuple[str, ...]:
        """Units whose buffers are of one size. Those of a tied matrix are, in both of which it
        comes first: so owners at both ends have the same part of it, to add up with each other."""
        tied = (EMBEDDING, HEAD)
        return tied if self._of.setup.tied and self._name in tied else (self._name,)

    def made(self) -> UnitState:
        dtypes = self._unlike()
        view, shard_view = self._views()
        parts, replicated = self._weights(view, shard_view, shares_views=not dtypes)
        weights = Weights(self._layout)
        if view is not None:
            weights.attach_view(view)
        frozen_share = self._frozen(weights)
        trains = self._layout.size > 0
        return UnitState(
            self._of.held,
            self._local,
            self._unit,
            weights,
            self._of.seat.division,
            self._holders,
            self._place,
            self._padded,
            self._shares,
            tuple(parts),
            tuple(replicated) if self._is_shared else (),
            self._is_shared and not self._is_sharded and not self._is_away and trains,
            self._slots,
            view,
            shard_view,
            beside=self._entries(slice(0, self._padded), whole=True),
            dtypes=dtypes,
            frozen_share=frozen_share,
            outer=_outer(parts),
            own=self._is_own,
            across=self._across,
            shared=self._shared(),
            mirror=self._mirror(),
        )

    def _unlike(self) -> tuple[torch.dtype, ...]:
        """The dtypes of the unit's holders; none where all have one."""
        holders = self._holders if self._slots is None else self._slots.holders
        of_holders = tuple(self._of.dtypes[rank] for rank in holders)
        return of_holders if len(set(of_holders)) > 1 else ()

    def _owned(self, kind: str, held: slice) -> Tensor:
        """A range of a buffer, of which what this rank owns is read; all of it where that waits in
        another tier, and is complete from the start."""
        values = torch.zeros(held.stop - held.start, dtype=torch.float32, device=self._of.device)
        reads_all = self._is_own and self._across is None
        reads_all |= self._is_away and not self._is_sharded
        reads_all |= kind == WEIGHTS and self._view_is_away
        for share in (held,) if reads_all else self._shares:
            known = min(share.stop, self._layout.size)
            if held.start <= share.start < min(known, held.stop):
                at = slice(share.start - held.start, known - held.start)
                read = self._of.source(self._name, self._stored(kind), share.start, known)
                values[at] = read.to(self._of.device)
        return values

    def _stored(self, kind: str) -> str:
        """An entry's name in checkpoints."""
        own = saved_as(kind).is_own(apart=self._is_own)
        return own_kind(kind, *self._place_of_own) if own else kind

    def _entries(self, held: slice, *, whole: bool = False) -> dict[str, Held]:
        """Further entries of a range of the unit, read: those of parts, or of all of it."""
        return {
            saved.name: self._entry(saved, held)
            for saved in SAVED.declared
            if saved.family in self._local.lasting and saved.whole is whole
            if saved.asked(self._of.setup)
        }

    def _entry(self, saved: Saved, held: slice) -> Held:
        tier, values = self._local.lasting[saved.family], self._read(saved.name, held)
        unlike = self._slots or (self._across is not None and self._across.unlike)
        if tier == DISK or (saved.whole and unlike):
            raise SpecError(
                f"the checkpoint entry {saved.name} is of whole units that replicas hold at unlike "
                "tensor degrees, or waits on disk, which nothing reads and writes it for",
                place=f"declare_saved({saved.name!r})",
                fix="declare it for parts of units, of a family of the device or of host memory",
            )
        if tier:
            values = in_pages(values)
        entry = named(saved.hold)(values)
        if isinstance(entry, Residual) and self._of.setup.error_feedback == 2:
            entry.following = torch.zeros_like(values)
        return entry

    def _read(self, kind: str, held: slice) -> Tensor:
        """A buffer of a range of the unit, read, whoever owns it."""
        values = torch.zeros(held.stop - held.start, dtype=torch.float32, device=self._of.device)
        known = min(held.stop, self._layout.size)
        if held.start < known:
            read = self._of.source(self._name, self._stored(kind), held.start, known)
            values[: known - held.start] = read.to(self._of.device)
        return values

    def _views(self) -> tuple[Tensor | None, Tensor | None]:
        """The weights that compute reads: whole, or where they are gathered this rank's shares."""
        if not self._local.gathered:
            return self._owned(WEIGHTS, slice(0, self._padded)).to(self._dtype), None
        of_shares = [self._owned(WEIGHTS, share) for share in self._shares]
        of_shares = of_shares or [torch.zeros(0, device=self._of.device)]
        shard = of_shares[0] if len(of_shares) == 1 else torch.cat(of_shares)
        return None, shard.to(self._dtype)

    def _weights(
        self, view: Tensor | None, shard_view: Tensor | None, *, shares_views: bool
    ) -> tuple[list[OwnedPart], list[Tensor]]:
        """What this rank updates, and the weights of the whole unit that it has. `shares_views`:
        all holders compute in one dtype."""
        replicated = [view] if view is not None and shares_views and not self._view_is_away else []
        if not self._layout.size:
            return [], []
        if self._is_sharded:
            sizes = [share.stop - share.start for share in self._shares]
            begins = [0, *accumulate(sizes[:-1])]
            return [
                self._part(run, self._master(run, view, shard_view, at))
                for run, at in zip(self._shares, begins, strict=True)
            ], replicated
        whole = slice(0, self._padded)
        weights = self._master(whole, view, shard_view)
        is_view = view is not None and view.data_ptr() == weights.data_ptr()
        if not self._is_away and not (shares_views and is_view):
            replicated.append(weights)
        runs = (whole,) if self._slots is None else self._slots.runs
        return [self._part(run, weights[run]) for run in runs], replicated

    def _master(
        self, held: slice, view: Tensor | None, shard_view: Tensor | None, first: int = 0
    ) -> Tensor:
        """Master weights; in fp32 the weights that compute reads. `first`: where a share begins in
        the shard."""
        weights = None if view is None else view[held]
        if shard_view is not None:
            weights = shard_view[first : first + held.stop - held.start]
        if weights is None or self._dtype != torch.float32 or self._view_is_away:
            weights = self._owned(WEIGHTS, held)
        return weights

    def _part(self, run: slice, weights: Tensor) -> OwnedPart:
        inside = parameters_in(self._layout, run)
        states = tuple(
            state.hold(self._owned(state.name, run), inside) for state in self._of.optimizer.states
        )
        beside = self._entries(run)
        end = self._layout.decay_end
        return OwnedPart(run.start, run.stop, end, weights, states, inside, beside)

    def _mirror(self) -> Mirror | None:
        """Another holder's part, where each has its own alone."""
        if not self._of.setup.is_mirrored(self._name):
            return None
        if self._of.device.type != "cpu":
            raise SpecError(
                f"mirrors are updated by processors, which round otherwise than {self._of.device}",
                place="[schedule] mirror",
                fix="leave it out: after a loss the run goes on from the latest checkpoint",
            )
        buddy, owner = buddies([self._of.hosts[rank] for rank in self._holders], self._place)
        begin, end = owned_range(self._padded, len(self._holders), owner)
        run = slice(begin, end)
        inside = parameters_in(self._layout, run)
        states = tuple(
            state.hold(in_pages(self._read(state.name, run)), inside)
            for state in self._of.optimizer.states
        )
        weights = in_pages(self._read(WEIGHTS, run))
        part = OwnedPart(begin, end, self._layout.decay_end, weights, states, inside)
        return Mirror(buddy, owner, part, room(weights.nbytes))

    def _frozen(self, weights: Weights) -> FrozenShare | None:
        """Attaches the weights that nobody updates; this rank's share where they are gathered."""
        frozen = self._layout.frozen
        if frozen is None:
            return None
        if self._local.gathered:
            return self._frozen_share(frozen)
        weights.attach_frozen(self._read_frozen(slice(0, (frozen.packed or frozen).size)))
        return None

    def _read_frozen(self, run: slice) -> Tensor:
        """A run of their buffer, or of the bytes in which they are held."""
        frozen = self._layout.frozen
        if frozen is not None and frozen.packed is not None:
            read = partial(self._of.source, self._name, FROZEN)
            return packed_range(frozen, read, run.start, run.stop).to(self._of.device)
        read = self._of.source(self._name, FROZEN, run.start, run.stop)
        return read.to(device=self._of.device, dtype=self._dtype)

    def _frozen_share(self, frozen: UnitParameters) -> FrozenShare:
        """This rank's share of the weights that nobody updates, owned as those are that are."""
        frozen = frozen.packed or frozen
        if self._groups is not None:
            world_rank = self._of.seat.world_rank
            slots = Slots(frozen, self._groups, world_rank, self._parts_of_unit)
            padded, shares = frozen.size, slots.owned
        else:
            slots, padded = None, frozen.padded(len(self._holders))
            shares = (slice(*owned_range(padded, len(self._holders), self._place)),)
        pieces = [
            functional.pad(self._read_frozen(slice(share.start, end)), (0, share.stop - end))
            for share in shares
            for end in (max(share.start, min(share.stop, frozen.size)),)
        ]
        values = torch.cat(pieces) if pieces else self._read_frozen(slice(0, 0))
        elements = padded * values.element_size() // self._dtype.itemsize
        return FrozenShare(elements, shares, values, self._holders, slots)


def _shapes(layout: UnitParameters) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Those of the model's parameters."""
    return tuple((parameter.name, parameter.whole_shape) for parameter in layout.parameters)


def _outer(parts: Sequence[OwnedPart]) -> OuterStates | None:
    """Of an outer optimizer, where a unit has one."""
    for held in (part.beside for part in parts if OUTER_WEIGHTS in part.beside):
        residual = held.get(OUTER_RESIDUAL)
        assert residual is None or isinstance(residual, Residual)
        return OuterStates(held[OUTER_WEIGHTS].values(), held[OUTER_MOMENTUM].values(), residual)
    return None
