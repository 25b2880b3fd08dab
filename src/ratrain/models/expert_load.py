"""How the tokens of a layer were spread over its experts. A token counts once for each expert that
it chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class ExpertLoad:
    """Counted in backward, which a step has once for each micro-batch: neither validation nor what
    is recomputed counts."""

    tokens: list[int]  # of each expert of the layer, here or elsewhere in the tensor group
    longest: int = 0  # of the group's rank with the most, micro-batch by micro-batch

    def count(self, tokens: Sequence[int], degree: int) -> None:
        """Adds a micro-batch's tokens of each expert, which so many ranks share evenly."""
        share = len(tokens) // degree
        ranks = (sum(tokens[first : first + share]) for first in range(0, len(tokens), share))
        self.add(ExpertLoad(list(tokens), max(ranks)))

    def add(self, other: ExpertLoad) -> None:
        self.tokens = [a + b for a, b in zip(self.tokens, other.tokens, strict=True)]
        self.longest += other.longest

    def take(self) -> ExpertLoad:
        """What was counted since it was last taken."""
        taken = ExpertLoad(self.tokens, self.longest)
        self.tokens, self.longest = [0] * len(self.tokens), 0
        return taken
