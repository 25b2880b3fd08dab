"""Views gathered among ranks that compute in different dtypes: each part with the bits that its
receiver's dtype gives the owner's master weights."""

from __future__ import annotations

import time

import pytest
import torch
from in_one_process import close_all, networks, on_all, replicas

from ratrain.cost.scratch import NARROWED_ELEMENTS
from ratrain.program.kind import Lane
from ratrain.runtime.step.links import Routes
from ratrain.runtime.step.socket_network import SocketNetwork
from ratrain.runtime.step.unlike_views import UnlikeView

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


@pytest.mark.parametrize(
    "dtypes", [(BF16, FP32), (FP32, FP16, FP16), (BF16, FP32, BF16, FP32)], ids=str
)
@pytest.mark.parametrize("elements", [64, NARROWED_ELEMENTS + 192])
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
    elements = 8 * NARROWED_ELEMENTS  # more than connections take that nobody reads
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
