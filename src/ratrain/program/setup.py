"""What a program is about: replicas of stages of members, and how many bytes each state has.

A unit is what one op works on: an embedding, a layer (or several, or a whole stage where
nothing finer is asked for), a head. A stage is consecutive units; each of its members holds all of
them and computes some of the micro-batches. Everything that the rules need to know is here, so
a program's text with this header is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise

from ratrain.errors import ProgramError

HOST = "host"
"""The name of the memory tier below the device's, to which states are offloaded."""


class Recovery(StrEnum):
    """When the activations that backward needs come back (activation recomputation)."""

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

    `name` is its identity across replicas ("e", "7", "h", or "0-3" for layers 0 to 3): the ranks
    that hold a unit of one name reduce its gradient together.
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
class Member:
    """A rank (with `tensor` above 1: a tensor-parallel group, whose ranks behave alike, so that
    one stands for all) that holds a stage's units, and the micro-batches that it computes. One
    that computes none takes part in reductions and updates with a gradient of zeros."""

    rank: int  # within the replica
    units: tuple[Unit, ...]
    output_bytes: int = 0  # of the tensor sent to the next stage
    recovery: Recovery = Recovery.NONE
    tensor: int = 1
    serves: tuple[int, ...] | None = None  # micro-batches, ascending; None: all; (): none
    offloads: bool = False  # units' inputs wait for backward in host memory
    joined: int = 1  # micro-batches that each of its ops computes at once; its bytes are of as many

    def first_of(self, micro_batch: int) -> int:
        """The first of those computed together with a micro-batch: it names their ops."""
        return micro_batch - micro_batch % self.joined


@dataclass(frozen=True)
class Stage:
    """Consecutive units, and who computes them."""

    members: tuple[Member, ...]

    @property
    def only(self) -> Member:
        """The member, where there is one."""
        (member,) = self.members
        return member

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(unit.name for unit in self.members[0].units)

    def member_at(self, rank: int) -> Member | None:
        """The member on a rank of the replica."""
        return next((member for member in self.members if member.rank == rank), None)

    def member_for(self, micro_batch: int) -> Member:
        """The member that computes a micro-batch."""
        return next(
            member
            for member in self.members
            if member.serves is None or micro_batch in member.serves
        )


def stage(
    rank: int,
    units: tuple[Unit, ...],
    output_bytes: int = 0,
    recovery: Recovery = Recovery.NONE,
    *,
    tensor: int = 1,
) -> Stage:
    """A stage of one member, which computes every micro-batch."""
    return Stage((Member(rank, units, output_bytes, recovery, tensor),))


@dataclass(frozen=True)
class Replica:
    """One copy of the model. `count` identical ones exist; they behave alike, so one stands for
    all."""

    stages: tuple[Stage, ...]
    micro_batches: int
    count: int = 1

    @cached_property
    def ranks(self) -> int:
        return 1 + max(member.rank for stage in self.stages for member in stage.members)

    def serves(self, member: Member) -> tuple[int, ...] | range:
        """The micro-batches that a member computes."""
        return range(self.micro_batches) if member.serves is None else member.serves

    def computes(self, member: Member) -> tuple[int, ...] | range:
        """The micro-batches that name a member's ops: each that it serves, or where it joins them
        the first of those that it joins."""
        return self.serves(member)[:: member.joined]

    @property
    def most_joined(self) -> int:
        """The most micro-batches that any of its stages computes at once."""
        return max(member.joined for stage in self.stages for member in stage.members)


@dataclass(frozen=True)
class Budget:
    """Bytes of one memory tier ("": the device's) on some ranks, the last one included."""

    first_rank: int
    last_rank: int
    tier: str
    size_bytes: int


