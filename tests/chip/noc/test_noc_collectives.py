"""Collectives on the simulated chip: their values, their laws, and the models beside them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratrain.chip.noc import analytic
from ratrain.chip.noc.chip import ChipSpec, EndpointSpec
from ratrain.chip.noc.collectives import ALGORITHMS, KINDS, Algorithm, Kind, Request, collective
from ratrain.chip.noc.costs import collective_costs
from ratrain.chip.noc.endpoint import System, submesh
from ratrain.chip.noc.gemm import rtl_reduce
from ratrain.chip.noc.mesh import run
from ratrain.chip.noc.opcodes import Format
from ratrain.chip.noc.spec import RouterSpec
from ratrain.errors import ChipError, SpecError

CHIP = ChipSpec(4, 4)
EVERY = [(kind, algorithm) for kind in KINDS for algorithm in ALGORITHMS[kind]]


@pytest.mark.parametrize(("kind", "algorithm"), EVERY)
@pytest.mark.parametrize("shape", [(1, 1), (4, 1), (1, 4), (2, 2), (4, 4)])
def test_every_collective_leaves_the_values_that_numpy_computes(
    kind: Kind, algorithm: Algorithm, shape: tuple[int, int]
) -> None:
    for form in (Format.FP64, Format.BF16):
        outcome = collective(CHIP, Request(kind, algorithm, 1000, *shape, form=form))
        at_one = kind == "reduce"
        members = 1 if at_one else shape[0] * shape[1]
        assert outcome.values_checked == (0 if kind == "barrier" else members)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(EVERY),
    st.sampled_from([f for f in Format if f.width_bytes > 1]),
    st.integers(1, 600),
    st.integers(1, 9),
    st.sampled_from(["add", "min", "max", "mul"]),
)
def test_any_size_format_and_batching(
    which: tuple[Kind, Algorithm], form: Format, count: int, batches: int, op: str
) -> None:
    size = count * form.width_bytes
    collective(CHIP, Request(*which, size, 4, 2, op=op, form=form, batches=batches))


def test_a_multicast_from_the_memory_tile_delivers_what_the_tile_holds() -> None:
    for algorithm in ALGORITHMS["multicast"]:
        request = Request("multicast", algorithm, 8192, 4, 4, from_memory=True)
        assert collective(CHIP, request).values_checked == 16


@pytest.mark.parametrize("reads", ["shared", "virtual channel", "separate link"])
def test_read_data_may_share_the_wide_network_or_not(reads: str) -> None:
    router = RouterSpec(virtual_channels=2, reduction_latency_cycles=5)
    chip = ChipSpec(4, 4, router=router, reads=reads)  # type: ignore[arg-type]
    request = Request("multicast", "hw", 4096, 4, 4, from_memory=True)
    assert collective(chip, request).values_checked == 16


def test_the_barrier_is_a_law_of_distance() -> None:
    chip = ChipSpec(8, 8)
    for c, r in ((2, 1), (4, 1), (2, 4), (8, 8)):
        cycles = collective(chip, Request("barrier", "hw", 64, c, r)).cycles
        assert cycles == 20 + 4 * (c - 1 + r - 1) == analytic.rtl_barrier(c, r)


def test_hardware_multicast_and_reduction_follow_their_closed_forms() -> None:
    chip = ChipSpec(8, 8)
    for size in (64, 1024, 4096):
        n = size // 64
        for c, r in ((2, 1), (4, 1), (4, 4), (8, 8)):
            cycles = collective(chip, Request("multicast", "hw", size, c, r)).cycles
            assert cycles == analytic.rtl_multicast(n, c, r)
        for c in (2, 4, 8):
            cycles = collective(chip, Request("reduce", "hw", size, c, 1)).cycles
            assert cycles == rtl_reduce(n, c, chip)


def test_published_alphas_come_out_of_the_calibrated_endpoints() -> None:
    system = System(CHIP)
    system.copy(CHIP.cluster(0, 0), CHIP.cluster(1, 0), 0, 0, 1024, [])
    assert run(system.workload).last_cycle == 17 + 16
    system = System(CHIP)
    system.load(CHIP.cluster(0, 0), 0, 0, 0, 1024, [])
    assert run(system.workload).last_cycle == 30 + 16


@pytest.mark.parametrize("rows", [1, 4])
def test_the_simulated_tree_is_within_five_percent_of_the_published_model(rows: int) -> None:
    """Over 1 to 32 KiB; the smallest is 8 % faster, as a true barrier need not wait for all."""
    ratios: list[float] = []
    for size in analytic.SIZES_BYTES:
        request = Request("multicast", "tree", size, 4, rows, from_memory=True, values=False)
        model = analytic.multicast_tree(size // 64, 4, rows, with_distance=rows > 1)
        ratios.append(collective(CHIP, request).cycles / model)
    assert analytic.geomean(ratios) == pytest.approx(1, rel=0.05)
    assert all(0.9 < ratio < 1.1 for ratio in ratios)


def test_hardware_wins_by_more_on_a_mesh_than_on_a_row() -> None:
    def gain(rows: int) -> float:
        tree, hw = (
            collective(CHIP, Request("multicast", a, 4096, 4, rows, values=False)).cycles
            for a in ("tree", "hw")
        )
        return tree / hw

    assert 1.9 < gain(1) < gain(4)


def test_bursts_of_four_kib_cost_one_address_flit_each_and_the_window_holds() -> None:
    def cycles(size: int, outstanding: int = 32) -> int:
        chip = ChipSpec(4, 4, endpoint=EndpointSpec(outstanding=outstanding))
        return collective(chip, Request("multicast", "hw", size, 4, 1, values=False)).cycles

    assert cycles(65536) - cycles(4096) == 15 * 65
    assert cycles(65536, outstanding=1) > 1.2 * cycles(65536)


def test_the_software_barrier_costs_three_cycles_per_cluster_and_the_way_back() -> None:
    times = {
        c * r: collective(CHIP, Request("barrier", "naive", 64, c, r)).cycles
        for c, r in ((2, 1), (4, 1), (4, 4))
    }
    assert times[4] - times[2] == 3 * 2 + 2 * 2
    assert times[16] - times[4] == 3 * 12 + 2 * 3


def test_the_planners_table_is_exact_for_hardware_and_says_how_wrong_it_is_for_software() -> None:
    table = {(c.kind, c.algorithm, c.form, c.contention): c for c in collective_costs()}
    multicast = table["multicast", "hw", Format.FP64, "alone"]
    assert multicast.worst_error < 1e-6
    assert multicast.cycles(2048, 4, 4) == pytest.approx(21 + 32 + 24)
    assert table["multicast", "tree", Format.FP64, "alone"].worst_error < 0.2
    together = table["reduce", "hw", Format.FP64, "all rows at once"]
    assert together.hop_cycles == table["reduce", "hw", Format.FP64, "alone"].hop_cycles


@pytest.mark.parametrize("kind", ["reduce", "all-reduce", "reduce-scatter"])
def test_a_unit_with_k_inputs_reduces_a_mesh_in_one_go(kind: Kind) -> None:
    cycles: dict[str, int] = {}
    for unit in ("rtl080", "kinput", "ideal"):
        router = RouterSpec(reduction=unit, reduction_latency_cycles=5)  # type: ignore[arg-type]
        outcome = collective(ChipSpec(4, 4, router=router), Request(kind, "hw", 4096, 4, 4))
        assert outcome.values_checked == (1 if kind == "reduce" else 16)
        cycles[unit] = outcome.cycles
    assert cycles["ideal"] < cycles["kinput"]


def test_one_pass_at_half_rate_takes_as_long_as_two_passes() -> None:
    """The paper's prose has the one, its benchmark the other."""
    cycles: dict[str, int] = {}
    for unit in ("rtl080", "kinput"):
        router = RouterSpec(reduction=unit, reduction_latency_cycles=5)  # type: ignore[arg-type]
        request = Request("reduce", "hw", 32768, 4, 4, values=False)
        cycles[unit] = collective(ChipSpec(4, 4, router=router), request).cycles
    assert cycles["kinput"] == pytest.approx(cycles["rtl080"], rel=0.01)


def test_without_dca_only_software_reduces() -> None:
    chip = ChipSpec(4, 4, router=RouterSpec(dca=False))
    assert collective(chip, Request("reduce", "tree", 1024, 4, 4)).values_checked == 1
    with pytest.raises(SpecError, match="Direct Compute Access"):
        collective(chip, Request("reduce", "hw", 1024, 4, 4))


def test_a_wrong_value_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from ratrain.chip.noc import collectives

    monkeypatch.setattr(collectives, "fold", lambda parts, *_: parts[0])
    with pytest.raises(ChipError, match="differs from numpy"):
        collective(CHIP, Request("reduce", "hw", 1024, 4, 4))


def test_groups_that_no_mask_can_name_are_refused() -> None:
    for shape in ((3, 1), (8, 1)):
        with pytest.raises(SpecError):
            submesh(CHIP, 0, 0, *shape)
    with pytest.raises(SpecError, match="multiple"):
        submesh(CHIP, 1, 0, 2, 1)
