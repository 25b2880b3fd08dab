"""What a program is about: replicas of stages of units, and how many bytes each state has.

A unit is what one op works on: an embedding, a layer (or several, or a whole stage where
nothing finer is asked for), a head. Everything that the rules need to know stands here, so a
program's text with this header is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from ratrain.errors import ProgramError


class Recovery(StrEnum):
    """When the activations that backward needs come back."""

    NONE = "none"  # forward saves them
    BACKWARD = "backward"  # computed again once the gradient has arrived
    FORWARD = "forward"  # computed again ahead of the gradient, in the wait before it
    SELECTIVE = "selective"  # forward saves them but attention's scores, which backward makes again

    @property
    def again(self) -> bool:
        """Whether whole units are computed again: each backward has an R."""
        return self in (Recovery.BACKWARD, Recovery.FORWARD)


class Accumulation(StrEnum):
    """Where a step's gradients add up."""

    LOCAL = "local"  # whole, on every rank; reduced once a step
    SHARDED = "sharded"  # in each owner's shard; reduced once a micro-batch


@dataclass(frozen=True)
class Unit:
    """One unit of a stage and the bytes of its states on one rank.

    `name` is its identity across replicas ("e", "7", "h", or "0-3" for layers 0 to 3): the
    data-parallel collectives of replicas that are simulated apart meet by it.
    """

    name: str
    view_bytes: int = 0  # weights as compute reads them
    gradient_bytes: int = 0  # the whole gradient
    optimizer_bytes: int = 0  # the whole master weights and moments; sharding divides them
    input_bytes: int = 0  # its input for one micro-batch: the checkpoint
    saved_bytes: int = 0  # what backward needs besides the input, for one micro-batch
    recoverable: bool = True  # whether recovery saves anything (not: an embedding, a head)
    head: bool = False  # ends the model: its backward follows its own forward
    scratch_bytes: int = 0  # the most that one of its ops needs beside states
    scores_bytes: int = 0  # of saved_bytes, attention's scores: selective recovery lets them go


@dataclass(frozen=True)
class Stage:
    """Consecutive units on one rank. `output_bytes` is the tensor sent to the next stage."""

    rank: int  # within the replica
    units: tuple[Unit, ...]
    output_bytes: int = 0
    recovery: Recovery = Recovery.NONE


@dataclass(frozen=True)
class Replica:
    """One pipeline. `count` identical ones exist; they behave alike, so one stands for all."""

    stages: tuple[Stage, ...]
    micro_batches: int
    count: int = 1

    @property
    def ranks(self) -> int:
        return 1 + max(stage.rank for stage in self.stages)


@dataclass(frozen=True)
class Setup:
    """The header of a program."""

    replicas: tuple[Replica, ...]
    tensor: int = 1  # ranks of a tensor-parallel group; they behave alike, so one stands for all
    sharding: int = 0  # 0 nothing, 1 optimizer, 2 and gradients, 3 and views
    accumulation: Accumulation = Accumulation.LOCAL
    split_backward: bool = False  # I and W in place of B
    recovery_buffer: int = 2  # units whose activations may be held recovered at once
    transit_slots: int = 0  # unreduced gradients held at once; 0: as many as units
    bucket_bytes: int | None = None  # a gradient leaves in pieces of this size; None: whole
    budget_bytes: int | None = None  # per rank, of the tier below
    tier: str = "memory"
    tied: bool = False  # the first and the last unit hold one matrix, each a copy of it
    sequence_parallel: bool = False  # a tensor group divides the tensors between units

    def __post_init__(self) -> None:
        _check(self)

    @property
    def data(self) -> int:
        """Data-parallel degree: all replicas, the folded ones counted."""
        return sum(replica.count for replica in self.replicas)

    @cached_property
    def ranks(self) -> int:
        """Ranks that the program spells out."""
        return sum(replica.ranks for replica in self.replicas)

    @cached_property
    def first_rank(self) -> tuple[int, ...]:
        """For each replica, the program's number of its rank 0."""
        starts = [0]
        for replica in self.replicas[:-1]:
            starts.append(starts[-1] + replica.ranks)
        return tuple(starts)

    def replica_of(self, rank: int) -> int:
        """Which replica a program rank belongs to."""
        return max(i for i, first in enumerate(self.first_rank) if first <= rank)

    @property
    def devices(self) -> int:
        """Devices that the program stands for."""
        return sum(replica.ranks * replica.count for replica in self.replicas) * self.tensor

    @property
    def reduces(self) -> bool:
        """Whether gradients need a reduction at all."""
        return self.data > 1

    @property
    def gathers(self) -> bool:
        """Whether updated views are gathered once a step (levels 1 and 2)."""
        return self.data > 1 and self.sharding in (1, 2)

    @property
    def gathers_per_use(self) -> bool:
        """Whether views are gathered for every use (level 3)."""
        return self.data > 1 and self.sharding == 3

    @property
    def per_micro_batch(self) -> bool:
        """Whether gradients are reduced micro-batch by micro-batch."""
        return self.data > 1 and self.accumulation is Accumulation.SHARDED

    def with_recovery(self, recovery: Recovery) -> Setup:
        """The same setup with every stage in one recovery mode."""
        return self.with_stages(lambda stage, _last: replace(stage, recovery=recovery))

    def with_stages(self, change: Callable[[Stage, bool], Stage]) -> Setup:
        """The same setup with `change(stage, is_last)` applied to every stage."""
        replicas = tuple(
            replace(
                replica,
                stages=tuple(
                    change(stage, index == len(replica.stages) - 1)
                    for index, stage in enumerate(replica.stages)
                ),
            )
            for replica in self.replicas
        )
        return replace(self, replicas=replicas)


