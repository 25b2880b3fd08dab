"""The states of one rank as tensors: what the ledger counts, held where ops find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ratrain.checkpoint.residuals import residual_kind
from ratrain.cost.algorithms import DIRECT
from ratrain.models.division import Division
from ratrain.models.shapes import EMBEDDING, HEAD
from ratrain.models.units import Unit
from ratrain.models.weights import Weights
from ratrain.program.kind import Kind, Lane
from ratrain.program.setup import Setup
from ratrain.runtime.seats import Holders, Seat, Seats, holders_of
from ratrain.runtime.step.buckets import Buckets, made_buckets
from ratrain.runtime.step.feedback import Residual
from ratrain.runtime.step.narrowing import Wire
from ratrain.runtime.step.network import Network
from ratrain.runtime.step.optimizer import OwnedPart, owned_range
from ratrain.runtime.step.schedule import LocalUnit, Schedule
from ratrain.runtime.step.tensor_parts import stored_name

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Source = Callable[[str, str, int, int], Tensor]
"""(unit, kind of state in a checkpoint, begin, end) -> fp32 values of that range."""


class Collectives(NamedTuple):
    """By which algorithms a unit's holders reduce its gradient, and gather its weights."""

    reduces: str
    gathers: str


DIRECTLY = Collectives(DIRECT, DIRECT)


class Graph(NamedTuple):
    """What backward needs: the end of autograd's graph, and the leaf at its beginning."""

    edge: Any
    leaf: Tensor


@dataclass
class UnitState:
    """One unit's persistent and passing buffers."""

    local: LocalUnit
    unit: Unit
    weights: Weights
    division: Division
    holders: Holders  # this rank among them: they reduce its gradient, and gather it
    padded: int  # elements of the flat buffers
    owned: slice  # the part that this rank owns in a reduction
    part: OwnedPart
    view: Tensor | None = None  # levels 0 to 2
    shard_view: Tensor | None = None  # level 3
    gradient: Tensor | None = None
    shard: Tensor | None = None  # sharded accumulation
    residual: Residual | None = None  # what rounding took away from the gradient last sent
    by: Collectives = DIRECTLY
    overflowed: bool | None = None  # as its owners agreed; None: they have no parts to agree on
    passing: dict[Kind, Tensor] = field(default_factory=dict[Kind, Tensor])
    """Views gathered for a whole pass, by the kind that gathered them."""

    @property
    def name(self) -> str:
        return self.local.unit.name

    @property
    def place(self) -> int:
        """The number of this rank among the unit's holders."""
        return self.owned.start // (self.owned.stop - self.owned.start)

    @property
    def stored_name(self) -> str:
        """The unit's name in a checkpoint."""
        return stored_name(self.name, self.division)

    @property
    def replicated(self) -> list[Tensor]:
        """Buffers of the whole unit, of which this rank owns a part."""
        part = self.part
        whole = [] if self.view is None else [self.view]
        if part.end - part.begin > self.owned.stop - self.owned.start:  # nothing is sharded
            whole += [part.moment1, part.moment2]
            if self.view is None or self.view.data_ptr() != part.weights.data_ptr():
                whole.append(part.weights)
        return whole if self.owned != slice(0, self.padded) else []

    @property
    def counted(self) -> list[slice]:
        """Pieces of the own share whose gradients the global norm counts on this rank: vectors
        that all ranks of a tensor group have count on the first alone."""
        share = self.owned
        if self.division.rank == 0:
            return [slice(0, share.stop - share.start)]
        return [
            slice(tensor.offset + low - share.start, tensor.offset + high - share.start)
            for tensor, low, high in self.unit.layout.overlaps(share.start, share.stop)
            if tensor.cut is not None
        ]


@dataclass
class RankStates:
    """Everything that one rank holds. Gradients add up in `gradient_dtype` and are sent as `wire`
    says, rounded once, when their sum over micro-batches is complete. Keys of activations are
    (unit index, micro-batch)."""

    units: list[UnitState]
    dtype: torch.dtype
    gradient_dtype: torch.dtype
    wire: Wire
    device: torch.device
    transit: list[Tensor]
    gathered: list[Tensor]
    buckets: Buckets | None  # for gradients that leave while backward makes them
    inputs: dict[tuple[int, int], Tensor] = field(default_factory=dict[tuple[int, int], Tensor])
    saved: dict[tuple[int, int], Any] = field(default_factory=dict[tuple[int, int], Any])
    outgrads: dict[tuple[int, int], Tensor] = field(default_factory=dict[tuple[int, int], Tensor])
    # Inputs that wait in host memory, and those that are back from there.
    fetched: dict[tuple[int, int], Tensor] = field(default_factory=dict[tuple[int, int], Tensor])
    hosted: dict[tuple[int, int], Tensor] = field(default_factory=dict[tuple[int, int], Tensor])
    sendx: dict[tuple[int, int], Tensor] = field(default_factory=dict[tuple[int, int], Tensor])
    sendg: dict[tuple[int, int], Tensor] = field(default_factory=dict[tuple[int, int], Tensor])
    # This rank's parts of sums over its tensor group, until they are summed.
    partial: dict[tuple[int, int], Tensor] = field(default_factory=dict[tuple[int, int], Tensor])
    partialb: dict[tuple[int, int], Tensor] = field(default_factory=dict[tuple[int, int], Tensor])

    def complete(self, network: Network) -> None:
        """Fills what this rank holds and others own, from them. All ranks call this together, once
        each has read what it owns; units come in model order, so none waits for another that waits
        for it."""
        for unit in self.units:
            for buffer in unit.replicated:
                network.gather(Lane.GATHER, buffer, unit.holders, unit.by.gathers)

    def new_gradient(self, unit: UnitState) -> Tensor:
        return torch.zeros(unit.padded, dtype=self.gradient_dtype, device=self.device)


