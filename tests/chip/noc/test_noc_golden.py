"""Cycle by cycle the same as the RTL, at 4x4 and 8x8."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from noc_golden import (
    bench,
    broadcast,
    column_reductions,
    reduction,
    row,
    row_multicast,
    row_reductions,
    two_directions,
    values_of,
)
from noc_reference import Reference

from ratrain.chip.noc.mesh import run
from ratrain.chip.noc.opcodes import Opcode
from ratrain.chip.noc.workload import Workload

BOTH = pytest.mark.parametrize("k", [4, 8])


@BOTH
def test_u_a_unicast_worm_crosses_the_row(k: int) -> None:
    w = bench(k)
    w.packet((0, 0), (k - 1, 0), 64)
    r = run(w)
    assert (r.first_at[0], r.last_at[0]) == {4: (8, 71), 8: (16, 79)}[k]


@pytest.mark.parametrize(
    ("k", "row_cycles", "all_cycles"),
    [
        (4, (8, 23, 71, 519), (14, 29, 77, 525)),
        (8, (16, 31, 79, 527), (30, 45, 93, 541)),
    ],
)
def test_m_multicasts(k: int, row_cycles: tuple[int, ...], all_cycles: tuple[int, ...]) -> None:
    for i, flits in enumerate((1, 16, 64, 512)):
        w = bench(k)
        row_multicast(w, (0, 0), flits)
        assert run(w).last_cycle == row_cycles[i]
        w = bench(k)
        broadcast(w, (0, 0), flits)
        assert run(w).last_cycle == all_cycles[i]


@pytest.mark.parametrize(
    ("k", "first", "last"), [(4, 26, (26, 41, 89, 537)), (8, 58, (58, 73, 121, 569))]
)
def test_rr_row_reduction(k: int, first: int, last: tuple[int, ...]) -> None:
    for flits, cycles in zip((1, 16, 64, 512), last, strict=True):
        w = bench(k)
        reduction(w, row(w, 0), (k - 1, 0), (0, 0), flits)
        r = run(w)
        assert (r.first_at.max(), r.last_cycle) == (first, cycles)


@BOTH
def test_rrp_all_rows_reduce_at_once(k: int) -> None:
    w = bench(k)
    row_reductions(w, 256)
    assert run(w).last_cycle == {4: 281, 8: 313}[k]


@pytest.mark.parametrize(
    ("k", "columns", "rows", "cycles"),
    [
        (k, *shape)
        for k, shapes in {
            4: [(2, 1, 4), (4, 1, 8), (2, 2, 6), (4, 2, 10), (4, 4, 14)],
            8: [(4, 4, 14), (8, 1, 16), (8, 4, 22), (8, 8, 30)],
        }.items()
        for shape in shapes
    ],
)
def test_bar_one_way_barrier(k: int, columns: int, rows: int, cycles: int) -> None:
    w = bench(k)
    members = [(x, y) for y in range(rows) for x in range(columns)]
    reduction(w, members, (columns - 1, rows - 1), (0, 0), 1, op=Opcode.LSB_AND)
    assert run(w).last_cycle == cycles


@pytest.mark.parametrize(
    ("k", "rows", "both"),
    [(4, (23, 71, 263), (113, 449, 1793)), (8, (31, 79, 271), (241, 961, 3841))],
)
def test_t1_t2_rows_then_rows_and_columns(
    k: int, rows: tuple[int, ...], both: tuple[int, ...]
) -> None:
    for i, flits in enumerate((16, 64, 256)):
        w = bench(k)
        for y in range(k):
            row_multicast(w, (0, y), flits)
        assert run(w).last_cycle == rows[i]
        w = bench(k)
        two_directions(w, flits, diagonal=False)
        assert run(w).last_cycle == both[i]


@pytest.mark.parametrize(
    ("k", "flits", "cycles"), [(4, 32, 71), (4, 64, 135), (8, 32, 79), (8, 64, 143)]
)
def test_t2d_diagonal_sources(k: int, flits: int, cycles: int) -> None:
    w = bench(k)
    two_directions(w, flits, diagonal=True)
    assert run(w).last_cycle == cycles == 2 * flits + 2 * k - 1


@pytest.mark.parametrize(
    ("k", "corners", "neighbours", "stuck"),
    [
        (4, (14, 17, 21), (14, 15, 19), (176, 80)),
        (8, (30, 33, 37), (30, 31, 35), (816, 320)),
    ],
)
def test_t3_overlapping_broadcasts_deadlock(
    k: int, corners: tuple[int, ...], neighbours: tuple[int, ...], stuck: tuple[int, int]
) -> None:
    pairs = (((k - 1, k - 1), corners, stuck[0]), ((1, 0), neighbours, stuck[1]))
    for other, cycles, out in pairs:
        for i, flits in enumerate((1, 2, 4)):
            w = bench(k)
            broadcast(w, (0, 0), flits)
            broadcast(w, other, flits)
            assert run(w).last_cycle == cycles[i]
        w = bench(k)
        broadcast(w, (0, 0), 16)
        broadcast(w, other, 16)
        r = run(w, check=False)
        assert (r.status, r.ejected_flits) == ("deadlock", out)


@BOTH
@pytest.mark.parametrize(("flits", "hangs"), [(1, 0), (4, 20), (16, 20)])
def test_t4_random_multicasts_hang_unless_single_flits(k: int, flits: int, hangs: int) -> None:
    rng = np.random.default_rng(0)
    hung = 0
    for _ in range(20):
        w = bench(k)
        for node in range(k * k):
            for _ in range(rng.integers(0, 4)):
                mask = (int(rng.integers(0, k)), int(rng.integers(0, k)))
                dst = (int(rng.integers(0, k)), int(rng.integers(0, k)))
                w.packet(w.mesh.place(node), dst, flits, op=Opcode.MULTICAST, mask=mask)
        hung += run(w, check=False).status == "deadlock"
    assert hung == hangs


@pytest.mark.parametrize(
    ("k", "flits", "cycles"), [(4, 16, 75), (4, 64, 171), (8, 16, 139), (8, 64, 235)]
)
def test_t5_rows_then_columns_without_a_barrier(k: int, flits: int, cycles: int) -> None:
    w = bench(k)
    row_reductions(w, flits)
    column_reductions(w, flits)
    assert run(w).last_cycle == cycles


def half_shift(w: Workload, k: int) -> None:
    for node in range(k * k):
        x, y = w.mesh.place(node)
        for _ in range(64):
            w.packet((x, y), ((x + k // 2) % k, (y + k // 2) % k), 1)


def all_to_one(w: Workload, k: int) -> None:
    for node in range(1, k * k):
        w.packet(w.mesh.place(node), (0, 0), 64)


def one_to_each(w: Workload, k: int) -> None:
    for node in range(1, k * k):
        w.packet((0, 0), w.mesh.place(node), 64)


@pytest.mark.parametrize(
    ("stimulus", "cycles"),
    [
        (half_shift, {4: 137, 8: 415}),
        (all_to_one, {4: 963, 8: 4035}),
        (one_to_each, {4: 973, 8: 4061}),
    ],
)
@BOTH
def test_t7_t8_t9_unicast_patterns(
    stimulus: Callable[[Workload, int], None], cycles: dict[int, int], k: int
) -> None:
    w = bench(k)
    stimulus(w, k)
    assert run(w).last_cycle == cycles[k]


@pytest.mark.parametrize(("k", "cycles"), [(4, (8, 13, 37)), (8, (16, 21, 45))])
def test_a_two_worms_to_one_sink(k: int, cycles: tuple[int, ...]) -> None:
    for flits, expected in zip((1, 4, 16), cycles, strict=True):
        w = bench(k)
        w.packet((0, 0), (k - 1, 0), flits)
        w.packet((1, 0), (k - 1, 0), flits)
        assert run(w).last_cycle == expected


@BOTH
def test_b_the_order_of_ties_is_that_of_the_rtl_arbiter(k: int) -> None:
    w = bench(k)
    for source in (0, 1):
        for _ in range(32):
            w.packet((source, 0), (k - 1, 0), 1)
    r = run(w)
    order = (r.deliveries[:, 0] >= 32).astype(int).tolist()
    assert r.last_cycle == {4: 69, 8: 77}[k]
    assert order[:8] == [1, 1, 1, 0, 1, 0, 1, 0]


@BOTH
def test_d_a_multicast_waits_for_a_unicast(k: int) -> None:
    w = bench(k)
    row_multicast(w, (0, 0), 64)
    w.packet((1, 0), (k - 1, 0), 64)
    assert run(w).last_at.tolist() == {4: [133, 69], 8: [141, 77]}[k]


@BOTH
def test_e_a_late_contributor_delays_the_reduction(k: int) -> None:
    w = bench(k)
    reduction(w, row(w, 0), (k - 1, 0), (0, 0), 16, late={(2, 0): 50})
    r = run(w)
    assert (r.first_at.max(), r.last_cycle) == (74, 89)


@BOTH
def test_h_multicast_to_a_far_submesh(k: int) -> None:
    w = bench(k)
    w.packet((0, 0), (2, 2), 16, op=Opcode.MULTICAST, mask=(1, 1))
    assert run(w).last_cycle == 29


@pytest.mark.parametrize(("k", "three", "two_d"), [(4, 800, 12100), (8, 3400, 190500)])
def test_3in_2d_the_lossy_unit_loses_what_the_rtl_loses(k: int, three: int, two_d: int) -> None:
    for dst, rows, value in (((1, 0), 1, three), ((0, 0), k, two_d)):
        w = bench(k, memory_bytes=16, reduction="lossy")
        values_of(w, 1)
        members = [(x, y) for y in range(rows) for x in range(k)]
        reduction(w, members, (k - 1, rows - 1), dst, 1, with_values=True)
        run(w)
        assert w.read(dst, 8, 8).view(np.int64)[0] == value


def test_the_plain_python_model_gives_golden_cycles_too() -> None:
    w = bench(4)
    two_directions(w, 16, diagonal=False)
    model = Reference(w)
    assert model.run() == "done"
    assert max(t.last_at for t in model.tasks) == 113
    w = bench(4)
    broadcast(w, (0, 0), 16)
    broadcast(w, (3, 3), 16)
    model = Reference(w)
    assert (model.run(), model.ejected) == ("deadlock", 176)