def _check(setup: Setup) -> None:
    """What no program can mend: a header that contradicts itself."""
    if not 0 <= setup.sharding <= 3:
        raise ProgramError(f"sharding level {setup.sharding}", fix="use 0, 1, 2 or 3")
    if setup.recovery_buffer < 1:
        raise ProgramError("a recovery buffer holds at least one unit", fix="set it to 1 or more")
    if setup.accumulation is Accumulation.SHARDED and setup.sharding < 2:
        raise ProgramError(
            "sharded accumulation needs sharded gradients",
            fix="use sharding 2 or 3, or local accumulation",
        )
    for number, replica in enumerate(setup.replicas):
        ranks = {stage.rank for stage in replica.stages}
        if ranks != set(range(len(ranks))):
            raise ProgramError(f"replica {number}: ranks {sorted(ranks)} leave a gap")
        if replica.micro_batches < 1 or replica.count < 1:
            raise ProgramError(f"replica {number} needs a micro-batch and a count of 1 or more")
        if any(not stage.units for stage in replica.stages):
            raise ProgramError(f"replica {number} has a stage without units")
        if any(u.scores_bytes > u.saved_bytes for stage in replica.stages for u in stage.units):
            raise ProgramError(
                f"replica {number} has a unit with more scores than it saves",
                fix="scores_bytes are a part of saved_bytes",
            )
    _check_tied(setup)
    _check_replicas_agree(setup)


def _check_tied(setup: Setup) -> None:
    if not setup.tied:
        return
    for number, replica in enumerate(setup.replicas):
        if sum(len(stage.units) for stage in replica.stages) < 2:
            raise ProgramError(
                f"replica {number} has one unit, which cannot be tied to itself",
                fix="cut the model into an embedding and a head, at least",
            )
    if setup.per_micro_batch:
        raise ProgramError(
            "tied copies add up whole gradients, and sharded accumulation has none",
            fix="use local accumulation",
        )


def _check_replicas_agree(setup: Setup) -> None:
    if len(setup.replicas) == 1:
        return
    names = [
        [unit.name for stage in replica.stages for unit in stage.units]
        for replica in setup.replicas
    ]
    for number, other in enumerate(names[1:], start=1):
        if other != names[0]:
            raise ProgramError(
                f"replica {number} cuts the model into other units than replica 0",
                fix="use one unit a layer, so that gradients can meet layer by layer",
            )
    if setup.per_micro_batch and len({r.micro_batches for r in setup.replicas}) > 1:
        raise ProgramError(
            "replicas with unequal micro-batch counts cannot reduce once a micro-batch",
            fix="use local accumulation",
        )
    # A gather for every use is a meeting for every use: replicas that use a unit in another
    # order, or another number of times, would wait for each other for ever.
    shapes = {
        (replica.micro_batches, tuple((s.rank, len(s.units)) for s in replica.stages))
        for replica in setup.replicas
    }
    if setup.gathers_per_use and len(shapes) > 1:
        raise ProgramError(
            "replicas of unequal stages or micro-batch counts cannot gather views for every use",
            fix="use sharding 2, or cut all replicas alike",
        )