@dataclass(frozen=True)
class Setup:
    """The header of a program. A budget of `budgets` goes before `budget_bytes`."""

    replicas: tuple[Replica, ...]
    sharding: int = 0  # ZeRO stage: 0 nothing, 1 optimizer, 2 and gradients, 3 and views
    accumulation: Accumulation = Accumulation.LOCAL
    split_backward: bool = False  # I and W in place of B
    recovery_buffer: int = 2  # units whose activations may be held recovered at once
    transit_slots: int = 0  # unreduced gradients held at once; 0: as many as units
    bucket_bytes: int | None = None  # a gradient leaves in pieces of this size; None: whole
    budget_bytes: int | None = None  # per rank, of the tier below
    tier: str = "memory"  # of the device
    tied: bool = False  # the first and the last unit hold one matrix, each a copy of it
    sequence_parallel: bool = False  # a tensor group divides the tensors between units
    arrival_places: bool = False  # a gradient that arrives has a place of its own, not a slot
    together: int = 1  # so many of the first and the last micro-batches go layer by layer
    gathers_per_pass: bool = False  # level 3 gathers a view once for all micro-batches of a pass
    period: int = 1  # steps that the program spells out
    averages: bool = False  # replicas update alone, and average their weights once a period
    forward_only: bool = False  # nothing is kept for a backward, and nothing is trained
    backward_sends: bool = False  # backward fills buckets that leave beside it, with its GradSync
    error_feedback: int = 0  # residuals of each gradient sent: 1; 2 where a step may be skipped
    notes: tuple[str, ...] = ()  # of third-party passes, for their rules and families
    budgets: tuple[Budget, ...] = ()

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

    @cached_property
    def tensor(self) -> int:
        """The largest tensor-parallel degree of any member."""
        return max(member.tensor for member in self.members)

    @cached_property
    def joins(self) -> bool:
        """Whether any stage computes several micro-batches at once."""
        return any(replica.most_joined > 1 for replica in self.replicas)

    @cached_property
    def members(self) -> tuple[Member, ...]:
        return tuple(
            member
            for replica in self.replicas
            for stage in replica.stages
            for member in stage.members
        )

    @cached_property
    def is_uneven(self) -> bool:
        """Whether members differ in tensor degree or in what they compute at once, or replicas in
        their stages or micro-batches."""
        shapes = {(replica.stages, replica.micro_batches) for replica in self.replicas}
        alike = {(member.tensor, member.joined) for member in self.members}
        return len(shapes) > 1 or len(alike) > 1

    @property
    def devices(self) -> int:
        """Devices that the program stands for."""
        total = 0
        for replica in self.replicas:
            degree = {m.rank: m.tensor for stage in replica.stages for m in stage.members}
            total += sum(degree.values()) * replica.count
        return total

    @cached_property
    def holders(self) -> dict[str, int]:
        """For each unit's name how many ranks hold it: folded replicas counted, a tensor group as
        one."""
        holders: dict[str, int] = {}
        for replica in self.replicas:
            for stage in replica.stages:
                for name in stage.names:
                    holders[name] = holders.get(name, 0) + replica.count * len(stage.members)
        return holders

    @cached_property
    def unit_degrees(self) -> dict[str, tuple[int, ...]]:
        """For each unit's name, in model order, the tensor degree of each member that holds it."""
        degrees: dict[str, list[int]] = {}
        for replica in self.replicas:
            for stage in replica.stages:
                for name in stage.names:
                    degrees.setdefault(name, []).extend(m.tensor for m in stage.members)
        return {name: tuple(of_members) for name, of_members in degrees.items()}

    @cached_property
    def sharing_degrees(self) -> dict[str, tuple[int, ...]]:
        """The same, and for the units of a tied matrix the degrees at both of its ends, whose ranks
        add up their copies."""
        degrees = self.unit_degrees
        if not self.tied:
            return degrees
        first, *_, last = degrees
        both = degrees[first] + degrees[last]
        return degrees | {first: both, last: both}

    def is_reduced(self, name: str) -> bool:
        """Whether a unit's gradient needs a reduction."""
        return self.holders[name] > 1 and not self.averages

    @cached_property
    def reduces(self) -> bool:
        """Whether any gradient needs a reduction."""
        return not self.averages and max(self.holders.values()) > 1

    @property
    def gathers(self) -> bool:
        """Whether updated views are gathered once a step (levels 1 and 2)."""
        return self.reduces and self.sharding in (1, 2)

    @property
    def gathers_per_use(self) -> bool:
        """Whether views are gathered for their uses, and let go (level 3)."""
        return self.reduces and self.sharding == 3

    @property
    def per_micro_batch(self) -> bool:
        """Whether gradients are reduced micro-batch by micro-batch."""
        return self.reduces and self.accumulation is Accumulation.SHARDED

    def budget_of(self, rank: int, tier: str = "") -> int | None:
        """The budget of a program rank in a tier ("": the device's); None: no limit."""
        for budget in self.budgets:
            if budget.tier == tier and budget.first_rank <= rank <= budget.last_rank:
                return budget.size_bytes
        return None if tier else self.budget_bytes

    def with_members(self, change: Callable[[Member, bool], Member]) -> Setup:
        """The same setup with `change(member, is_of_last_stage)` applied to every member."""
        replicas = tuple(
            replace(
                replica,
                stages=tuple(
                    Stage(
                        tuple(
                            change(member, number == len(replica.stages) - 1)
                            for member in stage.members
                        )
                    )
                    for number, stage in enumerate(replica.stages)
                ),
            )
            for replica in self.replicas
        )
        return replace(self, replicas=replicas)


