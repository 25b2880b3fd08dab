"""Units that replicas hold at different tensor degrees: who owns what, sums, copies, and what is
stored."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from math import lcm

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from in_one_process import close_all, networks, on_all
from test_tensor_parts import SPEC as TINY
from torch import Tensor

from ratrain.checkpoint.entries import Entry, gaps
from ratrain.cost.scratch import CHUNK_BYTES
from ratrain.models.division import Division
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.program.kind import Lane
from ratrain.runtime.seats import Seats
from ratrain.runtime.step.exchange import slots as module
from ratrain.runtime.step.exchange.slots import Slots
from ratrain.runtime.step.network.links import Routes
from ratrain.runtime.step.network.socket_network import SocketNetwork
from ratrain.runtime.step.tensor_parts import stored_name

SPEC = replace(TINY, heads=12, kv_heads=12, head_dim=2, ffn=36)  # for degrees of 2 and 3
MIXES = st.lists(st.sampled_from([1, 2, 3, 4]), min_size=2, max_size=4).filter(
    lambda degrees: len(set(degrees)) > 1
)
UNITS = st.sampled_from(unit_names(SPEC))
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])


def seats_at(degrees: list[int]) -> Seats:
    numbers = tuple(range(len(degrees)))
    each = tuple((degree,) for degree in degrees)
    return Seats(1, len(degrees), numbers, numbers, max(degrees), (), each)


def slots_of(unit: str, seats: Seats) -> list[Slots]:
    """As each rank holds the unit."""
    groups = [seats.tensor_group(0, data) for data in range(seats.data)]
    count = lcm(*map(len, groups))
    return [
        Slots(unit_layout(SPEC, unit, seat.division), groups, seat.world_rank, count)
        for seat in seats.all()
    ]


def model_values(unit: str, seed: int, dtype: torch.dtype) -> Tensor:
    """A unit's numbers, so unlike in size that the order of a sum shows in its bits."""
    generator = torch.Generator().manual_seed(seed)
    size = unit_layout(SPEC, unit).size
    scale = torch.randint(-6, 7, (size,), generator=generator)
    return (torch.randn(size, generator=generator) * 2.0**scale).to(dtype)


def cut(unit: str, division: Division, whole: Tensor) -> Tensor:
    """One rank's buffer of them."""
    layout, in_model = unit_layout(SPEC, unit, division), unit_layout(SPEC, unit).by_name
    flat = torch.zeros(layout.size, dtype=whole.dtype)
    for parameter in layout.parameters:
        place = in_model[parameter.name]
        values = whole[place.offset : place.end].view(place.shape)[parameter.window]
        flat[parameter.offset : parameter.end] = values.reshape(-1)
    return flat


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(UNITS, MIXES, DTYPES, st.sampled_from([CHUNK_BYTES, 1 << 12, 1 << 8]))
def test_every_rank_gets_the_ordered_sum_of_what_it_owns_and_then_of_all(
    unit: str, degrees: list[int], dtype: torch.dtype, chunk_bytes: int
) -> None:
    seats = seats_at(degrees)
    replicas = [model_values(unit, data, dtype) for data in range(seats.data)]
    total = reduce(torch.add, [values.float() for values in replicas]).to(dtype)
    held = slots_of(unit, seats)
    crowd = networks(seats, Routes((), (held[0].holders,)), (0,) * seats.world_size)

    def work(rank: int, network: SocketNetwork) -> None:
        seat = seats.seat(rank)
        flat = cut(unit, seat.division, replicas[seat.data])
        expected = flat.clone()
        sums = cut(unit, seat.division, total)
        for run in held[rank].owned:
            expected[run] = sums[run]
        held[rank].reduce(network, flat)
        assert torch.equal(flat, expected)
        held[rank].gather(network, Lane.GATHER, flat)
        assert torch.equal(flat, sums)

    before, module.CHUNK_BYTES = module.CHUNK_BYTES, chunk_bytes
    try:
        on_all(crowd, work)
    finally:
        module.CHUNK_BYTES = before
        close_all(crowd)


@settings(max_examples=60, deadline=None)
@given(UNITS, MIXES)
@pytest.mark.slow
def test_owned_ranges_tile_each_buffer_and_what_is_stored_tiles_each_slot(
    unit: str, degrees: list[int]
) -> None:
    seats = seats_at(degrees)
    entries: dict[str, list[Entry]] = {}
    for seat, of_rank in zip(seats.all(), slots_of(unit, seats), strict=True):
        layout = unit_layout(SPEC, unit, seat.division)
        owners = torch.zeros(layout.size)
        for run in of_rank.runs:
            owners[run] += 1
        for parameter in layout.parameters:
            assert torch.all(owners[parameter.offset : parameter.end] == 1)
        assert int(owners.max()) == 1
        for stored in of_rank.stored():
            name = stored_name(unit, stored.slot)
            size = stored.end - stored.begin
            entry = Entry(name, "weights", stored.begin, size, of_rank.slot_size)
            entries.setdefault(name, []).append(entry)
    slot = Division(0, held_in(seats))
    assert len(entries) == slot.degree
    for of_slot in entries.values():
        unique = list({entry.begin: entry for entry in of_slot}.values())
        assert not list(gaps(unique, unit_layout(SPEC, unit, slot).size))
        assert len(unique) == len(of_slot), "each element is written once"


@settings(max_examples=20, deadline=None)
@given(UNITS, MIXES, st.sampled_from([CHUNK_BYTES, 1 << 9]))
@pytest.mark.slow
def test_what_is_stored_is_what_ranks_of_the_common_degree_would_store(
    unit: str, degrees: list[int], chunk_bytes: int
) -> None:
    seats, whole = seats_at(degrees), model_values(unit, 3, torch.float32)
    before, module.CHUNK_BYTES = module.CHUNK_BYTES, chunk_bytes
    for seat, of_rank in zip(seats.all(), slots_of(unit, seats), strict=True):
        flat = cut(unit, seat.division, whole)
        for stored in of_rank.stored():
            expected = cut(unit, stored.slot, whole)[stored.begin : stored.end]
            assert torch.equal(torch.cat(list(stored.pieces(flat[stored.run]))), expected)
    module.CHUNK_BYTES = before


def held_in(seats: Seats) -> int:
    """Slots of a unit that all ranks hold."""
    return slots_of("e", seats)[0].count
