"""What is true of every run, whatever the traffic."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ratrain.chip.noc.mesh import Run, run
from ratrain.chip.noc.opcodes import Opcode
from ratrain.chip.noc.spec import MeshSpec, Plane, RouterSpec, masked
from ratrain.chip.noc.workload import Place, Workload

SEEDS = st.integers(0, 10_000)
LOCAL = 4


def random_unicasts(seed: int, *, count: int = 250, **router: object) -> Workload:
    rng = np.random.default_rng(seed)
    columns, rows = int(rng.integers(1, 7)), int(rng.integers(1, 7))
    spec = RouterSpec(**router)  # type: ignore[arg-type]
    w = Workload(MeshSpec(columns, rows, planes=(Plane("a", 8),), router=spec))
    for _ in range(count):
        src, dst = (w.mesh.place(int(i)) for i in rng.integers(0, w.mesh.nodes, 2))
        w.packet(src, dst, int(rng.integers(1, 9)), at=int(rng.integers(0, 80)))
    return w


def draw_place(rng: np.random.Generator, size: int) -> Place:
    return int(rng.integers(0, size)), int(rng.integers(0, size))


def flits_of(w: Workload) -> list[int]:
    return [int(row[12]) for row in w.task_table()]


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(1, 4), st.sampled_from(["async", "lockstep"]))
def test_random_unicasts_end_and_no_flit_is_created_or_lost(
    seed: int, depth: int, fork: str
) -> None:
    w = random_unicasts(seed, input_fifo_flits=depth, output_fifo_flits=depth, fork=fork)
    r = run(w)  # a deadlock would raise
    assert r.injected_flits == r.ejected_flits == sum(flits_of(w))
    assert sorted(r.deliveries[:, 0].tolist()) == list(range(len(w)))
    assert r.link_flits[..., LOCAL].sum() == r.ejected_flits


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_packets_of_a_pair_arrive_in_their_order_and_flits_in_theirs(seed: int) -> None:
    w = random_unicasts(seed)
    r = run(w, trace=True)
    table = w.task_table()
    arrivals: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for _, _, node, port, task, seq in r.trace.tolist():
        if port == LOCAL:
            pair = (int(table[task, 6]), node)
            arrivals.setdefault(pair, []).append((int(table[task, 17]), task, seq))
    for order in arrivals.values():
        assert order == sorted(order)


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_unicast_routes_are_minimal_and_turn_once(seed: int) -> None:
    w = random_unicasts(seed, count=60)
    r = run(w, trace=True)
    table = w.task_table()
    routes: dict[int, list[int]] = {}
    for _, _, _, port, task, seq in r.trace.tolist():
        if seq == 0:
            routes.setdefault(task, []).append(port)
    for task, ports in routes.items():
        (sx, sy), (dx, dy) = (w.mesh.place(int(table[task, c])) for c in (6, 7))
        assert len(ports) == abs(sx - dx) + abs(sy - dy) + 1
        horizontal = [p in (1, 3) for p in ports]
        assert horizontal == sorted(horizontal, reverse=True)  # rows first, then columns


def one_multicast(seed: int) -> tuple[Workload, Run, set[int]]:
    rng = np.random.default_rng(seed)
    k = 8
    w = Workload(MeshSpec(k, k, planes=(Plane("a", 8),)))
    src, dst, mask = (draw_place(rng, k) for _ in range(3))
    w.packet(src, dst, int(rng.integers(1, 20)), op=Opcode.MULTICAST, mask=mask)
    members = {w.mesh.node(x, y) for x in masked(dst[0], mask[0]) for y in masked(dst[1], mask[1])}
    return w, run(w, trace=True), members


@settings(max_examples=80, deadline=None)
@given(SEEDS)
def test_a_multicast_reaches_exactly_its_mask_exactly_once(seed: int) -> None:
    w, r, members = one_multicast(seed)
    assert Counter(r.deliveries[:, 1].tolist()) == dict.fromkeys(members, 1)
    assert r.ejected_flits == len(members) * flits_of(w)[0]
    # A tree: no link carries a flit twice.
    crossings = Counter(map(tuple, r.trace[:, 2:].tolist()))
    assert set(crossings.values()) == {1}


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_single_flit_multicasts_never_deadlock(seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = Workload(MeshSpec(4, 4, planes=(Plane("a", 8),)))
    expected = 0
    for _ in range(120):
        src, dst, mask = (draw_place(rng, 4) for _ in range(3))
        w.packet(src, dst, 1, op=Opcode.MULTICAST, mask=mask, at=int(rng.integers(0, 20)))
        expected += 1 << (mask[0].bit_count() + mask[1].bit_count())
    assert run(w).ejected_flits == expected


def test_the_same_workload_gives_the_same_run() -> None:
    first, second = (run(random_unicasts(7), trace=True) for _ in range(2))
    assert np.array_equal(first.trace, second.trace)
