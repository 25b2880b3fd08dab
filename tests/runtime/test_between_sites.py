"""Who averages which elements with whom, where sites have other numbers of owners."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratrain.models.parameters import ALIGN
from ratrain.runtime.step.exchange.between_sites import ranges_between
from ratrain.runtime.step.optimizer import owned_range

EACH = ALIGN * 60 * 12


@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.integers(1, 3))
def test_each_element_is_averaged_once_by_its_owner_at_each_site(
    counts: list[int], size: int
) -> None:
    ends = list(accumulate(counts))
    sites = tuple(tuple(range(e - n, e)) for n, e in zip(counts, ends, strict=True))
    elements = EACH * size
    ranges = ranges_between(sites, elements)
    spans = sorted((each.begin, each.end) for each in ranges)
    assert spans[0][0] == 0 and spans[-1][1] == elements
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    for each in ranges:
        assert len(each.holders) == len(sites)
        parts = [each.part(place) for place in range(len(sites))]
        assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
        assert parts[-1].stop == each.end - each.begin
        for rank, site in zip(each.holders, sites, strict=True):
            first, last = owned_range(elements, len(site), site.index(rank))
            assert first <= each.begin and each.end <= last


@pytest.mark.parametrize("counts", [(1, 3), (2, 3), (2, 4), (3, 5)])
def test_ranges_of_other_ranks_are_on_their_way_at_once(counts: tuple[int, int]) -> None:
    """Who waits for nobody else goes on: no more rounds than the rank with the most ranges has."""
    sites = tuple(range(counts[0])), tuple(range(counts[0], sum(counts)))
    ranges, turn = ranges_between(sites, EACH), dict[int, int]()
    for each in ranges:  # a rank begins its next range once it has ended the one before
        begins = max(turn.get(rank, 0) for rank in each.holders)
        turn.update(dict.fromkeys(each.holders, begins + 1))
    most = max(sum(rank in each.holders for each in ranges) for rank in range(sum(counts)))
    assert max(turn.values()) == most