def _check(setup: Setup) -> None:
    """What no program can repair: a header that contradicts itself."""
    if not 0 <= setup.sharding <= 3:
        raise ProgramError(f"sharding level {setup.sharding}", fix="use sharding 0, 1, 2 or 3")
    if setup.recovery_buffer < 1:
        raise ProgramError("a recovery buffer holds at least one unit", fix="set it to 1 or more")
    if setup.accumulation is Accumulation.SHARDED and setup.sharding < 2:
        raise ProgramError(
            "sharded accumulation needs sharded gradients",
            fix="use sharding 2 or 3, or local accumulation",
        )
    if setup.backward_sends and not (
        setup.accumulation is Accumulation.SHARDED and setup.bucket_bytes and setup.transit_slots
    ):
        raise ProgramError(
            "backward that sends its gradient needs sharded accumulation, and buckets",
            fix="set accumulation sharded, transit_slots 2 and bucket_bytes, or leave "
            "backward_sends out",
        )
    if setup.period < 1:
        raise ProgramError("a program needs at least one step", fix="set period to 1 or more")
    if setup.together < 1:
        raise ProgramError(
            "no micro-batch goes through a stage at a time", fix="set together to 1 or more"
        )
    if setup.averages and setup.sharding:
        raise ProgramError(
            "replicas that average their weights hold all of their states",
            fix="use sharding 0",
        )
    _check_error_feedback(setup)
    for number, replica in enumerate(setup.replicas):
        _check_replica(number, replica)
    _check_joined(setup)
    _check_tied(setup)
    _check_replicas_agree(setup)
    _check_idle(setup)


def _check_error_feedback(setup: Setup) -> None:
    if not 0 <= setup.error_feedback <= 2:
        raise ProgramError(
            f"{setup.error_feedback} residuals of each gradient",
            fix="use error_feedback 1, 2 where a step may be skipped, or 0 for none",
        )
    if setup.error_feedback and (setup.averages or setup.period > 1):
        raise ProgramError(
            "error feedback needs a gradient that is sent in every step, and a program of one step",
            fix="leave error_feedback out, or averages and period",
        )


def _check_replica(number: int, replica: Replica) -> None:
    what = f"replica {number}"
    if not replica.stages or not all(stage.members for stage in replica.stages):
        raise ProgramError(
            f"{what} has no stage, or a stage without a member", fix="add a stage line"
        )
    ranks = {member.rank for stage in replica.stages for member in stage.members}
    if ranks != set(range(len(ranks))):
        raise ProgramError(
            f"{what}: ranks {sorted(ranks)} leave a gap", fix="number ranks from 0, none left out"
        )
    if replica.micro_batches < 1 or replica.count < 1:
        raise ProgramError(
            f"{what} needs a micro-batch and a count of 1 or more", fix="set both to 1 or more"
        )
    for place, stage in enumerate(replica.stages):
        _check_stage(f"{what}, stage {place}", stage, replica.micro_batches)
    for before, after in zip(replica.stages, replica.stages[1:], strict=False):
        _check_boundary(what, before, after, replica)


