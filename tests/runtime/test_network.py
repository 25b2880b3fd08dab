"""What the network's calls give, for any number of replicas and sizes around its chunks."""

from __future__ import annotations

import threading
import time
from functools import reduce

import pytest
import torch
from crew import Crew, grid_routes, network_among
from torch import Tensor

from ratrain.cost.scratch import CHUNK_BYTES
from ratrain.program.kind import Lane
from ratrain.runtime.seats import Seats
from ratrain.runtime.step.network.network import Network

CHUNK = CHUNK_BYTES // 4
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PARTS = (64, CHUNK - 64, CHUNK, CHUNK + 64, 5 * CHUNK + 192)
WORLDS = (1, 2, 3, 4)
KINDS = ("sockets", "staged", "direct")
SEVERAL_AT_ONCE = ("sockets", "staged")
"""Those that take what several lanes send at once."""

pytestmark = pytest.mark.slow


def seats(pipeline: int, data: int, tensor: int = 1) -> Seats:
    return Seats(pipeline, data, (0,) * data, (0,), tensor)


def network_of(rank: int, pipeline: int, data: int, kind: str) -> Network:
    made = seats(pipeline, data)
    return network_among(made, made.seat(rank), grid_routes(made), kind)


def values(data: int, elements: int, dtype: torch.dtype) -> Tensor:
    """A replica's numbers, so unlike in size that the order of a sum shows in its bits."""
    generator = torch.Generator().manual_seed(data)
    scale = torch.randint(-6, 7, (elements,), generator=generator)
    return (torch.randn(elements, generator=generator) * 2.0**scale).to(dtype)


def ordered_sum(parts: list[Tensor]) -> Tensor:
    """In fp32, in the order of replicas, rounded once."""
    return reduce(torch.add, [part.float() for part in parts]).to(parts[0].dtype)


# ---- sums -----------------------------------------------------------------------------------


def reduced(rank: int, world: int, kind: str, *, alias: bool) -> list[str]:
    """What is wrong with the sums, on one rank."""
    network, wrong = network_of(rank, 1, world, kind), list[str]()
    for dtype in DTYPES:
        for part in PARTS:
            all_values = [values(data, part * world, dtype) for data in range(world)]
            flat = all_values[rank].clone()
            own_part = slice(rank * part, (rank + 1) * part)
            out = flat[own_part] if alias else torch.empty(part, dtype=dtype)
            if (rank + part) % 2:
                time.sleep(0.01)
            network.reduce(flat, out, tuple(range(world)))
            expected = ordered_sum([values[own_part] for values in all_values])
            if not torch.equal(out.view(torch.uint8), expected.view(torch.uint8)):
                wrong.append(f"{dtype} {part}")
            outside = torch.cat([flat[: own_part.start], flat[own_part.stop :]])
            kept = torch.cat(
                [all_values[rank][: own_part.start], all_values[rank][own_part.stop :]]
            )
            if not torch.equal(outside, kept):
                wrong.append(f"{dtype} {part}: more than the own part was written")
    return wrong


def reduced_in_place(rank: int, world: int, kind: str) -> list[str]:
    return reduced(rank, world, kind, alias=True)


def reduced_elsewhere(rank: int, world: int, kind: str) -> list[str]:
    return reduced(rank, world, kind, alias=False)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("work", [reduced_in_place, reduced_elsewhere])
def test_a_reduction_adds_in_the_order_of_replicas_and_rounds_once(
    crew: Crew, world: int, work: object, kind: str
) -> None:
    assert crew.ask(world, work, kind) == [[]] * world  # type: ignore[arg-type]


def test_the_order_of_a_sum_can_be_seen_in_these_numbers() -> None:
    parts = [values(data, 64, torch.float32) for data in range(3)]
    assert not torch.equal(ordered_sum(parts), ordered_sum(parts[::-1]))


# ---- gathers --------------------------------------------------------------------------------


def gathered(rank: int, world: int, kind: str) -> list[str]:
    network, wrong = network_of(rank, 1, world, kind), list[str]()
    for dtype in DTYPES:
        for part in PARTS:
            whole = values(7, part * world, dtype)
            flat = torch.full_like(whole, float("nan"))
            flat[rank * part : (rank + 1) * part] = whole[rank * part : (rank + 1) * part]
            network.gather(Lane.GATHER, flat, tuple(range(world)))
            if not torch.equal(flat.view(torch.uint8), whole.view(torch.uint8)):
                wrong.append(f"{dtype} {part}")
    return wrong


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", WORLDS)
def test_a_gather_gives_every_replica_all_parts(crew: Crew, world: int, kind: str) -> None:
    assert crew.ask(world, gathered, kind) == [[]] * world


