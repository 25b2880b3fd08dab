"""Whatever is broken in a sound program is found, under the right name."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from made import Case, cases, small

from ratrain.errors import ProgramError
from ratrain.program.actions import Action
from ratrain.program.edges import LANE_EDGE
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.table import Table
from ratrain.program.uses import FREE, READ, WRITE, Uses
from ratrain.program.verify import Rule, Verdict, verify
from ratrain.program.walk import walk

quick = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
SENDS, RECEIVES = (Kind.SEND_F, Kind.SEND_B), (Kind.RECV_F, Kind.RECV_B)
GRADIENTS = (Kind.B, Kind.W)


def names(verdict: Verdict) -> set[Rule]:
    return {finding.rule for finding in verdict.findings}


def ops_of(program: Program, *kinds: Kind) -> list[tuple[int, Lane, int]]:
    """(rank, lane, place) of every op of these kinds."""
    return [
        (rank, lane, place)
        for (rank, lane), actions in program.lanes.items()
        for place, action in enumerate(actions)
        if action.kind in kinds
    ]


def changed(program: Program, rank: int, lane: Lane, by: Callable[[list[Action]], None]) -> Program:
    actions = list(program.lanes[rank, lane])
    by(actions)
    return replace(program, lanes={**program.lanes, (rank, lane): tuple(actions)})


def dropped(program: Program, data: st.DataObject, *kinds: Kind) -> tuple[Program, Action]:
    """The program without one op of these kinds, and that op."""
    ops = ops_of(program, *kinds)
    assume(ops)
    rank, lane, place = data.draw(st.sampled_from(ops))
    without = changed(program, rank, lane, lambda actions: actions.pop(place) and None)
    return without, program.lanes[rank, lane][place]


@quick
@given(cases(), st.data())
def test_a_dropped_send_is_a_missing_send(case: Case, data: st.DataObject) -> None:
    program, _ = dropped(case.program, data, *SENDS)
    assert Rule.MISSING_SEND in names(verify(program))


@quick
@given(cases(), st.data())
def test_a_dropped_receive_is_a_missing_receive(case: Case, data: st.DataObject) -> None:
    program, _ = dropped(case.program, data, *RECEIVES)
    assert Rule.MISSING_RECEIVE in names(verify(program))


@quick
@given(cases(), st.data())
def test_a_dropped_forward_is_a_missing_forward(case: Case, data: st.DataObject) -> None:
    program, _ = dropped(case.program, data, Kind.F)
    assert Rule.MISSING_FORWARD in names(verify(program))


@quick
@given(cases(), st.data())
def test_a_dropped_gradient_is_an_incomplete_gradient(case: Case, data: st.DataObject) -> None:
    program, _ = dropped(case.program, data, *GRADIENTS)
    assert Rule.INCOMPLETE_GRADIENT in names(verify(program)) or (
        # The gradient of one micro-batch, reduced at once: its reduction has nothing to read.
        program.setup.per_micro_batch and Rule.READ_BEFORE_WRITE in names(verify(program))
    )


@quick
@given(cases(), st.data())
def test_a_dropped_reduction_is_an_incomplete_gradient(case: Case, data: st.DataObject) -> None:
    program, _ = dropped(case.program, data, Kind.GradSync)
    assert Rule.INCOMPLETE_GRADIENT in names(verify(program))


@quick
@given(cases(), st.data())
def test_a_dropped_update_renews_nothing(case: Case, data: st.DataObject) -> None:
    program, _ = dropped(case.program, data, Kind.UpdateShard)
    # Of a unit whose optimizer is in another tier, the store finds nothing to take back.
    away = Rule.READ_BEFORE_WRITE if case.choices.optimizer_tier else Rule.NOT_UPDATED
    assert away in names(verify(program))


@quick
@given(cases(), st.data())
def test_an_optimizer_that_is_not_fetched_or_not_stored_is_found(
    case: Case, data: st.DataObject
) -> None:
    assume(case.choices.optimizer_tier)
    program, _ = dropped(case.program, data, Kind.FetchOptimizer)
    assert Rule.READ_BEFORE_WRITE in names(verify(program))
    program, _ = dropped(case.program, data, Kind.StoreOptimizer)
    assert Rule.NOT_UPDATED in names(verify(program))


@quick
@given(cases(), st.data())
def test_a_dropped_prefetch_renews_no_view(case: Case, data: st.DataObject) -> None:
    program, _ = dropped(case.program, data, Kind.PrefetchW)
    assert Rule.NOT_UPDATED in names(verify(program))
    assert Rule.LEAK in names(verify(program))


@quick
@given(cases(), st.data())
def test_a_dropped_collective_of_unequal_replicas_misses_its_partner(
    case: Case, data: st.DataObject
) -> None:
    assume(len(case.setup.replicas) > 1)
    kinds = (Kind.GradSync, Kind.PrefetchW, Kind.Gather_F, Kind.Gather_B)
    program, _ = dropped(case.program, data, *kinds)
    assert Rule.MISSING_PARTNER in names(verify(program))


@quick
@given(cases(), st.data())
def test_a_norm_that_one_rank_leaves_out_misses_its_partner(
    case: Case, data: st.DataObject
) -> None:
    assume(case.setup.ranks > 1)
    program, _ = dropped(case.program, data, Kind.ClipNorm)
    verdict = verify(program)
    others = [f for f in verdict.findings if f.rule is Rule.MISSING_PARTNER]
    assert len(others) == case.setup.ranks - 1
    assert all("does not appear exactly once on every rank" in f.message for f in others)


@quick
@given(cases(tied=True), st.data())
def test_a_dropped_half_of_a_tie_misses_its_partner_and_leaves_gradients_incomplete(
    case: Case, data: st.DataObject
) -> None:
    program, _ = dropped(case.program, data, Kind.TieSync)
    named = names(verify(program))
    assert Rule.INCOMPLETE_GRADIENT in named
    ranks = program.setup.replicas[0].ranks
    assert ranks == 1 or len(program.setup.replicas) > 1 or Rule.MISSING_PARTNER in named


@quick
@given(cases(tied=True), st.data())
def test_a_tie_ahead_of_its_reduction_is_named(case: Case, data: st.DataObject) -> None:
    program = case.program
    rank, lane, place = data.draw(st.sampled_from(ops_of(program, Kind.TieSync)))
    actions = program.lanes[rank, lane]
    tie = actions[place]
    behind = [
        at
        for at, action in enumerate(actions[:place])
        if action.kind is Kind.GradSync and (action.stage, action.unit) == (tie.stage, tie.unit)
    ]
    assume(behind)
    lanes = {**program.lanes}
    rest = [action for action in actions if action is not tie]
    lanes[rank, lane] = (*rest[: behind[0]], tie, *rest[behind[0] :])
    verdict = verify(replace(program, lanes=lanes))
    assert not verdict.sound
    assert "TieSync" in " ".join(finding.message for finding in verdict.findings)


@quick
@given(cases(tied=True), st.data())
def test_a_reader_of_one_copy_s_gradient_alone_is_named(case: Case, data: st.DataObject) -> None:
    table = case.program.table
    uses, units = table.uses, table.states.units
    g = uses.state - table.states.start("gradient")
    ends = (g >= 0) & (g < len(units.rank)) & (units.tied_to[g % len(units.rank)] >= 0)
    readers = np.isin(table.kind[uses.op], [Kind.UpdateShard, Kind.ClipNorm])
    rows = np.flatnonzero(ends & readers & (uses.mode == READ))
    row = data.draw(st.sampled_from(rows.tolist()))
    version = uses.version.copy()
    version[row] = units.micro_batches[g[row]] + data.draw(st.integers(0, table.setup.reduces))
    findings = verify(with_uses(table, version=version)).findings
    assert any("before the tied copy's gradient is added" in f.message for f in findings)


@quick
@given(cases(), st.data())
def test_an_update_ahead_of_the_norm_is_named(case: Case, data: st.DataObject) -> None:
    program = case.program
    norms = ops_of(program, Kind.ClipNorm)
    assume(norms)
    rank, lane, place = data.draw(st.sampled_from(norms))
    swapped = changed(program, rank, lane, _swap(place, place + 1))
    assert names(verify(swapped)) & {Rule.USE_AFTER_FREE, Rule.OVERWRITTEN}


@quick
@given(cases(), st.data())
def test_a_dropped_save_is_an_incomplete_save(case: Case, data: st.DataObject) -> None:
    program, _ = dropped(case.program, data, Kind.Save)
    assume(ops_of(program, Kind.Save))
    assert names(verify(program)) == {Rule.INCOMPLETE_SAVE}


@quick
@given(cases(), st.data())
def test_two_swapped_sends_break_the_order_of_messages(case: Case, data: st.DataObject) -> None:
    program = case.program
    lanes = [key for key, acts in program.lanes.items() if key[1] in (Lane.SEND_F, Lane.SEND_B)
             and len(acts) > 1]  # fmt: skip
    assume(lanes)
    rank, lane = data.draw(st.sampled_from(lanes))
    actions = program.lanes[rank, lane]
    first = data.draw(st.integers(0, len(actions) - 2))
    other = data.draw(st.integers(first + 1, len(actions) - 1))

    def to(action: Action) -> int:
        stage = action.stage + (1 if action.kind is Kind.SEND_F else -1)
        index = program.setup.replica_of(rank)
        return program.setup.replicas[index].stages[stage].only.rank

    between = actions[first : other + 1]
    assume(any(to(a) == to(actions[e]) for e in (first, other) for a in between if a != actions[e]))
    named = names(verify(changed(program, rank, lane, _swap(first, other))))
    assert Rule.MESSAGE_ORDER in named


def _swap(first: int, other: int) -> Callable[[list[Action]], None]:
    def swap(actions: list[Action]) -> None:
        actions[first], actions[other] = actions[other], actions[first]

    return swap


ORDER = {
    Rule.READ_BEFORE_WRITE,
    Rule.INCOMPLETE_GRADIENT,
    Rule.USE_AFTER_FREE,
    Rule.OVERWRITTEN,
    Rule.DEADLOCK,
    Rule.MESSAGE_ORDER,
}


@settings(quick, max_examples=80)
@given(cases(), st.data())
def test_swapped_ops_that_depend_on_each_other_are_named(case: Case, data: st.DataObject) -> None:
    program = case.program
    table, inside = program.table, program.table.edges.inside
    same = (table.rank[inside.source] == table.rank[inside.target]) & (
        table.lane[inside.source] == table.lane[inside.target]
    )
    edges = np.flatnonzero(same & (inside.kind != LANE_EDGE))
    assume(len(edges))
    edge = data.draw(st.sampled_from(edges.tolist()))
    source, target = int(inside.source[edge]), int(inside.target[edge])
    rank, lane = int(table.rank[source]), Lane(int(table.lane[source]))
    start = int(np.flatnonzero((table.rank == rank) & (table.lane == lane))[0])
    swapped = changed(program, rank, lane, _swap(source - start, target - start))
    # Slots serve whichever op comes next: two ops that share nothing else may change places.
    slots = {"transit", "gathered", "partial", "partialb"}
    family = table.states.families[int(table.states.family[inside.state[edge]])].name
    assume(family not in slots)
    assert names(verify(swapped)) & ORDER


@settings(quick, max_examples=80)
@given(cases(), st.data())
def test_any_two_swapped_ops_either_run_or_are_named(case: Case, data: st.DataObject) -> None:
    program = case.program
    lanes = [key for key, actions in program.lanes.items() if len(actions) > 1]
    rank, lane = data.draw(st.sampled_from(sorted(lanes)))
    places = st.integers(0, len(program.lanes[rank, lane]) - 1)
    first, other = data.draw(places), data.draw(places)
    verdict = verify(changed(program, rank, lane, _swap(first, other)))
    assert verdict.findings or len(verdict.bounds) == case.setup.ranks
    assert all(finding.message for finding in verdict.findings)


@settings(quick, max_examples=80)
@given(cases(), st.data())
def test_an_op_that_stands_there_twice_is_found(case: Case, data: st.DataObject) -> None:
    program = case.program
    rank, lane, place = data.draw(
        st.sampled_from(ops_of(program, *(kind for kind in Kind if not kind.is_barrier)))
    )
    action = program.lanes[rank, lane][place]
    to = data.draw(st.integers(0, len(program.lanes[rank, lane])))
    assert verify(changed(program, rank, lane, lambda actions: actions.insert(to, action))).findings


@quick
@given(cases(), st.data())
def test_an_op_on_the_wrong_lane_or_rank_is_refused(case: Case, data: st.DataObject) -> None:
    program = case.program
    rank, lane, place = data.draw(st.sampled_from(ops_of(program, *Kind)))
    action = program.lanes[rank, lane][place]
    other = data.draw(st.sampled_from([n for n in Lane if n is not lane]))
    lanes = {**program.lanes, (rank, other): (*program.lane(rank, other), action)}
    with pytest.raises(ProgramError, match="is on the wrong lane"):
        verify(replace(program, lanes=lanes))


# ---- in the table -----------------------------------------------------------------------


def with_uses(table: Table, **columns: np.ndarray) -> Table:
    uses = table.uses
    made = {"op": uses.op, "state": uses.state, "version": uses.version, "mode": uses.mode}
    return replace(table, uses=Uses(**{**made, **columns}))


@quick
@given(cases(), st.data())
def test_a_free_before_the_last_read_is_a_use_after_free(case: Case, data: st.DataObject) -> None:
    """Moves a free to an op that runs before one of the readers on the readers' own lane."""
    table = case.program.table
    uses = table.uses
    pairs = [
        (row, early)
        for row in np.flatnonzero(uses.mode == FREE).tolist()
        for early in _earlier_users(table, row)
    ]
    assume(pairs)
    row, early = data.draw(st.sampled_from(pairs))
    op = uses.op.copy()
    op[row] = early
    named = names(verify(with_uses(table, op=op)))
    assert Rule.USE_AFTER_FREE in named


