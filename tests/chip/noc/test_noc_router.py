"""The router's parameters do what they say."""

from __future__ import annotations

import pytest
from noc_golden import bench, broadcast, reduction, row, row_multicast

from ratrain.chip.noc.mesh import run
from ratrain.chip.noc.opcodes import Opcode
from ratrain.chip.noc.spec import MeshSpec, RouterSpec
from ratrain.chip.noc.workload import After, Workload
from ratrain.errors import ChipError, SpecError


@pytest.mark.parametrize("hops", range(8))
@pytest.mark.parametrize("flits", [1, 33])
def test_zero_load_latency_is_two_cycles_per_router(hops: int, flits: int) -> None:
    w = bench(8)
    w.packet((0, 0), (hops, 0), flits)
    assert run(w).last_cycle == 2 * (hops + 1) + flits - 1


@pytest.mark.parametrize("stages", [1, 3])
def test_link_stages_add_their_cycles_to_every_hop_and_keep_the_rate(stages: int) -> None:
    w = bench(4, link_stages=stages)
    w.packet((0, 0), (3, 0), 64)
    assert run(w).last_cycle == 8 + 3 * stages + 63


@pytest.mark.parametrize("latency", [0, 1, 4, 9])
def test_reduction_latency_counts_once_per_combining_router(latency: int) -> None:
    w = bench(4, reduction_latency_cycles=latency)
    reduction(w, row(w, 0), (3, 0), (0, 0), 32)
    assert run(w).last_cycle == 2 * 4 + 3 * (latency + 2) + 31


def test_three_inputs_run_at_half_rate_in_a_kinput_unit_and_at_full_rate_in_an_ideal_one() -> None:
    times = {}
    for unit in ("kinput", "ideal"):
        for flits in (64, 128):
            w = bench(4, reduction=unit)
            reduction(w, row(w, 0), (3, 0), (1, 0), flits)
            times[unit, flits] = run(w).last_cycle
    assert times["kinput", 128] - times["kinput", 64] == 2 * 64
    assert times["ideal", 128] - times["ideal", 64] == 64


def test_the_core_takes_its_share_of_the_fpu() -> None:
    def cycles(load: float) -> int:
        w = bench(4, core_fpu_load=load)
        reduction(w, row(w, 0), (3, 0), (0, 0), 300, op=Opcode.FP_ADD)
        return run(w).last_cycle

    assert cycles(0.0) == 8 + 3 * 6 + 299
    assert cycles(0.5) == pytest.approx(2 * 300, rel=0.1)


def test_deeper_queues_never_slow_a_hot_spot_and_one_deep_ones_do() -> None:
    def cycles(depth: int) -> int:
        w = bench(4, input_fifo_flits=depth, output_fifo_flits=depth)
        w.packet((0, 0), (3, 0), 64)
        return run(w).last_cycle

    # With one slot, a queue is full every other cycle: half rate.
    assert cycles(1) == pytest.approx(2 * 64 + 8, abs=4)
    assert cycles(2) == cycles(4) == 71


def test_a_second_virtual_channel_frees_two_opposite_broadcasts() -> None:
    for channels, status in ((1, "deadlock"), (2, "done")):
        w = bench(4, virtual_channels=channels)
        broadcast(w, (0, 0), 16)
        w.packet((3, 3), (0, 0), 16, op=Opcode.MULTICAST, mask=(3, 3), vc=channels - 1)
        r = run(w, check=False)
        assert r.status == status
    assert r.ejected_flits == 2 * 16 * 16


def test_virtual_channels_share_the_link_fairly() -> None:
    w = bench(4, virtual_channels=2)
    for vc in (0, 1):
        w.packet((0, 0), (3, 0), 64, vc=vc)
    assert run(w).last_at.tolist() == [8 + 126, 8 + 127]


def test_lockstep_forks_deliver_too() -> None:
    w = bench(4, fork="lockstep")
    row_multicast(w, (0, 0), 16)
    assert run(w).ejected_flits == 64


def test_a_deadlock_is_an_error_with_a_way_out() -> None:
    w = bench(4)
    broadcast(w, (0, 0), 16)
    broadcast(w, (3, 3), 16)
    with pytest.raises(ChipError, match="176 flits have arrived") as caught:
        run(w)
    assert "serialise" in caught.value.fix


def test_a_run_that_is_cut_short_says_so() -> None:
    w = bench(4)
    w.packet((0, 0), (3, 0), 64)
    with pytest.raises(ChipError, match="time limit"):
        run(w, until=20)


def test_an_unfinished_reduction_is_found() -> None:
    w = bench(4)
    first = reduction(w, [(0, 0)], (1, 0), (0, 0), 1)
    w.packet((2, 0), (3, 0), 1, after=[After(first)])
    assert run(w, check=False).status == "deadlock"


@pytest.mark.parametrize(
    ("name", "value"),
    [("input_fifo_flits", 0), ("virtual_channels", 9), ("core_fpu_load", 1.0)],
)
def test_impossible_routers_are_refused(name: str, value: float) -> None:
    with pytest.raises(SpecError, match=name):
        RouterSpec(**{name: value})  # type: ignore[arg-type]


def test_places_and_masks_outside_the_mesh_are_refused() -> None:
    w = Workload(MeshSpec(3, 3))
    with pytest.raises(SpecError, match="not on the 3x3 mesh"):
        w.packet((0, 0), (3, 0), 1)
    with pytest.raises(SpecError, match="outside the mesh"):
        w.packet((0, 0), (0, 0), 1, op=Opcode.MULTICAST, mask=(3, 0))
    with pytest.raises(SpecError, match="do not fill"):
        w.packet((0, 0), (1, 0), 3, size_bytes=8)
    with pytest.raises(SpecError, match="plane 4 of 1"):
        w.packet((0, 0), (1, 0), 3, plane=4)
    with pytest.raises(SpecError, match="before it"):
        w.packet((0, 0), (1, 0), 1, after=[After(5)])
