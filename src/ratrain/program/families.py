"""Families of states, open: each is declared once, with what numbers it, its size and its tier.

Verifier, bounds, ledger, simulator and reports derive from the declaration. A third-party package
may `declare_family` further ones, sized by functions of a `Sizing`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np

from ratrain.errors import ProgramError
from ratrain.program.replicas import Recovery
from ratrain.program.setup import Averages, Setup
from ratrain.program.tiers import DEVICE, DISK, HOST, TIERS, waiting_family
from ratrain.program.units import RECOVERY_CODE, Bools, Ints, Units

SEND_SLOTS = 2
"""Tensors of one part of a stage and one direction on their way at once: one leaving (or being
read), and one being made (or arriving). As many parts of sums, of one rank and direction."""

NO_STATES: Ints = np.zeros(0, dtype=np.int64)
"""The sizes of a family that a program has nothing of."""

SPILL_SLOTS = 2
"""Activations on their way to another tier, or back, at once: one that moves, and one that is made
or used."""

GRADIENT_SLOTS = 3
"""Units' gradients on the device at once, of those that wait in another tier: one that is made, one
that is updated, and one that comes or goes."""

OPTIMIZER_SLOTS = 2
"""Units' optimizer states on the device at once, of those that wait in another tier: one that is
updated, and one that comes or goes."""


class Per(StrEnum):
    """What numbers the states of a family."""

    UNIT = "unit"
    CELL = "unit x micro-batch"
    PART_SLOT = "stage slot"  # SEND_SLOTS for each part of a stage
    RANK_SLOT = "slot"  # taken in turn by a rank's ops


@dataclass(frozen=True)
class Sizing:
    """What sizes follow from."""

    setup: Setup
    units: Units

    def of(self, name: str) -> Ints:
        """A size of each unit, by its name in `Unit`."""
        sizes = map(attrgetter(name), self._described)
        return np.fromiter(sizes, dtype=np.int64, count=len(self._described))

    @cached_property
    def outputs(self) -> Ints:
        """What each unit hands on: the next unit's input, or the tensor its stage sends."""
        sizes: list[int] = []
        for member in self.setup.members:
            sizes += [unit.input_bytes for unit in member.units[1:]] + [member.output_bytes]
        return np.array(sizes, dtype=np.int64)

    @cached_property
    def scores(self) -> Ints:
        """Selective recovery: scores are not kept, and exist for one unit while it makes them."""
        selective = self.units.recovery == RECOVERY_CODE[Recovery.SELECTIVE]
        return self.of("scores_bytes") * selective

    @cached_property
    def starts(self) -> Bools:
        """The first unit of each part."""
        return self.units.unit_in_stage == 0

    @cached_property
    def ends(self) -> Bools:
        """The last unit of each part."""
        return np.r_[self.starts[1:], True]

    @cached_property
    def units_gathered_per_use(self) -> Bools:
        """Level 3: units whose view exists only while it is used."""
        return self.units.shared & (self.setup.sharding == 3)

    @cached_property
    def mirrored(self) -> Bools:
        """Units of which a buddy keeps what each owner has alone."""
        return self.units.reduced & (self.setup.mirrored and self.setup.sharding > 0)

    def shared(self, size_bytes: Ints) -> Ints:
        """An owner's part of a state that its unit's holders divide evenly, rounded up."""
        return -(-size_bytes // self.units.peers)

    def owned(self, size_bytes: Ints) -> Ints:
        """What a rank owns of a state of each unit: its part where states are sharded, or all."""
        sharded = self.units.reduced & (self.setup.sharding > 0)
        return np.where(sharded, self.shared(size_bytes), size_bytes)

    def largest_on_rank(self, sizes: Ints, chosen: Bools, slots: Sequence[int]) -> list[list[int]]:
        """For each rank its slots, each as large as the largest of its chosen units'."""
        rows = [sizes[(self.units.rank == rank) & chosen] for rank in range(self.setup.ranks)]
        return [
            [int(row.max())] * count if len(row) else []
            for row, count in zip(rows, slots, strict=True)
        ]

    @property
    def every_rank(self) -> range:
        return range(self.setup.ranks)

    @property
    def _described(self) -> list[object]:
        return [unit for member in self.setup.members for unit in member.units]


Sizes = Callable[[Sizing], Ints]
Slots = Callable[[Sizing], list[list[int]]]


@dataclass(frozen=True)
class Declared:
    """A family's declaration. `sizes`: bytes for each unit, for each part, or for each rank a list
    of its slots' bytes. `persistent`: exists before the step and after it."""

    name: str
    group: str  # of `GROUPS`, in which people are shown it
    per: Per
    sizes: Sizes | Slots
    persistent: bool
    tier: str = DEVICE


OTHER = "other"
GROUPS = {
    "weights": "weights",
    "optimizer": "optimizer",
    "gradients": "gradients",
    "residual": "rounding residuals",
    "mirror": "mirrors of other ranks",
    "averaged": "copies of weights to average",
    "saved": "saved activations",
    "input": "layer inputs",
    "messages": "messages and sums",
    "scratch": "scratch inside ops",
    OTHER: "other",
}
"""Families that are shown as one: their names for people, in the order in which they are shown."""

FAMILIES: dict[str, Declared] = {}


def declare_family(
    name: str,
    per: Per,
    sizes: Sizes | Slots,
    *,
    group: str = OTHER,
    persistent: bool = False,
    tier: str = DEVICE,
) -> None:
    """Declares a family of states."""
    if name in FAMILIES:
        raise ProgramError(f"the family {name} is declared twice", fix="choose another name")
    FAMILIES[name] = Declared(name, group, per, sizes, persistent, tier)


# ---- what outlives a step ---------------------------------------------------------------


def _scratch(s: Sizing) -> list[list[int]]:
    """For each rank what its most wasteful op needs, always counted: ops run one at a time."""
    sizes = s.of("scratch_bytes") + s.scores
    rows = s.largest_on_rank(sizes, np.ones(len(sizes), bool), [1] * s.setup.ranks)
    return [[size for size in row if size] for row in rows]


def _view(s: Sizing) -> Ints:
    return _kept_view(s) * ~(s.units_gathered_per_use | s.units.waits("view"))


def _shard_view(s: Sizing) -> Ints:
    return _kept_view(s) * (s.units_gathered_per_use & ~s.units.waits("view"))


def _kept_view(s: Sizing) -> Ints:
    """What a rank keeps of each unit's from step to step, wherever it is."""
    whole = s.of("view_bytes")
    return np.where(s.units_gathered_per_use, s.shared(whole), whole)


def _optimizer(s: Sizing) -> Ints:
    return _owned_optimizer(s) * ~s.units.waits("optimizer")


def _owned_optimizer(s: Sizing) -> Ints:
    """What a rank owns of each unit's, wherever it is."""
    return s.owned(s.of("optimizer_bytes"))


def _transit(s: Sizing) -> list[list[int]]:
    """For each rank, its slots for gradients that are not reduced yet."""
    if not s.setup.per_micro_batch:
        return [[] for _ in s.every_rank]
    gradient = s.of("gradient_bytes")
    piece = np.minimum(gradient, s.setup.bucket_bytes) if s.setup.bucket_bytes else gradient
    rows = [piece[(s.units.rank == rank) & s.units.reduced].tolist() for rank in s.every_rank]
    if not s.setup.transit_slots:
        return rows
    return [[max(row)] * s.setup.transit_slots if row else [] for row in rows]


def _gathered(s: Sizing) -> list[list[int]]:
    """For each rank, slots for gathered views: those in use, and one on its way. Recovery ahead
    of backward keeps a view in use for every unit of its buffer. Where a gather serves a whole
    pass, slots say how many views may exist at once, and the views' bytes are states of their
    own."""
    if s.setup.gathers_per_pass:
        return [[0] * count for count in _views_of_two_stages(s)]
    return s.largest_on_rank(s.of("view_bytes"), s.units_gathered_per_use, _slots_in_use(s))


def _views_of_two_stages(s: Sizing) -> list[int]:
    """For each rank: views of a stage in use, and of the next one on their way."""
    counts: list[int] = []
    for rank in s.every_rank:
        mine = (s.units.rank == rank) & s.units_gathered_per_use
        stages = np.unique(s.units.stage[mine], return_counts=True)[1].tolist()
        pairs = [a + b for a, b in itertools.pairwise(stages)]
        counts.append(max(pairs, default=stages[0] + 1) if stages else 0)
    return counts


def _pass_view(s: Sizing) -> Ints:
    if not s.setup.gathers_per_pass:
        return NO_STATES
    return s.of("view_bytes") * s.units_gathered_per_use


def _slots_in_use(s: Sizing) -> list[int]:
    """For each rank: one more than its units that recovery keeps ready for backward."""
    ahead = s.units.recovery == RECOVERY_CODE[Recovery.FORWARD]
    return [slots_in_use(s.setup, ahead[s.units.rank == rank].any()) for rank in s.every_rank]


def slots_in_use(setup: Setup, recovers_ahead: bool | np.bool_) -> int:
    """Slots for what compute needs of units: those in use, and one on its way."""
    return 1 + (setup.recovery_buffer if recovers_ahead else 1)


def _partial(s: Sizing) -> list[list[int]]:
    return _parts_of_sums(s, s.outputs, s.units.has_output)


def _partialb(s: Sizing) -> list[list[int]]:
    return _parts_of_sums(s, s.of("input_bytes"), s.units.has_input)


def _parts_of_sums(s: Sizing, size: Ints, summed: Bools) -> list[list[int]]:
    """For each rank, its slots for parts of sums: one being summed, one being made. A part is
    whole, also where each rank keeps a share of the sum alone (sequence parallelism)."""
    if s.setup.sequence_parallel:
        size = size * s.units.tensor
    return s.largest_on_rank(size, summed & (s.units.tensor > 1), [SEND_SLOTS] * s.setup.ranks)


def _residual(s: Sizing) -> Ints:
    """What rounding took away from the gradient that a rank last sent."""
    return s.of("gradient_bytes") * s.units.reduced if s.setup.error_feedback else NO_STATES


def _residual_next(s: Sizing) -> Ints:
    """The same of the step under way, until it is known that the step is not skipped."""
    return _residual(s) if s.setup.error_feedback == 2 else NO_STATES


def _outer(s: Sizing) -> Ints:
    """Weights as the last outer step left them, its momentum, and what rounding has not sent."""
    if not s.setup.outer:
        return NO_STATES
    copies = 3 if s.setup.average_wire else 2
    return copies * s.owned(s.of("copy_bytes")) * s.units.averaged


def _mirror(s: Sizing) -> Ints:
    """A buddy's master weights and moments, as much as the rank owns itself."""
    return s.shared(s.of("mirror_bytes")) * s.mirrored if s.mirrored.any() else NO_STATES


# ---- what a step makes and frees --------------------------------------------------------


def _gradient(s: Sizing) -> Ints:
    return s.of("gradient_bytes")


def _gradient_slot(s: Sizing) -> list[list[int]]:
    slots = [GRADIENT_SLOTS] * s.setup.ranks
    return s.largest_on_rank(_gradient(s), s.units.waits("gradient"), slots)


def _shard(s: Sizing) -> Ints:
    return s.shared(s.of("gradient_bytes"))


def _mirror_gradient(s: Sizing) -> Ints:
    return _shard(s) * s.mirrored if s.mirrored.any() else NO_STATES


def _input(s: Sizing) -> Ints:
    return s.of("input_bytes")


def _saved(s: Sizing) -> Ints:
    return s.of("saved_bytes") - s.scores


def _outgrad(s: Sizing) -> Ints:
    return s.outputs


def _sendx(s: Sizing) -> Ints:
    return (s.outputs * s.units.next_is_remote)[s.ends]


def _sendg(s: Sizing) -> Ints:
    return (s.of("input_bytes") * s.units.previous_is_remote)[s.starts]


def _recvg(s: Sizing) -> Ints:
    return _sendx(s) * (not (s.setup.split_backward or s.setup.arrival_places))


def _averaged(s: Sizing) -> Ints:
    """Copies of weights that replicas average while they compute."""
    if s.setup.averages is not Averages.EARLY_START:
        return NO_STATES
    return s.owned(s.of("copy_bytes"))


# ---- slots of what waits in other tiers -------------------------------------------------


def _staged(s: Sizing) -> list[list[int]]:
    """Inputs made on the rank, until they are copied and read: one being copied, one being made; as
    many more as a unit makes before the next one reads the first."""
    local = s.units.waits("input") & s.units.previous_is_local
    slots = SEND_SLOTS - 1 + s.setup.together
    return s.largest_on_rank(s.of("input_bytes"), local, [slots] * s.setup.ranks)


def _arrived(s: Sizing) -> Ints:
    return (s.of("input_bytes") * (s.units.waits("input") & s.units.previous_is_remote))[s.starts]


def _fetched(s: Sizing) -> list[list[int]]:
    return s.largest_on_rank(s.of("input_bytes"), s.units.waits("input"), _slots_in_use(s))


def _optimizer_slot(s: Sizing) -> list[list[int]]:
    slots = [OPTIMIZER_SLOTS] * s.setup.ranks
    return s.largest_on_rank(_owned_optimizer(s), s.units.waits("optimizer"), slots)


def _view_slot(s: Sizing) -> list[list[int]]:
    return s.largest_on_rank(_kept_view(s), s.units.waits("view"), _slots_in_use(s))


def _view_made(s: Sizing) -> list[list[int]]:
    slots = [OPTIMIZER_SLOTS] * s.setup.ranks
    return s.largest_on_rank(_kept_view(s), s.units.waits("view") & s.units.trained, slots)


def _saved_out(s: Sizing) -> list[list[int]]:
    slots = [SPILL_SLOTS] * s.setup.ranks
    return s.largest_on_rank(_saved(s), s.units.waits("saved"), slots)


def _saved_in(s: Sizing) -> list[list[int]]:
    """How many come back at once: the bytes are `refilled`."""
    slots = [SPILL_SLOTS] * s.setup.ranks
    return s.largest_on_rank(np.zeros_like(s.units.rank), s.units.waits("saved"), slots)


def _refilled(s: Sizing) -> Ints:
    return _saved(s) if s.units.waits("saved").any() else NO_STATES


def _bounce(s: Sizing) -> list[list[int]]:
    """Where what goes to disk of a micro-batch becomes one run of bytes."""
    disk = TIERS.index(DISK)
    saved = _saved(s) * (s.units.tiers["saved"] == disk)
    sizes = np.maximum(saved, _input(s) * (s.units.tiers["input"] == disk))
    return s.largest_on_rank(sizes, sizes > 0, [1] * s.setup.ranks)


# ---- what waits there -------------------------------------------------------------------


def _waiting(name: str, tier: str, sizes: Sizes) -> Sizes:
    """Of states of a sort those in a tier."""

    def there(s: Sizing) -> Ints:
        in_tier = s.units.tiers[name] == TIERS.index(tier)
        return sizes(s) * in_tier if in_tier.any() else NO_STATES

    return there


def _declare_waiting(name: str, per: Per, sizes: Sizes, **facts: Any) -> None:
    """Declares the families of a row of `tiers.WAITING`: what one unit, or cell, has there."""
    for tier in (HOST, DISK):
        there = _waiting(name, tier, sizes)
        declare_family(waiting_family(name, tier), per, there, tier=tier, **facts)


declare_family("scratch", Per.RANK_SLOT, _scratch, group="scratch", persistent=True)
declare_family("view", Per.UNIT, _view, group="weights", persistent=True)
declare_family("shard_view", Per.UNIT, _shard_view, group="weights", persistent=True)
declare_family("optimizer", Per.UNIT, _optimizer, group="optimizer", persistent=True)
declare_family("transit", Per.RANK_SLOT, _transit, group="gradients", persistent=True)
declare_family("gathered", Per.RANK_SLOT, _gathered, group="weights", persistent=True)
declare_family("residual", Per.UNIT, _residual, group="residual", persistent=True)
declare_family("residual_next", Per.UNIT, _residual_next, group="residual", persistent=True)
declare_family("outer", Per.UNIT, _outer, group="optimizer", persistent=True)
declare_family("mirror", Per.UNIT, _mirror, group="mirror", persistent=True, tier=HOST)
declare_family(
    "mirror_gradient", Per.UNIT, _mirror_gradient, group="mirror", persistent=True, tier=HOST
)
declare_family("partial", Per.RANK_SLOT, _partial, group="messages", persistent=True)
declare_family("partialb", Per.RANK_SLOT, _partialb, group="messages", persistent=True)
declare_family("gradient", Per.UNIT, _gradient, group="gradients")
declare_family("shard", Per.UNIT, _shard, group="gradients")
declare_family("averaged", Per.UNIT, _averaged, group="averaged")
declare_family("input", Per.CELL, _input, group="input")
declare_family("saved", Per.CELL, _saved, group="saved")
declare_family("outgrad", Per.CELL, _outgrad, group="messages")
declare_family("sendx", Per.PART_SLOT, _sendx, group="messages", persistent=True)
declare_family("sendg", Per.PART_SLOT, _sendg, group="messages", persistent=True)
declare_family("recvg", Per.PART_SLOT, _recvg, group="messages", persistent=True)
declare_family("passing_f", Per.UNIT, _pass_view, group="weights")
declare_family("passing_b", Per.UNIT, _pass_view, group="weights")
declare_family("staged", Per.RANK_SLOT, _staged, group="input", persistent=True)
declare_family("arrived", Per.PART_SLOT, _arrived, group="messages", persistent=True)
declare_family("fetched", Per.RANK_SLOT, _fetched, group="input", persistent=True)
declare_family("optimizer_slot", Per.RANK_SLOT, _optimizer_slot, group="optimizer", persistent=True)
declare_family("view_slot", Per.RANK_SLOT, _view_slot, group="weights", persistent=True)
declare_family("view_made", Per.RANK_SLOT, _view_made, group="weights", persistent=True)
declare_family("saved_out", Per.RANK_SLOT, _saved_out, group="saved", persistent=True)
declare_family("saved_in", Per.RANK_SLOT, _saved_in, group="saved", persistent=True)
declare_family("refilled", Per.CELL, _refilled, group="saved")
declare_family("bounce", Per.RANK_SLOT, _bounce, group="saved", persistent=True)
declare_family("gradient_slot", Per.RANK_SLOT, _gradient_slot, group="gradients", persistent=True)
_declare_waiting("gradient", Per.UNIT, _gradient, group="gradients")
_declare_waiting("input", Per.CELL, _input, group="input")
_declare_waiting("saved", Per.CELL, _saved, group="saved")
_declare_waiting("view", Per.UNIT, _kept_view, group="weights", persistent=True)
_declare_waiting("optimizer", Per.UNIT, _owned_optimizer, group="optimizer", persistent=True)
