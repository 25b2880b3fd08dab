"""Who averages which elements with whom, where sites have other numbers of owners, or cut
parameters otherwise than each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from functools import reduce
from itertools import accumulate, pairwise
from math import lcm
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from in_one_process import close_all, networks, on_all
from test_slots import SPEC, cut, model_values
from torch import Tensor

from ratrain.checkpoint.entries import Entry, gaps
from ratrain.models.division import Division
from ratrain.models.parameters import ALIGN
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.program.kind import Lane
from ratrain.runtime.seats import Seat, Seats
from ratrain.runtime.step.exchange.between_sites import Meeting, Shared, alike
from ratrain.runtime.step.exchange.integers import INTEGERS
from ratrain.runtime.step.exchange.stored import stored_in
from ratrain.runtime.step.network.links import Routes
from ratrain.runtime.step.network.socket_network import SocketNetwork
from ratrain.runtime.step.optimizer import owned_range
from ratrain.runtime.step.tensor_parts import stored_name

EACH = ALIGN * 60 * 12


@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.integers(1, 3))
def test_each_element_is_averaged_once_by_its_owner_at_each_site(
    counts: list[int], size: int
) -> None:
    ends = list(accumulate(counts))
    sites = tuple(tuple(range(e - n, e)) for n, e in zip(counts, ends, strict=True))
    elements = EACH * size
    ranges = alike(sites, elements).ranges()
    spans = sorted(piece.columns for each in ranges for piece in each.pieces)
    assert spans[0][0] == 0 and spans[-1][1] == elements
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    for each in ranges:
        assert len(each.holders) == len(sites)
        for place, (rank, site) in enumerate(zip(each.holders, sites, strict=True)):
            owned = slice(*owned_range(elements, len(site), site.index(rank)))
            (piece,) = each.pieces
            assert owned.start <= piece.columns[0] and piece.columns[1] <= owned.stop
            own = Meeting(alike(sites, elements), place, site.index(rank), Division(), owned, 0)
            here = next(mine for mine in own.ranges if mine.holders == each.holders)
            parts = [here.part(number) for number in range(len(sites))]
            assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
            assert parts[-1].stop == piece.columns[1] - piece.columns[0]


@pytest.mark.parametrize("counts", [(1, 3), (2, 3), (2, 4), (3, 5)])
def test_ranges_of_other_ranks_are_on_their_way_at_once(counts: tuple[int, int]) -> None:
    """Who waits for nobody else goes on: no more rounds than the rank with the most ranges has."""
    sites = tuple(range(counts[0])), tuple(range(counts[0], sum(counts)))
    ranges, turn = alike(sites, EACH).ranges(), dict[int, int]()
    for each in ranges:  # a rank begins its next range once it has ended the one before
        begins = max(turn.get(rank, 0) for rank in each.holders)
        turn.update(dict.fromkeys(each.holders, begins + 1))
    most = max(sum(rank in each.holders for each in ranges) for rank in range(sum(counts)))
    assert max(turn.values()) == most


# ---- sites of unlike tensor degrees -------------------------------------------------------------

SITES = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, 4]), st.integers(1, 3)), min_size=2, max_size=3
).filter(lambda sites: len({degree for degree, _ in sites}) > 1)
UNITS = st.sampled_from(unit_names(SPEC))
SMALL = st.sampled_from([1 << 20, 1 << 9])


class Here(NamedTuple):
    """A rank of a site, and the part of the unit that it owns."""

    seat: Seat
    site: int
    place: int
    owned: slice


class Field(NamedTuple):
    """Sites, each with so many replicas of one tensor degree, that share a unit."""

    seats: Seats
    shared: Shared
    ranks: list[Here]

    def meeting(self, rank: int, first: int) -> Meeting:
        here = self.ranks[rank]
        division = here.seat.division
        return Meeting(self.shared, here.site, here.place, division, here.owned, first)


def field_of(unit: str, sites: list[tuple[int, int]], taken_bytes: int = 1 << 20) -> Field:
    degrees = [degree for degree, count in sites for _ in range(count)]
    numbers = tuple(range(len(degrees)))
    seats = Seats(1, len(degrees), numbers, numbers, max(degrees), (), tuple((d,) for d in degrees))
    at = [(site, place) for site, (_, count) in enumerate(sites) for place in range(count)]
    numbers_of: list[list[list[int]]] = [[[] for _ in range(degree)] for degree, _ in sites]
    for data, (site, _) in enumerate(at):
        for number, rank in enumerate(seats.tensor_group(0, data)):
            numbers_of[site][number].append(rank)
    sizes = tuple(
        unit_layout(SPEC, unit, Division(0, degree)).padded(count) for degree, count in sites
    )
    shapes = tuple((p.name, p.whole_shape) for p in unit_layout(SPEC, unit).parameters)
    ranks = [
        Here(seat, *at[seat.data], slice(*owned_range(sizes[site], sites[site][1], place)))
        for seat in seats.all()
        for site, place in [at[seat.data]]
    ]
    return Field(
        seats,
        Shared(tuple(tuple(map(tuple, of)) for of in numbers_of), sizes, shapes, taken_bytes),
        ranks,
    )


@contextmanager
def crowd_of(field: Field) -> Generator[list[SocketNetwork]]:
    everybody = tuple(range(field.seats.world_size))
    routes = Routes((), (), {Lane.AVERAGE: (everybody,)})
    crowd = networks(field.seats, routes, (0,) * field.seats.world_size)
    try:
        yield crowd
    finally:
        close_all(crowd)


def owned_part(field: Field, unit: str, rank: int, whole: Tensor) -> Tensor:
    """Of a unit's numbers those that a rank owns of its buffer."""
    here = field.ranks[rank]
    flat = torch.zeros(field.shared.sizes[here.site], dtype=whole.dtype)
    mine = cut(unit, here.seat.division, whole)
    flat[: len(mine)] = mine
    return flat[here.owned]


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(UNITS, SITES, st.sampled_from([torch.float32, torch.bfloat16]), SMALL)
def test_the_mean_of_unlike_parts_is_that_of_one_process_bit_by_bit(
    unit: str, sites: list[tuple[int, int]], dtype: torch.dtype, taken_bytes: int
) -> None:
    """However a site divides a unit: the sum in the order of sites, divided."""
    field = field_of(unit, sites, taken_bytes)
    of_site = [model_values(unit, site, dtype) for site in range(len(sites))]
    mean = reduce(torch.add, [values.float() for values in of_site]).to(dtype) / len(sites)

    def work(rank: int, network: SocketNetwork) -> None:
        here = field.ranks[rank]
        flat = owned_part(field, unit, rank, of_site[here.site])
        field.meeting(rank, here.owned.start).average(network, flat)
        assert torch.equal(flat, owned_part(field, unit, rank, mean))

    with crowd_of(field) as crowd:
        on_all(crowd, work)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(UNITS, SITES, st.sampled_from(["int8", "int4"]), SMALL)
