"""Sums over a tensor group: in the order of ranks, whatever their size and way."""

from __future__ import annotations

import pytest
import torch
from crew import Crew, grid_routes, network_among
from torch import Tensor

from ratrain.cost.scratch import CHUNK_BYTES
from ratrain.models.tensor_group import TensorGroup
from ratrain.program.kind import Lane
from ratrain.runtime.seats import Seats
from ratrain.runtime.step.exchange.tensor_peers import SMALL_BYTES

pytestmark = pytest.mark.slow

PIECE = CHUNK_BYTES // 4
SIZES = [1, 2, 5, SMALL_BYTES // 4 + 1, PIECE - 1, PIECE + 1, 4 * PIECE + 3, 5 * PIECE]


def part(rank: int, size: int, dtype: torch.dtype) -> Tensor:
    """What a rank adds: sizes so different that the order of a sum shows in its bits."""
    generator = torch.Generator().manual_seed(rank)
    values = torch.randn(size, generator=generator) * 10.0 ** (rank - 1)
    return values.to(dtype)


def in_order(world_size: int, size: int, dtype: torch.dtype) -> Tensor:
    total = part(0, size, dtype).float()
    for rank in range(1, world_size):
        total = total + part(rank, size, dtype).float()
    return total.to(dtype)


def group_of(rank: int, world_size: int) -> TensorGroup:
    seats = Seats(1, 1, (0,), (0,), tensor=world_size)
    group = network_among(seats, seats.seat(rank), grid_routes(seats)).tensor_group(Lane.TENSOR)
    assert group is not None
    return group


def summed(rank: int, world_size: int, sizes: list[int], dtype: torch.dtype) -> list[bool]:
    """Whether each sum has the bits of the sum in order, on this rank."""
    peers = group_of(rank, world_size)
    results: list[bool] = []
    for size in sizes:
        values = part(rank, size, dtype)
        peers.sum_(values)
        results.append(torch.equal(values, in_order(world_size, size, dtype)))
    return results


def shares(rank: int, world_size: int, sizes: list[int], dtype: torch.dtype) -> list[bool]:
    """Whether each sum's own rows have the bits of the sum in order, and all of them gathered."""
    peers = group_of(rank, world_size)
    results: list[bool] = []
    for size in sizes:
        whole = part(rank, size * world_size, dtype)
        expected = in_order(world_size, size * world_size, dtype)
        own = peers.sum_rows(whole.view(world_size, 1, size))
        results.append(torch.equal(own.view(-1), expected[rank * size : (rank + 1) * size]))
        results.append(torch.equal(peers.gather_rows(own).view(-1), expected))
    return results


def gathered(rank: int, world_size: int) -> list[list[float]]:
    peers = group_of(rank, world_size)
    return [values.tolist() for values in peers.gather(torch.tensor([rank + 0.5]))]


@pytest.mark.matrix
@pytest.mark.parametrize("degree", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_adds_up_in_the_order_of_ranks_on_every_rank(
    degree: int, dtype: torch.dtype, crew: Crew
) -> None:
    assert all(map(all, crew.ask(degree, summed, SIZES, dtype)))


@pytest.mark.matrix
@pytest.mark.parametrize("degree", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_whose_rows_are_divided_has_the_same_bits(
    degree: int, dtype: torch.dtype, crew: Crew
) -> None:
    assert all(map(all, crew.ask(degree, shares, SIZES, dtype)))


def test_every_rank_hears_all_values_by_rank(crew: Crew) -> None:
    assert crew.ask(3, gathered) == [[[0.5], [1.5], [2.5]]] * 3


def test_another_order_would_show() -> None:
    parts = [part(rank, 100, torch.float32) for rank in range(3)]
    assert not torch.equal(parts[2] + parts[1] + parts[0], in_order(3, 100, torch.float32))