def _earlier_users(table: Table, row: int) -> list[int]:
    """Ops that use the freed version too, and stand before the freeing op on its lane."""
    uses = table.uses
    same_version = (uses.state == uses.state[row]) & (uses.version == uses.version[row])
    freer = int(uses.op[row])
    readers = uses.op[same_version & (uses.mode == READ)]
    writers = uses.op[same_version & (uses.mode == WRITE)]
    same = (table.rank[writers] == table.rank[freer]) & (table.lane[writers] == table.lane[freer])
    return writers[same & (writers < freer) & np.isin(freer, readers)].tolist()


@quick
@given(cases(), st.data())
def test_an_update_of_an_older_gradient_is_incomplete(case: Case, data: st.DataObject) -> None:
    table = case.program.table
    uses, states = table.uses, table.states
    family = [f.name for f in states.families].index(
        "shard" if table.setup.per_micro_batch else "gradient"
    )
    rows = np.flatnonzero(
        (states.family[uses.state] == family)
        & (uses.mode == READ)
        & (table.kind[uses.op] == Kind.UpdateShard)
        & (states.units.micro_batches[table.unit[uses.op]] > 1)
    )
    assume(len(rows))
    row = data.draw(st.sampled_from(rows.tolist()))
    version = uses.version.copy()
    due = int(states.units.micro_batches[table.unit[uses.op[row]]])
    version[row] = data.draw(st.integers(1, due - 1))
    assert Rule.INCOMPLETE_GRADIENT in names(verify(with_uses(table, version=version)))