def test_integers_of_unlike_parts_give_all_sites_one_mean_and_keep_the_rest(
    unit: str, sites: list[tuple[int, int]], wire: str, taken_bytes: int
) -> None:
    """Every copy of an element is the same, and means and residuals add up to what was learnt."""
    field, layout = field_of(unit, sites, taken_bytes), unit_layout(SPEC, unit)
    of_site = [model_values(unit, site, torch.float32) for site in range(len(sites))]
    steps = 8
    total = torch.stack([values.double() for values in of_site]).sum(0) * steps / len(sites)

    def work(rank: int, network: SocketNetwork) -> tuple[Tensor, Tensor]:
        here = field.ranks[rank]
        own, sum_ = owned_part(field, unit, rank, of_site[here.site]), torch.zeros(())
        kept, first, learnt = torch.zeros_like(own), here.owned.start, own
        for _ in range(steps):
            learnt = own.clone()
            field.meeting(rank, first).average_learnt(network, INTEGERS[wire], learnt, kept)
            sum_ = sum_ + learnt.double()
        return sum_, learnt

    with crowd_of(field) as crowd:
        answers = on_all(crowd, work)
    told: dict[int, set[float]] = defaultdict(set)
    index = torch.arange(layout.size, dtype=torch.float64) + 1
    scale = torch.stack([values.abs() for values in of_site]).max(0).values.max()
    for rank, (sum_, learnt) in enumerate(answers):
        place = owned_part(field, unit, rank, index)
        for at, value in zip(place.tolist(), learnt.tolist(), strict=True):
            if at:
                told[int(at)].add(value)
        expected = owned_part(field, unit, rank, total)
        filled = place > 0
        assert ((sum_ - expected)[filled].abs() < 4 * scale).all(), "one rounding, not one a step"
    assert all(len(values) == 1 for values in told.values())


@settings(max_examples=40, deadline=None)
@given(UNITS, SITES, SMALL)
def test_ranges_of_unlike_parts_cover_the_model_once_and_a_rank_has_one_at_a_time(
    unit: str, sites: list[tuple[int, int]], taken_bytes: int
) -> None:
    field = field_of(unit, sites, taken_bytes)
    ranges, layout = field.shared.ranges(), unit_layout(SPEC, unit)
    seen = {p.name: torch.zeros(p.shape).reshape(p.shape[0], -1) for p in layout.parameters}
    for each in ranges:
        assert [field.ranks[rank].site for rank in each.holders] == list(range(len(sites)))
        for piece in each.pieces:
            seen[piece.name][slice(*piece.rows), slice(*piece.columns)] += 1
        widest = max(piece.width for piece in each.pieces)
        size = sum(piece.elements for piece in each.pieces)
        assert size <= max(taken_bytes // 4, widest)
    assert all(bool((count == 1).all()) for count in seen.values())


@settings(max_examples=40, deadline=None)
@given(UNITS, SITES)
def test_what_the_ranks_of_a_site_store_tiles_each_part_that_all_degrees_have(
    unit: str, sites: list[tuple[int, int]]
) -> None:
    field = field_of(unit, sites)
    count = lcm(*(degree for degree, _ in sites))
    for site in range(len(sites)):
        entries: dict[str, list[Entry]] = defaultdict(list)
        for here in field.ranks:
            if here.site != site:
                continue
            owned, division = here.owned, here.seat.division
            blocks = field.shared.blocks(division, owned.start, owned.stop)
            runs = ((block, owned) for block in blocks)
            for stored in stored_in(field.shared.layout, division, count, runs):
                name, size = stored_name(unit, stored.slot), stored.end - stored.begin
                whole = field.shared.layout(stored.slot).size
                entries[name].append(Entry(name, "weights", stored.begin, size, whole))
        assert len(entries) == count
        for of_part in entries.values():
            size = unit_layout(SPEC, unit, Division(0, count)).size
            assert not list(gaps(of_part, size)), "each element once"
