"""The moves of the search: each makes of a draft those that differ from it in one thing.

A move is declared by its name, here or in a file of your own (docs/how-to/extending.md). It yields
drafts, or None in place of one that cannot be; the search prices what comes, and keeps the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.space import Drafts, Space
from ratrain.plan.search import moves_of_devices as devices
from ratrain.plan.search import moves_of_work as work
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


declare_move(
    "share", Move("a micro-batch given to another replica", work.a_micro_batch, members=None)
)
declare_move("layer", Move("a layer in another stage", work.a_layer, members=None))
declare_move("neighbours", Move("two neighbouring stages in the other order", work.two_neighbours))
declare_move(
    "micro-batch",
    Move("half or twice the micro-batch", work.half_or_twice_the_micro_batch, members=None),
)
declare_move(
    "best-sizes", Move("each replica in its best micro-batch", work.best_micro_batches, True)
)
declare_move("best-cuts", Move("layers in the best place of each pipeline", work.best_cuts, True))
declare_move("all-shares", Move("the batch shared out anew", work.all_shares, True))
declare_move(
    "between-hosts", Move("layers between hosts, in all replicas", work.layers_between_hosts)
)
declare_move("states", Move("states shared in another way", work.state_sharing, members=None))
declare_move("sequences", Move("sequence parallelism on or off", work.sequence_parallelism))
declare_move("join", Move("two replicas as one pipeline", devices.two_replicas_joined))
declare_move("split", Move("a pipeline as two replicas", devices.a_replica_split))
declare_move("stage", Move("a stage in another place, or idle", devices.a_stage_moved))
declare_move("exchange", Move("two stages in each other's place", devices.two_stages_exchanged))
declare_move("idle", Move("an idle device put to work", devices.an_idle_device))
declare_move("tensor", Move("a tensor group divided, or two joined", devices.a_tensor_group))
declare_move(
    "member", Move("a member in another stage, or idle", devices.a_member_moved, members=True)
)
declare_move(
    "idle-member",
    Move("an idle device as a member", devices.an_idle_device_as_member, members=True),
)
declare_move(
    "members-tensor",
    Move(
        "a members' tensor group divided, or two joined",
        devices.a_members_tensor_group,
        members=True,
    ),
)
declare_move(
    "members-cuts",
    Move("layers in the best place among members", devices.best_members_cuts, True, True),
)
