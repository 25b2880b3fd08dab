"""Views gathered among ranks that compute in different dtypes: each part with the bits that its
receiver's dtype gives the owner's master weights."""

from __future__ import annotations

import pytest
import torch
from in_one_process import close_all, networks, on_all, replicas

from ratrain.cost.scratch import NARROWED_ELEMENTS
from ratrain.program.kind import Lane
from ratrain.runtime.step.links import Routes
from ratrain.runtime.step.socket_network import SocketNetwork
from ratrain.runtime.step.unlike_views import gather_unlike

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
        gather_unlike(network, Lane.GATHER, flat, masters[rank], holders, rank, dtypes)
        return flat

    try:
        views = on_all(crowd, work)
    finally:
        close_all(crowd)
    for view, dtype in zip(views, dtypes, strict=True):
        assert view.dtype == dtype
        assert torch.equal(view, masters.view(-1).to(dtype))
