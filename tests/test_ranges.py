"""Overlaps of random holdings and needs: every needed element comes once, from one who has it."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ratrain.errors import SpecError
from ratrain.ranges import Block, Copy, copies, cut, joined, line, overlaps, turns

NAMES = ("a", "b")
RANDOM = st.integers(0, 10_000).map(Random)
Values = NDArray[np.int64]


def matrices(rng: Random) -> dict[str, tuple[int, int]]:
    return {name: (rng.randint(1, 12), rng.randint(1, 9)) for name in NAMES}


def cut_points(rng: Random, count: int) -> list[int]:
    inner = sorted(rng.randint(0, count) for _ in range(rng.randint(0, 3)))
    return [0, *inner, count]


def tiles(rng: Random, shapes: dict[str, tuple[int, int]], holders: int) -> dict[int, list[Block]]:
    """Everything, cut at random, each tile with one holder or several, in a buffer of its own."""
    held: dict[int, list[Block]] = {rank: [] for rank in range(holders)}
    reached = dict.fromkeys(held, 0)
    for name, (height, width) in shapes.items():
        for rows in pairwise(cut_points(rng, height)):
            for columns in pairwise(cut_points(rng, width)):
                for rank in rng.sample(range(holders), rng.randint(1, holders)):
                    gap, stride = rng.randint(0, 3), columns[1] - columns[0] + rng.randint(0, 2)
                    block = Block(name, rows, columns, reached[rank] + gap, stride)
                    held[rank].append(block)
                    reached[rank] = block.offset + block.height * stride
    return held


def windows(rng: Random, shapes: dict[str, tuple[int, int]], ranks: int) -> dict[int, list[Block]]:
    """For each rank some part of each matrix."""
    needed: dict[int, list[Block]] = {}
    for rank in range(ranks):
        blocks: list[Block] = []
        at = 0
        for name, (height, width) in shapes.items():
            rows = tuple(sorted((rng.randint(0, height), rng.randint(0, height))))
            columns = tuple(sorted((rng.randint(0, width), rng.randint(0, width))))
            block = Block(name, rows, columns, at, columns[1] - columns[0])  # type: ignore[arg-type]
            blocks.append(block)
            at += block.elements
        needed[rank] = blocks
    return needed


def elements(block: Block) -> list[tuple[str, int, int]]:
    return [(block.name, r, c) for r in range(*block.rows) for c in range(*block.columns)]


def at_places(block: Block) -> list[int]:
    return [
        block.offset + down * block.stride + right
        for down in range(block.height)
        for right in range(block.width)
    ]


def case(rng: Random) -> tuple[dict[int, list[Block]], dict[int, list[Block]], list[Copy]]:
    shapes = matrices(rng)
    held, needed = tiles(rng, shapes, rng.randint(1, 5)), windows(rng, shapes, rng.randint(1, 5))
    return held, needed, copies(held, needed)


@given(RANDOM)
def test_every_needed_element_arrives_once_from_a_rank_that_has_it(rng: Random) -> None:
    held, needed, found = case(rng)
    buffers = {
        rank: dict(
            pair for block in blocks for pair in zip(at_places(block), elements(block), strict=True)
        )
        for rank, blocks in held.items()
    }
    arrived: dict[int, Counter[int]] = {rank: Counter() for rank in needed}
    for source, target, there, here in found:
        assert elements(there) == elements(here)
        assert [buffers[source][place] for place in at_places(there)] == elements(here)
        arrived[target].update(at_places(here))
    for rank, blocks in needed.items():
        assert arrived[rank] == Counter(place for block in blocks for place in at_places(block))


@given(RANDOM)
def test_who_has_what_it_needs_asks_nobody(rng: Random) -> None:
    held, _, found = case(rng)
    for source, target, _, here in found:
        own = {element for block in held.get(target, []) for element in elements(block)}
        assert source == target or not own.issuperset(elements(here))


@given(RANDOM)
def test_all_ranks_find_the_same_copies_in_whatever_order_they_know_of_each_other(
    rng: Random,
) -> None:
    held, needed, found = case(rng)
    assert copies(dict(reversed(held.items())), dict(reversed(needed.items()))) == found


@given(st.integers(1, 6), st.integers(1, 40), RANDOM)
def test_of_holders_of_the_same_none_sends_more_than_its_share_and_one_piece(
    holders: int, pieces: int, rng: Random
) -> None:
    sizes = [rng.randint(1, 20) for _ in range(pieces)]
    blocks = [line(str(number), 0, size, 0) for number, size in enumerate(sizes)]
    sent = Counter[int]()
    for copy in copies(dict.fromkeys(range(holders), blocks), {holders: blocks}):
        sent[copy.source] += copy.held.elements
    assert max(sent.values()) <= sum(sizes) / holders + max(sizes)


@given(RANDOM, st.integers(1, 40))
def test_turns_hold_all_copies_and_none_moves_more_than_the_limit_and_a_row_of_each(
    rng: Random, limit: int
) -> None:
    _, _, found = case(rng)
    in_turns = turns(found, limit)
    for turn in in_turns:
        moved, widest = Counter[tuple[bool, int]](), Counter[tuple[bool, int]]()
        for source, target, there, _ in turn:
            for key in ((True, target), (False, source)):
                moved[key] += there.elements
                widest[key] += there.width
        for key, size in moved.items():
            assert size <= limit + widest[key]

    def moves(each: list[Copy]) -> Counter[tuple[int, int, int, int]]:
        return Counter(
            (source, target, *places)
            for source, target, there, here in each
            for places in zip(at_places(there), at_places(here), strict=True)
        )

    assert moves([copy for turn in in_turns for copy in turn]) == moves(found)


@given(RANDOM, st.data())
def test_a_run_of_a_block_is_its_elements_in_order(rng: Random, data: st.DataObject) -> None:
    (block,) = windows(rng, {"a": (rng.randint(1, 12), rng.randint(1, 9))}, 1)[0]
    begin = data.draw(st.integers(0, block.elements))
    end = data.draw(st.integers(begin, block.elements))
    parts = list(block.run(begin, end))
    assert len(parts) <= 3
    assert [e for part in parts for e in elements(part)] == elements(block)[begin:end]
    assert [p for part in parts for p in at_places(part)] == at_places(block)[begin:end]


@given(RANDOM)
def test_a_piece_of_a_cut_is_whole_or_absent_in_every_block_that_it_was_cut_along(
    rng: Random,
) -> None:
    held, needed, _ = case(rng)
    along = [block for blocks in held.values() for block in blocks]
    for block in needed[0]:
        pieces = [piece for piece in cut(block, along) if block.elements]
        assert sorted(e for piece in pieces for e in elements(piece)) == sorted(elements(block))
        for piece in pieces:
            for other in along:
                shared = set(elements(other)) & set(elements(piece))
                assert shared in (set(), set(elements(piece)))


@given(RANDOM)
def test_lines_that_follow_each_other_at_both_ends_are_copied_as_one(rng: Random) -> None:
    size = rng.randint(1, 60)
    sides: list[list[Block]] = []
    for _ in range(2):
        spans = [span for span in pairwise(cut_points(rng, size)) if span[0] < span[1]]
        sides.append([line("a", first, last, first) for first, last in spans])
    assert joined(overlaps(*sides)) == [(line("a", 0, size, 0),) * 2]


def test_what_nobody_has_is_named() -> None:
    with pytest.raises(SpecError, match="nobody has rows 0 to 1, columns 3 to 5 of a, "):
        copies({0: [line("a", 0, 3, 0)]}, {1: [line("a", 0, 5, 0)]})
