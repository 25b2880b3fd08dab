"""The planner that says which worms may not fly together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratrain.chip.noc.deadlock import (
    RowReduction,
    Worm,
    check,
    deadlocks_as_issued,
    lost_operands,
    serialise,
    serialise_reductions,
    tree,
)
from ratrain.chip.noc.mesh import run
from ratrain.chip.noc.opcodes import Opcode
from ratrain.chip.noc.spec import MeshSpec
from ratrain.chip.noc.workload import Workload
from ratrain.errors import SpecError

MESH = MeshSpec(4, 4)
ROWS = [Worm((0, y), (0, y), (3, 0), 16) for y in range(4)]
COLUMNS = [Worm((x, 0), (x, 0), (0, 3), 16) for x in range(4)]


def test_row_multicasts_are_safe_together() -> None:
    assert not check(MESH, ROWS).can_deadlock
    assert serialise(MESH, ROWS) == [[0, 1, 2, 3]]


def test_opposite_broadcasts_are_not_and_the_circle_is_named() -> None:
    worms = [Worm((0, 0), (0, 0), (3, 3), 16), Worm((3, 3), (0, 0), (3, 3), 16)]
    verdict = check(MESH, worms)
    assert verdict.can_deadlock and set(verdict.circle) == {0, 1}
    assert serialise(MESH, worms) == [[0], [1]]
    assert deadlocks_as_issued(MESH, worms, [0, 0])


def test_on_two_virtual_channels_they_are_safe() -> None:
    worms = [Worm((0, 0), (0, 0), (3, 3), 16), Worm((3, 3), (0, 0), (3, 3), 16, vc=1)]
    assert not check(MESH, worms).can_deadlock


def test_rows_and_columns_may_deadlock_in_some_timing_but_not_as_the_rtl_bench_issues_them() -> (
    None
):
    assert check(MESH, ROWS + COLUMNS).can_deadlock
    assert not deadlocks_as_issued(MESH, ROWS + COLUMNS, [0] * 8)


def test_any_unicasts_are_safe() -> None:
    rng = np.random.default_rng(0)
    worms = [
        Worm(MESH.place(int(a)), MESH.place(int(b)), (0, 0), 20)
        for a, b in rng.integers(0, 16, (60, 2))
    ]
    assert not check(MESH, worms).can_deadlock


def test_single_flits_are_safe() -> None:
    worms = [Worm((x, x), (0, 0), (3, 3), 1) for x in range(4)]
    assert not check(MESH, worms).can_deadlock


@st.composite
def worm_sets(draw: st.DrawFn) -> list[Worm]:
    place = st.tuples(st.integers(0, 3), st.integers(0, 3))
    worm = st.builds(Worm, place, place, place, st.integers(2, 40))
    return draw(st.lists(worm, min_size=2, max_size=5))


@settings(max_examples=150, deadline=None)
@given(worm_sets(), st.lists(st.integers(0, 30), min_size=5, max_size=5))
@pytest.mark.slow
def test_a_set_called_safe_never_deadlocks(worms: list[Worm], at: list[int]) -> None:
    issue = sorted(at[: len(worms)])
    if not check(MESH, worms).can_deadlock:
        assert not deadlocks_as_issued(MESH, worms, issue)
    for phase in serialise(MESH, worms):
        chosen = [worms[i] for i in phase]
        assert not deadlocks_as_issued(MESH, chosen, issue[: len(chosen)])


@settings(max_examples=60, deadline=None)
@given(worm_sets())
def test_the_planners_tree_is_the_routers(worms: list[Worm]) -> None:
    worm = worms[0]
    w = Workload(MESH)
    w.packet(worm.src, worm.dst, 1, op=Opcode.MULTICAST, mask=worm.mask)
    r = run(w, trace=True)
    used = {(*MESH.place(node), "NESWL"[port], 0) for node, port in r.trace[:, 2:4].tolist()}
    assert set(tree(MESH, worm)) == used


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_lost_operands_are_foreseen(
    corner: tuple[int, int], mask: tuple[int, int], dst: tuple[int, int]
) -> None:
    reduction = RowReduction(corner, mask, dst)
    w, group = Workload(MESH), None
    for place in (MESH.place(i) for i in range(16)):
        if (place[0] ^ corner[0]) & ~mask[0] or (place[1] ^ corner[1]) & ~mask[1]:
            continue
        task = w.packet(place, dst, 2, op=Opcode.FP_ADD, sources=mask, group=group)
        group = task if group is None else group
    foreseen = bool(lost_operands(reduction))
    assert (run(w, check=False).status == "lost operand") == foreseen


def test_reductions_that_share_a_router_take_turns_and_a_lossy_one_is_refused() -> None:
    rows = [RowReduction((0, y), (3, 0), (0, y)) for y in range(4)]
    columns = [RowReduction((x, 0), (0, 3), (x, 0)) for x in range(4)]
    assert serialise_reductions(rows + columns) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(SpecError, match="3 operands"):
        serialise_reductions([RowReduction((0, 0), (3, 0), (1, 0))])
