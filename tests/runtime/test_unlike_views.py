"""Views gathered among ranks that compute in different dtypes: each part with the bits that its
receiver's dtype gives the owner's master weights."""

from __future__ import annotations

import time
import weakref
from random import Random

import pytest
import torch
from in_one_process import close_all, networks, on_all, replicas

from ratrain.cost.algorithms import ALGORITHMS, DIRECT
from ratrain.cost.exchanges import exchange_of
from ratrain.cost.scratch import ON_CPU
from ratrain.program.kind import Lane
from ratrain.runtime.step.exchange.collective import Tensors
from ratrain.runtime.step.exchange.unlike_collective import Travel, gather_unlike_by
from ratrain.runtime.step.exchange.unlike_views import UnlikeView
from ratrain.runtime.step.network.links import Routes
from ratrain.runtime.step.network.socket_network import SocketNetwork

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


@pytest.mark.parametrize(
    "dtypes", [(BF16, FP32), (FP32, FP16, FP16), (BF16, FP32, BF16, FP32)], ids=str
)
@pytest.mark.parametrize("elements", [64, ON_CPU.narrowed + 192])
def test_each_holder_gets_every_part_in_its_own_dtype(
    dtypes: tuple[torch.dtype, ...], elements: int
) -> None:
    holders = tuple(range(len(dtypes)))
    masters = torch.randn(len(holders), elements, generator=torch.Generator().manual_seed(1))
    crowd = networks(replicas(len(holders)), Routes((), (holders,)), (0,) * len(holders))

    def work(rank: int, network: SocketNetwork) -> torch.Tensor:
        flat = torch.zeros(masters.numel(), dtype=dtypes[rank])
        flat.view(len(holders), -1)[rank] = masters[rank]
        network.gather_unlike(Lane.GATHER, UnlikeView(flat, masters[rank], holders, rank, dtypes))
        return flat

    try:
        views = on_all(crowd, work)
    finally:
        close_all(crowd)
    for view, dtype in zip(views, dtypes, strict=True):
        assert view.dtype == dtype
        assert torch.equal(view, masters.view(-1).to(dtype))


@pytest.mark.parametrize("dtypes", [(FP32, BF16, BF16), (BF16, FP32, FP32)], ids=str)
def test_a_part_reaches_a_holder_while_another_has_not_begun_to_receive(
    dtypes: tuple[torch.dtype, ...],
) -> None:
    elements = 8 * ON_CPU.narrowed  # more than connections take that nobody reads
    masters = torch.ones(len(dtypes), elements)
    holders = tuple(range(len(dtypes)))
    crowd = networks(replicas(len(holders)), Routes((), (holders,)), (0,) * len(holders))
    views = [torch.zeros(masters.numel(), dtype=dtype) for dtype in dtypes]
    late = 2

    def work(rank: int, network: SocketNetwork) -> None:
        if rank == late:
            between_first_two = (views[1].view(3, -1)[0], views[0].view(3, -1)[1])
            give_up_s = time.monotonic() + 20
            while not all(bool(part[-1]) for part in between_first_two):
                assert time.monotonic() < give_up_s, "the first two wait for the third"
                time.sleep(0.01)
        views[rank].view(3, -1)[rank] = masters[rank]
        network.gather_unlike(
            Lane.GATHER, UnlikeView(views[rank], masters[rank], holders, rank, dtypes)
        )

    try:
        on_all(crowd, work)
    finally:
        close_all(crowd)
    assert all(torch.equal(view, torch.ones_like(view)) for view in views)


HOSTS = [(0, 1), (0, 0, 1, 1), (0, 0, 0, 1, 1), (0, 0, 1, 1, 2, 2), (0, 1, 1, 1)]


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != DIRECT])
@pytest.mark.parametrize("hosts", HOSTS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_a_collective_of_several_rounds_gives_every_part_in_its_receivers_dtype(
    name: str, hosts: tuple[int, ...], seed: int
) -> None:
    rng = Random(seed)
    dtypes = tuple(rng.choice([FP32, BF16, FP16]) for _ in hosts)
    holders = tuple(range(len(hosts)))
    masters = torch.randn(len(hosts), 3 * ON_CPU.narrowed // 4 + 64)
    crowd = networks(replicas(len(hosts)), Routes((), (holders,)), hosts)

    def work(rank: int, network: SocketNetwork) -> torch.Tensor:
        flat = torch.full((masters.numel(),), torch.nan, dtype=dtypes[rank])
        flat.view(len(hosts), -1)[rank] = masters[rank]
        view = UnlikeView(flat, masters[rank], holders, rank, dtypes)
        network.gather_unlike(Lane.GATHER, view, name)
        return flat

    try:
        views = on_all(crowd, work)
    finally:
        close_all(crowd)
    for view, dtype in zip(views, dtypes, strict=True):
        assert torch.equal(view, masters.view(-1).to(dtype))


def test_between_hosts_of_one_dtype_each_a_part_travels_in_that_of_the_host_it_goes_to() -> None:
    hosts, dtypes = (0, 0, 1, 1), (FP32, FP32, BF16, BF16)
    travel = Travel(exchange_of("hierarchical", hosts), dtypes)
    into = {0: FP32, 1: BF16}
    for place, turns in enumerate(travel.turns):
        for turn in turns:
            for parcel in turn.leaving:
                if hosts[parcel.peer] != hosts[place]:
                    of_part = travel.of_part[parcel.peer]
                    assert {of_part[part] for part in parcel.parts} == {into[hosts[parcel.peer]]}


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != DIRECT])
@pytest.mark.parametrize("dtypes", [(FP32, BF16, FP16, BF16), (BF16, FP32, BF16, FP32)], ids=str)
def test_pieces_on_their_way_take_what_the_proof_counts(
    name: str, dtypes: tuple[torch.dtype, ...]
) -> None:
    """Every tensor that is made beside the views is watched, in all ranks."""
    hosts, holders = (0, 0, 1, 1), (0, 1, 2, 3)
    exchange = exchange_of(name, hosts)
    masters = torch.randn(4, 2 * ON_CPU.narrowed)
    crowd = networks(replicas(4), Routes((), (holders,)), hosts)

    def work(rank: int, network: SocketNetwork) -> int:
        flat = torch.zeros(masters.numel(), dtype=dtypes[rank])
        view = UnlikeView(flat, masters[rank], holders, rank, dtypes)
        theirs = {flat.untyped_storage().data_ptr(), masters.untyped_storage().data_ptr()}
        alive: dict[int, int] = {}
        most = 0

        def swap(leaving: Tensors, landing: Tensors) -> None:
            nonlocal most
            for tensor in (t for each in (leaving, landing) for ts in each.values() for t in ts):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in theirs and id(tensor) not in alive:
                    alive[id(tensor)] = storage.nbytes()
                    weakref.finalize(tensor, alive.pop, id(tensor))
            most = max(most, sum(alive.values()))
            network.swap(Lane.GATHER, holders, leaving, landing)

        gather_unlike_by(exchange, view, swap)
        return most

    try:
        held = on_all(crowd, work)
    finally:
        close_all(crowd)
    assert 0 < max(held) <= 2 * ON_CPU.narrowed
