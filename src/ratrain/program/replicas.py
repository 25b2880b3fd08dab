"""Replicas of stages of members, and how many bytes each state has.

A unit is what one op works on: an embedding, a layer (or several, or a whole stage where
nothing finer is asked for), a head. A stage is consecutive units; each of its members holds all of
them and computes some of the micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise

from ratrain.errors import ProgramError
from ratrain.program.tiers import DEVICE, SETTINGS, TIERS


class Recovery(StrEnum):
    """When the activations that backward needs come back (activation recomputation)."""

    NONE = "none"  # forward saves them
    BACKWARD = "backward"  # computed again once the gradient has arrived
    FORWARD = "forward"  # computed again ahead of the gradient, in the wait before it
    SELECTIVE = "selective"  # forward saves them but attention's scores, which backward makes again
    SPILL = "spill"  # forward saves them, and they wait for backward in another tier

    @property
    def again(self) -> bool:
        """Whether whole units are computed again: each backward has an R."""
        return self in (Recovery.BACKWARD, Recovery.FORWARD)


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
    frozen: bool = False  # nobody updates it: it has no gradient and no optimizer
    copy_bytes: int = 0  # its weights in fp32, where replicas average copies of them
    mirror_bytes: int = 0  # master weights and moments, where a buddy keeps them too


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
    joined: int = 1  # micro-batches that each of its ops computes at once; its bytes are of as many
    # Where its units' states wait between their uses: a memory tier, or the device.
    optimizer_tier: str = DEVICE
    view_tier: str = DEVICE
    gradient_tier: str = DEVICE  # of whole gradients
    activation_tier: str = DEVICE  # of inputs where units are recovered, else of what is spilled

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
    site: int | None = None  # where replicas average weights: its own add up gradients

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


def check_replica(number: int, replica: Replica) -> None:
    """What no program can repair: a replica that contradicts itself."""
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
    for setting in SETTINGS:
        if any(getattr(member, setting) not in TIERS for member in stage.members):
            raise ProgramError(
                f"{what} has an {setting} that does not exist",
                fix=f"use {setting} {' or '.join(filter(None, TIERS))}, or leave it out",
            )
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


def check_joined(number: int, replica: Replica) -> None:
    """The same of stages that compute several micro-batches at once."""
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
