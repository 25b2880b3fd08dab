"""Random traffic against the numbers measured on the RTL."""

from __future__ import annotations

import numpy as np
import pytest

from ratrain.chip.noc.spec import MeshSpec, RouterSpec
from ratrain.chip.noc.traffic import Traffic, destinations, measure, saturation
from ratrain.errors import SpecError


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("size", "flits", "accepted"),
    [(4, 1, 0.594), (4, 16, 0.478), (8, 1, 0.325), (8, 16, 0.245)],
)
def test_saturation_is_within_three_percent_of_the_rtl(
    size: int, flits: int, accepted: float
) -> None:
    point = saturation(MeshSpec(size, size), Traffic(packet_flits=flits))
    assert point.accepted == pytest.approx(accepted, rel=0.03)
    assert point.saturated


@pytest.mark.parametrize(
    ("load", "latency"), [(0.01, 12.6), (0.1, 12.9), (0.2, 13.5), (0.25, 14.3)]
)
def test_the_latency_curve_of_8x8_is_that_of_the_rtl(load: float, latency: float) -> None:
    point = measure(MeshSpec(8, 8), Traffic(), load, window=8000)
    assert point.mean_latency_cycles == pytest.approx(latency, rel=0.03)
    assert not point.saturated and point.arrived_share == 1


@pytest.mark.slow
def test_deeper_queues_and_shorter_packets_saturate_later() -> None:
    """The ordering that BookSim2 shows too (0.13, 0.27, 0.36, 0.37 for 2, 4, 6, 8 flits)."""

    def accepted(depth: int, flits: int) -> float:
        router = RouterSpec(input_fifo_flits=depth, output_fifo_flits=depth)
        mesh = MeshSpec(8, 8, router=router)
        return saturation(mesh, Traffic(packet_flits=flits), window=3000).accepted

    by_depth = [accepted(depth, 1) for depth in (1, 2, 4, 8)]
    assert by_depth == sorted(by_depth)
    by_length = [accepted(2, flits) for flits in (16, 4, 1)]
    assert by_length == sorted(by_length)


def test_hot_spots_saturate_earlier_and_transposes_load_few_links() -> None:
    mesh = MeshSpec(8, 8)
    uniform = saturation(mesh, Traffic(), window=3000).accepted
    assert saturation(mesh, Traffic("hotspot", hotspot_share=0.3), window=3000).accepted < uniform
    turned = measure(mesh, Traffic("transpose"), 0.1, window=3000)
    assert (turned.link_flits[0, :, :, :4] == 0).sum() > 0


def test_nobody_writes_to_itself_but_the_diagonal_of_a_transpose() -> None:
    mesh, rng = MeshSpec(4, 4), np.random.default_rng(0)
    src = np.repeat(np.arange(16), 200)
    for pattern in ("uniform", "hotspot"):
        dst = destinations(mesh, Traffic(pattern), src, rng)  # type: ignore[arg-type]
        assert (dst != src).all() and set(dst.tolist()) == set(range(16))
    dst = destinations(mesh, Traffic("transpose"), src, rng)
    assert (dst[dst == src] % 5 == 0).all()


def test_impossible_loads_and_shapes_are_refused() -> None:
    with pytest.raises(SpecError, match="load"):
        measure(MeshSpec(4, 4), Traffic(), 1.5)
    with pytest.raises(SpecError, match="square"):
        measure(MeshSpec(4, 2), Traffic("transpose"), 0.1)
