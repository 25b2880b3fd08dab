"""What holds for every program that skeletons and passes make."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from made import Case, cases, replica

from ratrain.program.bounds import Moved, peak_bounds
from ratrain.program.setup import Setup
from ratrain.program.strategies import Choices, apply_strategy, strategy
from ratrain.program.table import Table
from ratrain.program.text import read_text, write_text
from ratrain.program.units import Ints
from ratrain.program.uses import FREE, WRITE
from ratrain.program.verify import verify
from ratrain.program.walk import STEPS, drift, walk

quick = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(cases())
def test_every_combination_of_skeleton_and_passes_verifies(case: Case) -> None:
    verdict = verify(case.program)
    assert not verdict.findings, [f.message for f in verdict.findings[:3]]
    assert len(verdict.bounds) == case.setup.ranks


@quick
@given(cases())
def test_text_parses_back_to_an_equal_program(case: Case) -> None:
    program = case.program
    assert read_text(write_text(program)) == program


@settings(quick, max_examples=50)
@given(cases(max_micro_batches=4))
def test_the_compiled_walk_equals_its_python_twin(case: Case) -> None:
    table = case.program.table
    compiled, other = walk(table), walk(table, compiled=False)
    assert np.array_equal(compiled.order, other.order)
    assert np.array_equal(compiled.stuck, other.stuck)
    ranks = range(case.setup.ranks)
    ours, twin = (
        drift(table, compiled.order, ranks),
        drift(table, compiled.order, ranks, compiled=False),
    )
    assert np.array_equal(ours.early, twin.early)
    assert np.array_equal(ours.late, twin.late)


@settings(quick, max_examples=50)
@given(cases(max_micro_batches=4))
def test_chains_bound_every_op_as_the_whole_graph_does(case: Case) -> None:
    table, ranks = case.program.table, range(case.setup.ranks)
    whole = drift(table, walk(table).order, ranks)
    moved = Moved(ranks, table.chains, drift(table.chains.graph, chain_order(table), ranks))
    ops = np.arange(len(table))
    for step in range(STEPS):
        of_step = slice(step * len(ops), (step + 1) * len(ops))
        for rank in ranks:
            assert np.array_equal(moved.early(ops, step, rank), whole.early[of_step, rank])
            assert np.array_equal(moved.late(ops, step, rank), whole.late[of_step, rank])


def chain_order(table: Table) -> Ints:
    """A complete walk of a program's chains."""
    return walk(table.chains.graph).order


def test_ranks_past_the_first_sixteen_are_bounded_like_the_others() -> None:
    setup = Setup((replica((1,) * 19, 5, 2),))
    table = apply_strategy(strategy("ratrain"), setup, Choices()).table
    order = walk(table).order
    second = range(16, 19)
    ours, twin = drift(table, order, second), drift(table, order, second, compiled=False)
    assert np.array_equal(ours.early, twin.early)
    assert np.array_equal(ours.late, twin.late)
    bounds = peak_bounds(table, chain_order(table))
    assert [bound.rank for bound in bounds] == list(range(19))
    ending = [bound.total_bytes for bound in bounds[14:]]
    assert ending == sorted(ending, reverse=True)  # 1F1B: ever fewer inputs are held
    assert ending[0] > ending[-1]


@settings(quick, max_examples=50)
@given(cases(max_micro_batches=4))
def test_the_memory_bound_is_reached_by_no_order_of_running(case: Case) -> None:
    table = case.program.table
    order = walk(table).order
    bounds = peak_bounds(table, chain_order(table))
    rng = np.random.default_rng(len(table))
    for run in (order, _random_run(table, rng), _random_run(table, rng)):
        assert len(run) == STEPS * len(table)
        peaks = {tier: _peaks(table, run, tier) for tier in table.states.tiers}
        for bound in bounds:
            assert peaks[bound.tier][bound.rank] <= bound.total_bytes


def _random_run(table: Table, rng: np.random.Generator) -> Ints:
    """Two steps in another order: of what can run, anything may come first."""
    n = len(table)
    followers: list[list[int]] = [[] for _ in range(STEPS * n)]
    waits = [0] * (STEPS * n)
    for edges, shift in ((table.edges.inside, 0), (table.edges.across, 1)):
        for source, target in zip(edges.source.tolist(), edges.target.tolist(), strict=True):
            for step in range(STEPS - shift):
                followers[source + step * n].append(target + (step + shift) * n)
                waits[target + (step + shift) * n] += 1
    members: dict[tuple[int, int], list[int]] = {}
    for node in range(STEPS * n):
        group = int(table.group[node % n])
        key = (node // n, group) if group >= 0 else (-1, node)
        members.setdefault(key, []).append(node)
    where = {node: key for key, nodes in members.items() for node in nodes}
    left = {key: sum(1 for node in nodes if waits[node]) for key, nodes in members.items()}
    ready = [key for key, count in left.items() if not count]
    run: list[int] = []
    while ready:
        key = ready.pop(int(rng.integers(len(ready))))
        for node in members[key]:
            run.append(node)
            for target in followers[node]:
                waits[target] -= 1
                if not waits[target]:
                    left[where[target]] -= 1
                    if not left[where[target]]:
                        ready.append(where[target])
    return np.array(run, dtype=np.int64)


def _peaks(table: Table, run: Ints, tier: str) -> list[int]:
    """Each rank's most bytes in a tier when ops run one by one: born before an op, freed after."""
    states, uses, n = table.states, table.uses, len(table)
    ranks = table.setup.ranks
    held = [0] * ranks
    here = states.in_tier(tier)
    standing = states.persistent & here
    for rank in range(ranks):
        held[rank] = int(states.size_bytes[standing & (states.rank == rank)].sum())
    peaks = list(held)
    born: dict[int, list[int]] = {}
    freed: dict[int, list[int]] = {}
    passing = (~states.persistent & here)[uses.state]
    for into, rows in (
        (born, passing & (uses.mode == WRITE) & (uses.version == 1)),
        (freed, passing & (uses.mode == FREE)),
    ):
        for op, state in zip(uses.op[rows].tolist(), uses.state[rows].tolist(), strict=True):
            into.setdefault(op, []).append(state)
    for node in run.tolist():
        for state in born.get(node % n, []):
            held[states.rank[state]] += int(states.size_bytes[state])
        for rank in range(ranks):
            peaks[rank] = max(peaks[rank], held[rank])
        for state in freed.get(node % n, []):
            held[states.rank[state]] -= int(states.size_bytes[state])
    assert held == [
        int(states.size_bytes[standing & (states.rank == rank)].sum()) for rank in range(ranks)
    ]
    return peaks
