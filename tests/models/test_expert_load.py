"""How tokens are counted over experts."""

from __future__ import annotations

import random

import pytest

from ratrain.models.expert_load import ExpertLoad


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_rank_has_at_least_an_even_share_and_at_most_all(seed: int) -> None:
    """Over micro-batches it has what each one's longest rank has, whichever that is."""
    draw = random.Random(seed)
    degree = draw.choice((1, 2, 4))
    load, every, longest = ExpertLoad([0] * 8), 0, 0
    for _ in range(draw.randint(1, 5)):
        tokens = [draw.randint(0, 50) for _ in range(8)]
        ranks = [sum(tokens[n::1][: 8 // degree]) for n in range(0, 8, 8 // degree)]
        load.count(tokens, degree)
        every, longest = every + sum(tokens), longest + max(ranks)
    taken = load.take()
    assert (sum(taken.tokens), taken.longest) == (every, longest)
    assert every / degree <= taken.longest <= every
    assert load == ExpertLoad([0] * 8)
