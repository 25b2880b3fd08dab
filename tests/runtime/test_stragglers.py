"""Ranks that have become slower than they were are named, with what it costs, and once."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ratrain.runtime.rank.stragglers import AGAIN, SKIPPED, SLOWER, STEPS, Stragglers

NEEDED = SKIPPED + 2 * STEPS


def said(times: list[list[float]]) -> list[str]:
    """What is said of steps, of which each has the times of all ranks."""
    watch = Stragglers(lambda rank: f"rank {rank}")
    return [line for step, row in enumerate(times) for line in watch.take(step, 2 * max(row), row)]


@given(st.integers(0, 3), st.floats(SLOWER * 1.1, 20.0), st.integers(0, 2**32 - 1))
def test_a_rank_that_becomes_slower_is_named_once_and_again_when_it_is_over(
    slow: int, factor: float, seed: int
) -> None:
    draw = random.Random(seed)

    def steps(count: int, times: float) -> list[list[float]]:
        return [
            [draw.uniform(0.97, 1.03) * (times if rank == slow else 1.0) for rank in range(4)]
            for _ in range(count)
        ]

    lines = said([*steps(NEEDED, 1.0), *steps(3 * STEPS, factor), *steps(3 * STEPS, 1.0)])
    assert [line.split(" ")[1] for line in lines] == [str(slow)] * 2
    assert "has become slow" in lines[0] and "as fast as at first" in lines[1]


@given(st.lists(st.floats(0.2, 5.0), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_ranks_that_are_unequal_from_the_beginning_or_slow_for_a_few_steps_are_not_named(
    speeds: list[float], seed: int
) -> None:
    draw = random.Random(seed)
    times = [[draw.uniform(0.97, 1.03) * each for each in speeds] for _ in range(4 * STEPS)]
    for step in draw.sample(range(len(times)), STEPS // 4):
        times[step] = [10 * each for each in times[step]]
    assert said(times) == []


def test_a_rank_that_goes_back_and_forth_is_named_ever_less_often() -> None:
    turn = [[1.0]] * (3 * STEPS) + [[2.0]] * (3 * STEPS)
    lines = said([[1.0]] * NEEDED + 100 * turn)
    assert 6 <= len(lines) <= 10
    assert [("slow" in line) for line in lines] == [True, False] * (len(lines) // 2)


def test_a_rank_whose_slowness_costs_no_step_anything_is_not_named() -> None:
    watch = Stragglers(lambda rank: f"rank {rank}")
    times = [1.0] * (NEEDED) + [2.0] * (3 * STEPS)
    assert not [line for step, each in enumerate(times) for line in watch.take(step, 5.0, [each])]


def test_the_first_steps_do_not_count_and_nothing_is_said_before_there_is_a_measure() -> None:
    warm, usual, slow = [[9.0]] * SKIPPED, [[1.0]] * STEPS, [[2.0]] * STEPS
    assert said([*warm, *usual, *slow[1:]]) == []
    (line,) = said([*warm, *usual, *slow])
    assert "2.0 x" in line and "a step takes 4 s, 2 s then" in line
    assert AGAIN < SLOWER
