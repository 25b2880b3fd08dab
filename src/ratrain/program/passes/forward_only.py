"""Pass about validation: what is left of a training step when nothing is trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import lcm

from ratrain.errors import ProgramError
from ratrain.program.actions import Action
from ratrain.program.kind import Kind, Lane
from ratrain.program.passes.offloading import fetch_views
from ratrain.program.program import Program
from ratrain.program.replicas import Member
from ratrain.program.setup import Averages
from ratrain.program.tiers import DEVICE


def forward_only(program: Program) -> Program:
    """Forward only: the losses of held-out sequences, on the training step's own ranks and lanes.

    Keeps each rank's forwards in their order, with the messages, sums and gathers that they need,
    and takes everything else away. A forward frees its input and keeps nothing. Safe because it
    runs between two steps, when every view is complete and no gradient is under way; its memory
    is proved like that of any program.
    """
    setup = program.setup.with_members(_keeping_nothing)
    setup = replace(setup, forward_only=True, period=1, averages=Averages.NONE, tied=False)

    def forwards(_rank: int, _lane: Lane, actions: Iterable[Action]) -> Iterator[Action]:
        kept = (Kind.F, Kind.SEND_F, Kind.RECV_F, Kind.AllReduce_F, Kind.Gather_F)
        return (action for action in actions if action.kind in kept and action.step == 0)

    left = program.edit("forward-only", *Lane, by=forwards, setup=setup)
    views_wait = any(member.view_tier for member in setup.members)
    return fetch_views(left) if views_wait else left


def first_forwards(program: Program) -> Program:
    """Forward only, of the first micro-batch, or of as many as a stage joins: what goes through all
    stages at once. Refused where members of a stage share micro-batches: most would have none."""
    stages = [stage for replica in program.setup.replicas for stage in replica.stages]
    if any(len(stage.members) > 1 for stage in stages):
        raise ProgramError(
            "stages have several members, of which one micro-batch needs one alone",
            fix="leave sample_every out, and use `ratrain sample` on a checkpoint",
        )
    counts = [lcm(*(m.joined for s in r.stages for m in s.members)) for r in program.setup.replicas]
    replicas = [
        replace(replica, micro_batches=count)
        for replica, count in zip(program.setup.replicas, counts, strict=True)
    ]
    most, left = max(counts), forward_only(program)

    def first(_rank: int, _lane: Lane, actions: Iterable[Action]) -> Iterator[Action]:
        return (action for action in actions if action.micro_batch < most)

    return left.edit(
        "first-micro-batch", *Lane, by=first, setup=replace(left.setup, replicas=tuple(replicas))
    )


def _keeping_nothing(member: Member, _is_last: bool) -> Member:
    return replace(member, activation_tier=DEVICE, gradient_tier=DEVICE)