@quick
@given(cases(), st.data())
def test_a_state_grown_past_the_budget_is_over_budget(case: Case, data: st.DataObject) -> None:
    table = case.program.table
    bounds = verify(table).bounds
    budget = max(bound.total_bytes for bound in bounds)
    fits = replace(table, setup=replace(table.setup, budget_bytes=budget))
    assert not verify(fits).findings
    worst = max(bounds, key=lambda bound: bound.total_bytes)
    names_of = [family.name for family in table.states.families]
    standing = [
        state
        for state in np.flatnonzero(table.states.rank == worst.rank).tolist()
        if table.states.persistent[state]
        and worst.by_family.get(names_of[table.states.family[state]])
    ]
    size = table.states.size_bytes.copy()
    size[data.draw(st.sampled_from(standing))] += 1
    verdict = verify(replace(fits, states=replace(fits.states, size_bytes=size)))
    assert names(verdict) == {Rule.OVER_BUDGET}
    assert verdict.findings[0].rank == worst.rank


@pytest.mark.parametrize("name", ["ratrain", "baseline-1f1b", "zb-h1", "interleaved"])
def test_a_program_that_never_updates_says_so_for_every_unit(name: str) -> None:
    program = small(name, (1,) * 4 if name == "interleaved" else (2, 2))
    lanes = {key: actions for key, actions in program.lanes.items() if key[1] is not Lane.UPDATE}
    findings = verify(replace(program, lanes=lanes)).findings
    silent = [f for f in findings if f.rule is Rule.NOT_UPDATED and "optimizer" in f.state]
    assert len(silent) == len(program.table.states.units.rank)


def test_a_thoroughly_broken_large_program_is_still_judged_in_seconds() -> None:
    program = small("1f1b", (1,) * 32, 256)
    lanes = {
        key: tuple(action for action in actions if action.kind is not Kind.B)
        for key, actions in program.lanes.items()
    }
    broken = replace(program, lanes=lanes)
    assert len(broken.table) > 30_000
    begin = time.process_time()
    assert len(verify(broken).findings) > 10_000
    assert time.process_time() - begin < 5


@settings(quick, max_examples=100)
@given(cases(max_micro_batches=4), st.data())
def test_the_proof_s_smaller_graph_is_stuck_exactly_where_the_whole_one_is(
    case: Case, data: st.DataObject
) -> None:
    program = case.program
    lane = data.draw(st.sampled_from([key for key, lane in program.lanes.items() if len(lane) > 1]))
    places = st.integers(0, len(program.lanes[lane]) - 1)
    source, target = data.draw(places), data.draw(places)

    def move(actions: list[Action]) -> None:
        actions.insert(target, actions.pop(source))

    table = changed(program, *lane, move).table
    assert bool(len(walk(table).stuck)) == bool(len(walk(table.chains.graph).stuck))