def rank_states(
    schedule: Schedule,
    seats: Seats,
    seat: Seat,
    make_unit: Callable[[str], Unit],
    source: Source,
    dtype: torch.dtype,
    gradient_dtype: torch.dtype,
    wire: Wire,
    device: torch.device,
    collectives: Callable[[str], Collectives] = lambda _: DIRECTLY,
) -> RankStates:
    """The states of a rank. What it owns of weights and moments is read from `source`, range by
    range; the rest is for `RankStates.complete`. `collectives`: of each unit."""
    setup = schedule.program.setup
    holders = holders_of(setup, seats, seat.division.rank)
    units = [
        _unit_state(local, setup, holders[local.unit.name], seat, make_unit, source, dtype, device)
        for local in schedule.units
    ]
    for unit in units:
        unit.by = collectives(unit.name)
    largest = max(unit.padded for unit in units)

    def slots(count: int, dtype: torch.dtype) -> list[Tensor]:
        return [torch.zeros(largest, dtype=dtype, device=device) for _ in range(count)]

    transit = slots(1 + max(op.transit for op in schedule.ops), gradient_dtype)
    # Views that are gathered for a whole pass come and go with it.
    turns = 0 if setup.gathers_per_pass else 1 + max(op.gathered for op in schedule.ops)
    gathered = slots(turns, dtype)
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
            in_pieces=gradient_dtype != dtype,
        )
    return RankStates(units, dtype, gradient_dtype, wire, device, transit, gathered, buckets)


def _cut_alike(name: str, setup: Setup) -> tuple[str, ...]:
    """Units whose buffers are of one size. Those of a tied matrix are, in both of which it comes
    first: so owners at both ends have the same part of it, to add up with each other."""
    tied = (EMBEDDING, HEAD)
    return tied if setup.tied and name in tied else (name,)


def _unit_state(
    local: LocalUnit,
    setup: Setup,
    holders: Holders,
    seat: Seat,
    make_unit: Callable[[str], Unit],
    source: Source,
    dtype: torch.dtype,
    device: torch.device,
) -> UnitState:
    unit = make_unit(local.unit.name)
    layout = unit.layout
    alike = _cut_alike(local.unit.name, setup)
    padded = max(make_unit(replica_unit).layout.padded(len(holders)) for replica_unit in alike)
    begin, end = owned_range(padded, len(holders), holders.index(seat.world_rank))
    share = slice(begin, end)
    if not (setup.sharding and len(holders) > 1):
        begin, end = 0, padded
    name = local.unit.name

    def owned(kind: str, low: int, high: int) -> Tensor:
        """The range [low, high) of a buffer, of which what this rank owns is read."""
        values = torch.zeros(high - low, dtype=torch.float32, device=device)
        known = min(share.stop, layout.size)
        if known > share.start:
            values[share.start - low : known - low] = source(name, kind, share.start, known).to(
                device
            )
        return values

    view = shard_view = None
    if local.gathered:
        shard_view = owned("weights", begin, end).to(dtype)
        master = shard_view if dtype == torch.float32 else owned("weights", begin, end)
    else:
        view = owned("weights", 0, padded).to(dtype)
        master = view[begin:end] if dtype == torch.float32 else owned("weights", begin, end)
    part = OwnedPart(
        begin,
        end,
        layout.decay_end,
        master,
        owned("moment1", begin, end),
        owned("moment2", begin, end),
    )
    weights = Weights(layout)
    if view is not None:
        weights.attach_view(view)
    residual = None
    if setup.error_feedback and len(holders) > 1:
        kind = residual_kind(holders.index(seat.world_rank), len(holders))
        kept = torch.zeros(padded, dtype=torch.float32, device=device)
        kept[: layout.size] = source(name, kind, 0, layout.size).to(device)
        residual = Residual(kept, torch.zeros_like(kept) if setup.error_feedback == 2 else None)
    return UnitState(
        local,
        unit,
        weights,
        seat.division,
        holders,
        padded,
        share,
        part,
        view,
        shard_view,
        residual=residual,
    )
