"""Whether replicas or sites end with one model: told by digests of what each holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from in_one_process import on_all
from test_integers import meeting
from torch import Tensor

from ratrain.models.division import WHOLE
from ratrain.runtime.rank.settling import compared
from ratrain.runtime.step.exchange.between_sites import Shared, alike
from ratrain.runtime.step.network.socket_network import SocketNetwork
from ratrain.runtime.step.unit_state import UnitState

SIZE = 6 * 64


def held(place: int, weights: Tensor, shared: Shared | None = None, begin: int = 0) -> UnitState:
    """What a rank holds of a unit, as far as it is compared."""
    part = SimpleNamespace(begin=begin, end=begin + len(weights), weights=weights)
    unit = SimpleNamespace(
        name="0", trained=True, division=WHOLE, padded=SIZE, shared=shared, own_place=(place, 2),
        parts=(part,),
    )  # fmt: skip
    return cast("UnitState", unit)


def found(units: list[UnitState]) -> tuple[int, int]:
    answers: list[tuple[int, int]] = []

    def work(rank: int, network: SocketNetwork) -> None:
        answers.append(compared([units[rank]], network))

    with meeting(len(units)) as crowd:
        on_all(crowd, work)
    assert len(set(answers)) == 1, "all ranks find the same"
    return answers[0]


@pytest.mark.parametrize("planted", [False, True])
def test_a_weight_of_one_replica_that_differs_in_its_last_bit_is_found(planted: bool) -> None:
    one = torch.randn(SIZE, generator=torch.Generator().manual_seed(1))
    other = one.clone()
    if planted:
        other[-1:].view(torch.int32).bitwise_xor_(1)
    assert found([held(0, one), held(1, other)]) == (1, int(planted))


@pytest.mark.parametrize("planted", [False, True])
def test_a_range_of_one_of_unlike_sites_that_differs_is_found_alone(planted: bool) -> None:
    """A site of one owner beside one of three."""
    whole = torch.randn(SIZE, generator=torch.Generator().manual_seed(1))
    sites, each = alike(((0,), (1, 2, 3)), SIZE), SIZE // 3
    parts = [whole[n * each : (n + 1) * each].clone() for n in range(3)]
    if planted:
        parts[1][0] += 1
    units = [held(0, whole, sites)]
    units += [held(1, part, sites, n * each) for n, part in enumerate(parts)]
    assert found(units) == (3, int(planted))


def test_a_range_that_a_site_does_not_hold_is_no_range_of_one_model() -> None:
    whole = torch.zeros(SIZE)
    sites = alike(((0,), (1, 2)), SIZE)
    units = [held(0, whole, sites), held(1, whole[: SIZE // 2], sites)]
    units.append(held(1, whole[:0], sites))
    assert found(units) == (2, 1)
