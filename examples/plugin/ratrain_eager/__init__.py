"""1F1B with twice as many forwards ahead, so that messages hide behind compute."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from ratrain.describe.presets import declare_cluster
from ratrain.program.actions import Action
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.skeletons import B, F, Place, Skeleton, Steps, declare_skeleton
from ratrain.program.strategies import STRATEGIES, declare_pass, declare_strategy


def eager(place: Place) -> Steps:
    """1F1B, twice as far ahead."""
    ahead = min(2 * (place.ranks - place.rank - 1), place.micro_batches)
    for m in range(ahead):
        yield F, place.rank, m
    for m in range(ahead, place.micro_batches):
        yield F, place.rank, m
        yield B, place.rank, m - ahead
    for m in range(place.micro_batches - ahead, place.micro_batches):
        yield B, place.rank, m


def update_in_forward_order(program: Program) -> Program:
    """A rank updates its first layers first: the next step's forward needs them first."""

    def ordered(_rank: int, _lane: Lane, actions: Iterable[Action]) -> Iterator[Action]:
        actions = list(actions)
        updates = iter(sorted(a for a in actions if a.kind is Kind.UpdateShard))
        for action in actions:
            yield next(updates) if action.kind is Kind.UpdateShard else action

    return program.edit("update-in-forward-order", Lane.UPDATE, by=ordered)


declare_skeleton("eager-1f1b", Skeleton(eager))
declare_pass("update-in-forward-order", update_in_forward_order)
declare_strategy(
    "eager",
    replace(
        STRATEGIES["ratrain"],
        doc="ratrain, twice as far ahead",
        skeleton="eager-1f1b",
        further=("update-in-forward-order",),
    ),
)
declare_cluster(Path(__file__).parent / "attic.toml")
