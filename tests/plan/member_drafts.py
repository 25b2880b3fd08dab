"""Drafts whose stages have several members, as moves make them of the search's seeds."""

from __future__ import annotations

from random import Random

from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.space import Space
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.search.beam import seeds
from ratrain.plan.search.moves import changed


def member_drafts(space: Space, state: StateMode, rounds: int = 2) -> list[Draft]:
    """Those among seeds, and what so many rounds of moves make of a few drafts of each round."""
    dice, known = Random(1), dict[object, Draft]()
    front = {draft.key: draft for draft in seeds(space, divided=False, state=state)}
    for _ in range(rounds):
        known |= front
        begun = dice.sample([*front.values()], min(24, len(front)))
        front = {
            other.key: other
            for draft in begun
            for other in changed(space, draft)
            if other.state == state
        }
    return [draft for draft in (known | front).values() if draft.has_members]