def _check_stage(what: str, stage: Stage, micro_batches: int) -> None:
    if any(not member.units for member in stage.members):
        raise ProgramError(f"{what} has no units", fix="give each stage a unit")
    if len({tuple(unit.name for unit in member.units) for member in stage.members}) > 1:
        raise ProgramError(
            f"{what} has members that hold different units", fix="give all members the same units"
        )
    if any(u.scores_bytes > u.saved_bytes for member in stage.members for u in member.units):
        raise ProgramError(
            f"{what} has a unit with more scores than it saves",
            fix="scores_bytes are a part of saved_bytes",
        )
    if any(member.tensor < 1 for member in stage.members):
        raise ProgramError(f"{what} has a member without a rank", fix="use tensor 1 or more")
    if any(member.joined < 1 for member in stage.members):
        raise ProgramError(f"{what} computes no micro-batch at once", fix="use joined 1 or more")
    if len({member.rank for member in stage.members}) < len(stage.members):
        raise ProgramError(f"{what} has two members on one rank", fix="join them")
    if len(stage.members) == 1 and stage.members[0].serves is None:
        return
    served = [m for member in stage.members for m in (member.serves or ())]
    if sorted(served) != list(range(micro_batches)):
        raise ProgramError(
            f"{what}: its members serve micro-batches {served}, not each of {micro_batches} once",
            fix="let each micro-batch be served by one member",
        )
    for member in stage.members:
        if list(member.serves or ()) != sorted(member.serves or ()):
            raise ProgramError(
                f"{what}: the member on rank {member.rank} serves micro-batches out of order",
                fix="list them in ascending order",
            )


def _check_boundary(what: str, before: Stage, after: Stage, replica: Replica) -> None:
    """Either all tensors between two stages stay on their rank, or none does: which it is must
    not depend on the micro-batch."""
    if len(before.members) == len(after.members) == 1:
        return
    shared = {m.rank for m in before.members} & {m.rank for m in after.members}
    if not shared:
        return
    same = all(
        before.member_for(m).rank == after.member_for(m).rank for m in range(replica.micro_batches)
    )
    if not same:
        raise ProgramError(
            f"{what}: ranks {sorted(shared)} hold two neighbouring stages, and some of their "
            "micro-batches change rank in between",
            fix="let neighbouring stages share all of their ranks and micro-batches, or no rank",
        )


def _check_joined(setup: Setup) -> None:
    """Refuses what stages that compute several micro-batches at once cannot do."""
    if not setup.joins:
        return
    if setup.sequence_parallel:
        raise ProgramError(
            "ranks that divide the sequence divide the rows of all joined micro-batches, so stages "
            "that join other numbers of them hold other rows",
            fix="leave sequence_parallel out, or let all stages compute micro-batches of one size",
        )
    if setup.together > 1:
        raise ProgramError(
            "micro-batches that go layer by layer are computed one by one, and a stage joins some",
            fix="set together to 1, or let all stages compute micro-batches of one size",
        )
    for number, replica in enumerate(setup.replicas):
        for place, stage in enumerate(replica.stages):
            for member in stage.members:
                _check_joined_member(f"replica {number}, stage {place}", replica, stage, member)
        sizes = sorted({m.joined for stage in replica.stages for m in stage.members})
        for smaller, larger in pairwise(sizes):
            if larger % smaller:
                raise ProgramError(
                    f"replica {number} joins {smaller} micro-batches on one stage and {larger} on "
                    "another, which is no multiple",
                    fix=f"join a multiple of {smaller}",
                )
    _check_joined_alike(setup)


