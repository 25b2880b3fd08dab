"""In which step of a period each unit is averaged: the exact division, and what others find."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratrain.cost.turns import Floats, exposed_of_runs, lengths_of_runs, turns


@st.composite
def timelines(draw: st.DrawFn) -> tuple[Floats, Floats, int]:
    """Backward and transfer seconds of some units, and steps of a period."""
    count, steps = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    seconds = st.floats(0.0, 5.0)
    columns = [draw(st.lists(seconds, min_size=count, max_size=count)) for _ in range(2)]
    return np.array(columns[0]), np.array(columns[1]), steps


def lost(of_runs: Floats, turn: tuple[int, ...], steps: int) -> list[float]:
    """What each step loses."""
    cuts = [turn.index(step) if step in turn else None for step in range(steps)]
    ends = [len(turn) - turn[::-1].index(step) if step in turn else None for step in range(steps)]
    return [
        0.0 if begin is None or end is None else float(of_runs[begin, end])
        for begin, end in zip(cuts, ends, strict=True)
    ]


def every_division(count: int, steps: int) -> list[tuple[int, ...]]:
    divisions: list[tuple[int, ...]] = []
    for cuts in combinations_with_replacement(range(count + 1), steps - 1):
        lengths = np.diff([0, *cuts, count])
        divisions.append(tuple(np.repeat(np.arange(steps), lengths).tolist()))
    return divisions


@settings(deadline=None)
@given(timelines(), st.booleans())
def test_no_division_into_runs_loses_less(
    timeline: tuple[Floats, Floats, int], longest: bool
) -> None:
    backward_s, sync_s, steps = timeline
    of_runs = lengths_of_runs(sync_s) if longest else exposed_of_runs(backward_s, sync_s)
    found = turns(of_runs, steps, least_longest=longest)
    assert list(found) == sorted(found), "in the order of backward, each unit once"
    total = max if longest else sum
    best = min(total(lost(of_runs, turn, steps)) for turn in every_division(len(sync_s), steps))
    assert total(lost(of_runs, found, steps)) == pytest.approx(best, abs=1e-9)


def published(backward_s: Floats, sync_s: Floats, steps: int) -> float:
    """What DreamDDP's search loses, in our words: fill a step while its transfers end inside
    backward; branch at the first unit that does not fit; a step takes at least one unit, and the
    last one all that is left."""
    ready_s, count = np.cumsum(backward_s), len(sync_s)
    of_runs = exposed_of_runs(backward_s, sync_s)

    def search(unit: int, step: int) -> float:
        if step == steps - 1:
            return float(of_runs[unit, count])
        behind, ended_s = unit, 0.0
        while behind < count and max(ended_s, ready_s[behind]) + sync_s[behind] <= ready_s[-1]:
            ended_s = max(ended_s, ready_s[behind]) + sync_s[behind]
            behind += 1
        if behind == count:
            return 0.0
        best = float(of_runs[unit, behind + 1]) + search(behind + 1, step + 1)
        return min(best, search(behind, step + 1)) if behind > unit else best

    return search(0, 0)


@pytest.mark.parametrize("seed", range(40))
def test_the_published_search_carried_out_in_full_finds_what_we_find(seed: int) -> None:
    draw = np.random.default_rng(seed)
    count, steps = int(draw.integers(8, 30)), int(draw.integers(3, 7))
    backward_s = draw.exponential(1.0, count)
    sync_s = draw.exponential(draw.uniform(0.5, 2.0) * steps, count)
    of_runs = exposed_of_runs(backward_s, sync_s)
    ours = sum(lost(of_runs, turns(of_runs, steps), steps))
    theirs = published(backward_s, sync_s, steps)
    assert ours <= theirs + 1e-9
    assert ours >= max(0.0, sync_s.sum() - steps * backward_s.sum()) - 1e-9
    assert ours == pytest.approx(theirs, rel=1e-9)


def test_a_thousand_units_are_divided_among_fifty_steps_at_once() -> None:
    sync_s = np.random.default_rng(0).exponential(1.0, 1000)
    found = turns(lengths_of_runs(sync_s), 50, least_longest=True)
    longest = max(lost(lengths_of_runs(sync_s), found, 50))
    assert longest <= sync_s.sum() / 50 + sync_s.max()


def test_frozen_units_keep_their_time() -> None:
    """The LoRA profiles of DreamDDP leave frozen layers out, and so see a short backward."""
    backward_s, sync_s = np.array([1.0, 3.0, 1.0, 3.0]), np.array([2.0, 0.0, 2.0, 0.0])
    whole = exposed_of_runs(backward_s, sync_s)
    trained = exposed_of_runs(backward_s[::2], sync_s[::2])
    assert sum(lost(whole, turns(whole, 2), 2)) == 0.0
    assert sum(lost(trained, turns(trained, 2), 2)) > 0.0