# ---- words to everybody ---------------------------------------------------------------------


def by_everybody(rows: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.cat(rows)] * len(rows)


def combined(rank: int, world: int, kind: str) -> list[list[float]]:
    network = network_of(rank, 1, world, kind)
    return [
        network.combine(lane, torch.tensor([rank, 0.5]), by_everybody).tolist()
        for lane in (None, Lane.UPDATE, Lane.DISK)
    ]


def exchanged_bytes(rank: int, world: int, kind: str) -> list[list[bytes]]:
    network = network_of(rank, 1, world, kind)
    bodies = [b"", bytes([rank]) * rank, b"x" * 100_000, b"\x00\xff" if rank else b""]
    return [network.exchange_bytes(body) for body in bodies]


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", WORLDS)
def test_every_rank_gets_what_rank_0_makes_of_all_values(crew: Crew, world: int, kind: str) -> None:
    expected = [x for rank in range(world) for x in (float(rank), 0.5)]
    assert crew.ask(world, combined, kind) == [[expected] * 3] * world


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", WORLDS)
def test_bytes_of_any_length_are_exchanged(crew: Crew, world: int, kind: str) -> None:
    ranks = range(world)
    expected = [
        [b"" for _ in ranks],
        [bytes([rank]) * rank for rank in ranks],
        [b"x" * 100_000 for _ in ranks],
        [b"\x00\xff" if rank else b"" for rank in ranks],
    ]
    assert crew.ask(world, exchanged_bytes, kind) == [expected] * world


# ---- messages -------------------------------------------------------------------------------


def passed_on(rank: int, world: int, kind: str) -> list[float]:
    """Each rank sends forward and back at once, on four lanes, in unequal haste."""
    network = network_of(rank, world, 1, kind)
    times: dict[str, list[float]] = {"forward": [], "back": []}

    def forward() -> None:
        for number in range(8):
            if rank:
                network.await_sender(Lane.RECV_F, rank - 1)
                arrived = torch.empty(1000)
                network.receive(Lane.RECV_F, arrived, rank - 1)
                times["forward"].append(float(arrived[-1]))
            if rank + 1 < world:
                network.send(Lane.SEND_F, torch.full((1000,), float(number)), rank + 1)

    def back() -> None:
        for number in range(8):
            time.sleep(0.001 * rank)
            if rank + 1 < world:
                arrived = torch.empty(1000)
                network.receive(Lane.RECV_B, arrived, rank + 1)
                times["back"].append(float(arrived[-1]))
            if rank:
                network.send(Lane.SEND_B, torch.full((1000,), -float(number)), rank - 1)

    threads = [threading.Thread(target=forward), threading.Thread(target=back)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times["forward"] + times["back"]


@pytest.mark.matrix
@pytest.mark.parametrize("kind", SEVERAL_AT_ONCE)
@pytest.mark.parametrize("world", WORLDS)
def test_messages_of_each_direction_arrive_in_the_order_they_were_sent(
    crew: Crew, world: int, kind: str
) -> None:
    forward, back = [float(n) for n in range(8)], [-float(n) for n in range(8)]
    answers = crew.ask(world, passed_on, kind)
    for rank, arrived in enumerate(answers):
        assert arrived == (forward if rank else []) + (back if rank + 1 < world else [])


# ---- who is who -----------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("tensor", [1, 2, 3])
@pytest.mark.parametrize(("pipeline", "data"), [(1, 1), (3, 1), (1, 4), (2, 2), (4, 3)])
def test_every_process_has_one_part_and_all_of_its_groups(
    pipeline: int, data: int, tensor: int
) -> None:
    made = seats(pipeline, data, tensor)
    parts = {(seat.pipeline, seat.data, seat.division) for seat in made.all()}
    assert len(parts) == made.world_size == pipeline * data * tensor
    for seat in made.all():
        p, d, t = seat.pipeline, seat.data, seat.division.rank
        assert made.world_rank(p, d, t) == seat.world_rank
        assert made.replica(d)[p * tensor + t] == seat.world_rank
        assert made.tensor_group(p, d)[t] == seat.world_rank
    if tensor > 1:
        first = made.tensor_group(0, 0)
        assert first == list(range(tensor)), "a tensor group sits side by side"