def _check_joined_member(what: str, replica: Replica, stage: Stage, member: Member) -> None:
    if replica.micro_batches % member.joined:
        raise ProgramError(
            f"{what} joins {member.joined} of {replica.micro_batches} micro-batches, which leaves "
            "a rest",
            fix=f"use a multiple of {member.joined} micro-batches",
        )
    if member.joined == 1:
        return
    if len(stage.members) > 1 or member.serves is not None:
        raise ProgramError(
            f"{what} joins micro-batches, and has members that serve some of them each",
            fix="use joined 1, or one member that serves all",
        )
    if sum(other.member_at(member.rank) is not None for other in replica.stages) > 1:
        raise ProgramError(
            f"{what} joins micro-batches on a rank of several stages",
            fix="use joined 1, or one stage per rank",
        )


def _check_joined_alike(setup: Setup) -> None:
    """Ranks that meet for every use or every reduction must do so equally often."""
    if not (setup.per_micro_batch or (setup.gathers_per_use and not setup.gathers_per_pass)):
        return
    joined: dict[str, int] = {}
    for replica in setup.replicas:
        for stage in replica.stages:
            for name in stage.names:
                if joined.setdefault(name, stage.members[0].joined) != stage.members[0].joined:
                    raise ProgramError(
                        f"unit {name} is computed by ranks that join other numbers of "
                        "micro-batches, and cannot meet in each",
                        fix="use local accumulation and sharding 2 or less, or join as many "
                        "everywhere",
                    )


def _check_tied(setup: Setup) -> None:
    if not setup.tied:
        return
    for number, replica in enumerate(setup.replicas):
        if sum(len(stage.names) for stage in replica.stages) < 2:
            raise ProgramError(
                f"replica {number} has one unit, which cannot be tied to itself",
                fix="divide the model into at least an embedding and a head",
            )
        if max(len(stage.members) for stage in replica.stages) > 1:
            raise ProgramError(
                f"replica {number} ties its ends, and has a stage of several members",
                fix="use one member per stage, or untie the ends",
            )
    if setup.per_micro_batch:
        raise ProgramError(
            "adding the gradients of tied copies takes whole gradients, which sharded accumulation "
            "does not keep",
            fix="use local accumulation",
        )


def _check_replicas_agree(setup: Setup) -> None:
    names = [
        [name for stage in replica.stages for name in stage.names] for replica in setup.replicas
    ]
    for number, other in enumerate(names[1:], start=1):
        if other != names[0]:
            raise ProgramError(
                f"replica {number} divides the model into different units than replica 0",
                fix="use one unit per layer, so that gradients can be reduced layer by layer",
            )
    counts = {
        len(replica.serves(member))
        for replica in setup.replicas
        for stage in replica.stages
        for member in stage.members
    }
    if setup.per_micro_batch and len(counts) > 1:
        raise ProgramError(
            "replicas with unequal micro-batch counts cannot reduce once per micro-batch",
            fix="use local accumulation",
        )
    # A gather for every use is a meeting for every use: ranks that use a unit in another order, or
    # another number of times, would wait for each other for ever.
    shapes = {
        (
            replica.micro_batches,
            tuple((m.rank, len(m.units), m.serves) for s in replica.stages for m in s.members),
        )
        for replica in setup.replicas
    }
    alike = len(shapes) == 1 and len(counts) == 1
    if setup.gathers_per_use and not setup.gathers_per_pass and not alike:
        raise ProgramError(
            "replicas of unequal stages or micro-batch counts cannot gather views for every use",
            fix="use sharding 2, gather once per pass (the schedule pe-zero does), or divide all "
            "replicas alike",
        )


def _check_idle(setup: Setup) -> None:
    """Members without a micro-batch can only join in what happens once a step."""
    idle = any(
        not replica.serves(member)
        for replica in setup.replicas
        for stage in replica.stages
        for member in stage.members
    )
    if idle and setup.gathers_per_use:
        raise ProgramError(
            "a member that serves no micro-batch cannot gather views for their uses: it has none",
            fix="use sharding 2, or let every member serve a micro-batch",
        )
    if idle and setup.averages:
        raise ProgramError(
            "ranks that average their weights train alone in between, and a member that serves no "
            "micro-batch would have no gradient",
            fix="let every member serve a micro-batch, or reduce gradients in every step",
        )
