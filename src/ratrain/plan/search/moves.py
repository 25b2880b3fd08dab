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
    draft leaves open, whatever its estimate says of that, and is tried first."""

    words: str
    changes: Callable[[Space, Draft], Drafts]
    polishes: bool = False

    def of(self, space: Space, draft: Draft) -> Iterator[Draft]:
        """What it makes of a draft."""
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


for _name, _words, _changes in (
    ("share", "a micro-batch given to another replica", work.a_micro_batch),
    ("layer", "a layer in another stage", work.a_layer),
    ("neighbours", "two neighbouring stages in the other order", work.two_neighbours),
    ("micro-batch", "half or twice the micro-batch", work.half_or_twice_the_micro_batch),
    ("states", "states shared in another way", work.state_sharing),
    ("sequences", "sequence parallelism on or off", work.sequence_parallelism),
    ("join", "two replicas as one pipeline", devices.two_replicas_joined),
    ("split", "a pipeline as two replicas", devices.a_replica_split),
    ("device", "a device in another place, or idle", devices.a_device_moved),
    ("exchange", "two stages in each other's place", devices.two_stages_exchanged),
    ("idle", "an idle device put to work", devices.an_idle_device),
    ("tensor", "a tensor group divided, or two joined", devices.a_tensor_group),
    ("members", "stages as the members of one", devices.stages_as_members),
):
    declare_move(_name, Move(_words, _changes))
for _name, _words, _changes in (
    ("best-sizes", "each replica in its best micro-batch", work.best_micro_batches),
    ("best-cuts", "layers in the best place of each pipeline", work.best_cuts),
    ("all-shares", "the batch shared out anew", work.all_shares),
    ("between-hosts", "layers between hosts, in all replicas", work.layers_between_hosts),
):
    declare_move(_name, Move(_words, _changes, polishes=True))
