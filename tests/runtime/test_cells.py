"""Tensors between stages of any two tensor degrees: every element crosses once, and arrives."""

from __future__ import annotations

from math import lcm

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from in_one_process import close_all, networks, on_all
from torch import Tensor

from ratrain.plan.layout.times import most_cells
from ratrain.program.kind import Lane
from ratrain.ranges import part_of
from ratrain.runtime.seats import Seats
from ratrain.runtime.step.exchange.cells import cells, peers
from ratrain.runtime.step.network.links import Routes, all_needs, parts_channel
from ratrain.runtime.step.network.socket_network import SocketNetwork

DEGREES = st.integers(1, 8)
COUNTS = st.integers(0, 5000)
FRAME_BYTES = 12  # a frame's header


@given(DEGREES, DEGREES, COUNTS)
def test_what_one_end_sends_is_what_the_other_receives(
    source: int, target: int, count: int
) -> None:
    sent = [
        (rank, cell.peer, cell.begin, cell.end)
        for rank in range(source)
        for cell in cells(count, rank, source, target)
    ]
    received = [
        (cell.peer, rank, cell.begin, cell.end)
        for rank in range(target)
        for cell in cells(count, rank, target, source)
    ]
    assert sorted(sent) == sorted(received)


@given(DEGREES, DEGREES, COUNTS)
def test_cells_tile_the_part_of_each_rank_in_order(source: int, target: int, count: int) -> None:
    for rank in range(source):
        reached, end = (0, count) if source == target else part_of(count, rank, source)
        for cell in cells(count, rank, source, target):
            if cell.begin < cell.end:
                assert cell.begin == reached
                reached = cell.end
        assert reached == end


@given(DEGREES, DEGREES, COUNTS)
def test_every_element_crosses_once_where_degrees_differ(
    source: int, target: int, count: int
) -> None:
    crossing = [c for rank in range(source) for c in cells(count, rank, source, target)]
    elements = sum(cell.end - cell.begin for cell in crossing)
    assert elements == (count * source if source == target else count)


@given(DEGREES, DEGREES)
def test_a_rank_of_the_smaller_group_has_as_many_messages_as_the_simulator_says(
    source: int, target: int
) -> None:
    few, many = sorted((source, target))
    counts = [len(peers(rank, few, many)) for rank in range(few)]
    assert max(counts) == most_cells(source, target)
    large = few * many * 7
    for rank in range(few):
        of_rank = cells(large, rank, few, many)
        if few != many:
            assert sum(cell.end - cell.begin for cell in of_rank) == large // few
            assert all(cell.begin < cell.end for cell in of_rank)


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(DEGREES, DEGREES).filter(lambda degrees: degrees[0] != degrees[1]),
    st.integers(1, 40_000),
)
def test_a_tensor_goes_there_and_its_gradient_back_exactly_in_as_many_bytes_as_it_has(
    degrees: tuple[int, int], count: int
) -> None:
    seats = Seats(2, 1, (0,), (0,), max(degrees), (), (degrees,))
    crowd = networks(seats, Routes({(0, 1)}, ()), (0,) * seats.world_size)
    there, back = torch.randn(count), torch.randn(count)

    def work(rank: int, network: SocketNetwork) -> tuple[Tensor, dict[int, int]]:
        first = seats.seat(rank).pipeline == 0
        arrived = torch.full((count,), float("nan"))
        if first:
            network.send(Lane.SEND_F, there.clone(), 1)
            network.await_sender(Lane.RECV_B, 1)
            network.receive(Lane.RECV_B, arrived, 1)
        else:
            network.await_sender(Lane.RECV_F, 0)
            network.receive(Lane.RECV_F, arrived, 0)
            network.send(Lane.SEND_B, back.clone(), 0)
        return arrived, network.sent_to()

    try:
        answers = on_all(crowd, work)
    finally:
        close_all(crowd)
    crossed = 0
    for seat, (arrived, sent) in zip(seats.all(), answers, strict=True):
        assert torch.equal(arrived, there if seat.pipeline else back)
        crossed += sum(
            size for peer, size in sent.items() if seats.seat(peer).pipeline != seat.pipeline
        )
    frames = 4 * sum(len(peers(rank, *degrees)) for rank in range(degrees[0]))
    assert crossed == 2 * there.nbytes + frames * FRAME_BYTES


@settings(max_examples=25, deadline=None)
@given(st.tuples(DEGREES, DEGREES), st.integers(1, 40))
def test_where_groups_divide_rows_each_rank_sends_and_receives_its_own_part_alone(
    degrees: tuple[int, int], share: int
) -> None:
    count = share * lcm(*degrees)
    seats = Seats(2, 1, (0,), (0,), max(degrees), (), (degrees,))
    routes = Routes({(0, 1)}, (), divides_rows=True)
    for seat in seats.all():  # nothing is put together behind a message
        channels = {name for _, name in all_needs(seats, seat, routes)}
        assert not channels & {parts_channel(Lane.RECV_F), parts_channel(Lane.RECV_B)}
    crowd = networks(seats, routes, (0,) * seats.world_size)
    there, back = torch.randn(count), torch.randn(count)

    def own(rank: int, tensor: Tensor) -> Tensor:
        division = seats.seat(rank).division
        return tensor[slice(*part_of(count, division.rank, division.degree))].clone()

    def work(rank: int, network: SocketNetwork) -> tuple[Tensor, dict[int, int]]:
        arrived = torch.full_like(own(rank, there), float("nan"))
        if seats.seat(rank).pipeline == 0:
            network.send(Lane.SEND_F, own(rank, there), 1)
            network.receive(Lane.RECV_B, arrived, 1)
        else:
            network.receive(Lane.RECV_F, arrived, 0)
            network.send(Lane.SEND_B, own(rank, back), 0)
        return arrived, network.sent_to()

    try:
        answers = on_all(crowd, work)
    finally:
        close_all(crowd)
    frames = 4 * sum(len(peers(rank, *degrees)) for rank in range(degrees[0]))
    for seat, (arrived, _) in zip(seats.all(), answers, strict=True):
        assert torch.equal(arrived, own(seat.world_rank, there if seat.pipeline else back))
    sent_bytes = sum(size for _, sent in answers for size in sent.values())
    assert sent_bytes == 2 * there.nbytes + frames * FRAME_BYTES
