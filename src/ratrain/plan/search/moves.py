"""The moves of the search: each makes of a draft those that differ from it in one thing.

A move is declared by its name, here or in a file of your own (docs/how-to/extending.md). It yields
drafts, or None in place of one that cannot be; the search prices what comes, and keeps the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.space import Drafts, Space
from ratrain.plan.search.moves_of_devices import (
    a_replica_split,
    a_stage_moved,
    a_tensor_group,
    an_idle_device,
    two_replicas_joined,
    two_stages_exchanged,
)
from ratrain.plan.search.moves_of_members import (
    a_member_moved,
    a_members_tensor_group,
    an_idle_device_as_member,
    best_members_cuts,
)
from ratrain.plan.search.moves_of_work import (
    a_layer,
    a_micro_batch,
    all_shares,
    best_cuts,
    best_micro_batches,
    half_or_twice_the_micro_batch,
    layers_between_hosts,
    sequence_parallelism,
    state_sharing,
    two_neighbours,
)
from ratrain.plugins import Registry


@dataclass(frozen=True)
class Move:
    """`words`: what it changes, as `explain` says it. `polishes`: it makes the best of what a
    draft leaves open, whatever its estimate says of that, and is tried first. `members`: of drafts
    whose stages have several members; None: of these and of others."""

    words: str
    changes: Callable[[Space, Draft], Drafts]
    polishes: bool = False
    members: bool | None = False

    def of(self, space: Space, draft: Draft) -> Iterator[Draft]:
        """What it makes of a draft."""
        if self.members in (None, draft.has_members):
            yield from filter(None, self.changes(space, draft))


@dataclass(frozen=True)
class MoveTried:
    """What a move would make of a plan: how many drafts, and the step of the fastest, at the grain
    of stages; None where it makes none that fits. `step_s`: the plan's own, timed so."""

    name: str
    words: str
    drafts: int
    best_s: float | None
    step_s: float


MOVES: Registry[Move] = Registry("move")


def declare_move(name: str, move: Move) -> None:
    """Lets the search try it."""
    MOVES.declare(name, move)


def changed(space: Space, draft: Draft, *, polishing: bool = False) -> Iterator[Draft]:
    """Every draft one move away: of those moves that polish, or of the others."""
    for move in MOVES.values():
        if move.polishes is polishing:
            yield from move.of(space, draft)


declare_move("share", Move("a micro-batch given to another replica", a_micro_batch, members=None))
declare_move("layer", Move("a layer in another stage", a_layer, members=None))
declare_move("neighbours", Move("two neighbouring stages in the other order", two_neighbours))
declare_move(
    "micro-batch",
    Move("half or twice the micro-batch", half_or_twice_the_micro_batch, members=None),
)
declare_move("best-sizes", Move("each replica in its best micro-batch", best_micro_batches, True))
declare_move("best-cuts", Move("layers in the best place of each pipeline", best_cuts, True))
declare_move("all-shares", Move("the batch shared out anew", all_shares, True))
declare_move("between-hosts", Move("layers between hosts, in all replicas", layers_between_hosts))
declare_move("states", Move("states shared in another way", state_sharing, members=None))
declare_move("sequences", Move("sequence parallelism on or off", sequence_parallelism))
declare_move("join", Move("two replicas as one pipeline", two_replicas_joined))
declare_move("split", Move("a pipeline as two replicas", a_replica_split))
declare_move("stage", Move("a stage in another place, or idle", a_stage_moved))
declare_move("exchange", Move("two stages in each other's place", two_stages_exchanged))
declare_move("idle", Move("an idle device put to work", an_idle_device))
declare_move("tensor", Move("a tensor group divided, or two joined", a_tensor_group))
declare_move("member", Move("a member in another stage, or idle", a_member_moved, members=True))
declare_move(
    "idle-member", Move("an idle device as a member", an_idle_device_as_member, members=True)
)
declare_move(
    "members-tensor",
    Move("a members' tensor group divided, or two joined", a_members_tensor_group, members=True),
)
declare_move(
    "members-cuts", Move("layers in the best place among members", best_members_cuts, True, True)
)
