"""Stages that compute other numbers of their replica's micro-batches at once: sound in every order
that has a place for them, in any mix of sizes; and what is broken in them is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import LAYER, layers_of

from ratrain.errors import ProgramError
from ratrain.program import repeating
from ratrain.program.kind import Kind, Lane
from ratrain.program.pipelining.csv import write_csv
from ratrain.program.program import Program
from ratrain.program.repeating import shortest
from ratrain.program.replicas import Member, Replica, Stage, Unit, stage
from ratrain.program.settled import proved
from ratrain.program.setup import Setup
from ratrain.program.skeletons import build, joining_skeletons
from ratrain.program.strategies import STRATEGIES, Choices, apply_strategy, strategy
from ratrain.program.text.grid import draw
from ratrain.program.text.read import read_text
from ratrain.program.text.write import write_text
from ratrain.program.uses import WRITE
from ratrain.program.verify import Rule, verify
from ratrain.simulate.costs import Costs, fixed_work
from ratrain.simulate.simulate import simulate

BOUNDARY = 7


def widened(unit: Unit, joined: int) -> Unit:
    """A unit that computes so many micro-batches at once."""
    return replace(
        unit, input_bytes=unit.input_bytes * joined, saved_bytes=unit.saved_bytes * joined
    )


def of_joined(joined: tuple[int, ...], micro_batches: int, count: int = 1) -> Replica:
    """A replica of one or two layers a stage, whose stages join so many micro-batches."""
    cut = tuple(1 + number % 2 for number in range(len(joined)))
    stages = tuple(
        Stage(
            (
                Member(
                    rank,
                    tuple(widened(unit, size) for unit in units),
                    BOUNDARY * size if rank < len(joined) - 1 else 0,
                    joined=size,
                ),
            )
        )
        for rank, (units, size) in enumerate(zip(layers_of(cut, ends=True), joined, strict=True))
    )
    return Replica(stages, micro_batches, count)


@st.composite
def joined_setups(draw: st.DrawFn) -> Setup:
    """One replica, or two of the same depth that join other numbers; sizes divide one another."""
    depth = draw(st.integers(2, 5))
    replicas: list[Replica] = []
    for _ in range(draw(st.integers(1, 2))):
        base = draw(st.sampled_from((1, 2, 3)))
        sizes = st.sampled_from((1, base, base * 2, base * 4))
        joined = tuple(draw(st.lists(sizes, min_size=depth, max_size=depth)))
        rounds = draw(st.integers(1, 4))
        replicas.append(of_joined(joined, base * 4 * rounds, draw(st.integers(1, 2))))
    return Setup(tuple(replicas))


NAMES = [name for name in STRATEGIES if STRATEGIES[name].skeleton in joining_skeletons()]

many = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@many
@given(joined_setups(), st.sampled_from(NAMES), st.booleans(), st.booleans())
def test_every_mix_of_sizes_is_sound_in_every_order_and_reads_back_from_its_text(
    setup: Setup, name: str, clip: bool, save: bool
) -> None:
    chosen = strategy(name)
    if chosen.sharding == 3 and not chosen.gathers_once:
        setup = replace(setup, replicas=setup.replicas[:1])
    program = apply_strategy(chosen, setup, Choices(clip=clip, save=save))
    assert verify(program).findings == ()
    assert read_text(write_text(program)) == program


def of_sizes(*joined: int, name: str = "1f1b", micro_batches: int = 8) -> Program:
    return build(name, Setup((of_joined(joined, micro_batches),)))


def test_a_boundary_is_crossed_in_messages_of_the_smaller_size() -> None:
    program = of_sizes(2, 1, 4)
    sent = {
        (rank, lane.word): [action.micro_batch for action in program.lane(rank, lane)]
        for rank in range(3)
        for lane in (Lane.SEND_F, Lane.RECV_F, Lane.SEND_B, Lane.RECV_B)
        if program.lane(rank, lane)
    }
    each = list(range(8))
    assert all(numbers == each for numbers in sent.values()) and len(sent) == 8
    two_and_four = of_sizes(4, 2)
    assert [a.micro_batch for a in two_and_four.lane(0, Lane.SEND_F)] == [0, 2, 4, 6]
    forwards = [a for a in two_and_four.lane(0, Lane.COMPUTE) if a.kind is Kind.F and not a.unit]
    assert [action.micro_batch for action in forwards] == [0, 4]


def test_a_stage_has_as_many_under_way_as_keeps_both_neighbours_at_work() -> None:
    """1F1B, in micro-batches: a stage's forwards before its first backward."""

    def under_way(program: Program, rank: int, joined: int) -> int:
        lane = [action for action in program.lane(rank, Lane.COMPUTE) if action.unit == 0]
        return [action.kind for action in lane].index(Kind.B) * joined

    program = of_sizes(1, 1, 2, 4, micro_batches=16)
    assert [under_way(program, rank, n) for rank, n in enumerate((1, 1, 2, 4))] == [11, 10, 8, 4]
    program = of_sizes(4, 2, 1, micro_batches=16)
    assert [under_way(program, rank, n) for rank, n in enumerate((4, 2, 1))] == [8, 4, 1]


def test_what_is_joined_is_held_whole_from_its_first_part_on() -> None:
    """The first of eight messages makes all of the tensor that they fill."""
    table = of_sizes(1, 8).table
    (receives,) = np.nonzero(table.kind == Kind.RECV_F)
    writes = [np.flatnonzero((table.uses.op == op) & (table.uses.mode == WRITE)) for op in receives]
    states = {int(table.uses.state[rows[0]]) for rows in writes}
    assert [int(table.uses.version[rows[0]]) for rows in writes] == list(range(1, 9))
    (state,) = states
    assert table.states.size_bytes[state] == 8 * BOUNDARY


@many
@given(joined_setups(), st.data())
def test_a_lost_part_of_a_boundary_tensor_is_found(setup: Setup, data: st.DataObject) -> None:
    program = build("1f1b", setup)
    lanes = [key for key in program.lanes if key[1] in (Lane.SEND_F, Lane.RECV_F, Lane.SEND_B)]
    key = data.draw(st.sampled_from(sorted(lanes)))
    actions = list(program.lanes[key])
    del actions[data.draw(st.integers(0, len(actions) - 1))]
    found = verify(replace(program, lanes={**program.lanes, key: tuple(actions)})).findings
    assert {Rule.MISSING_SEND, Rule.MISSING_RECEIVE} & {finding.rule for finding in found}


@many
@given(joined_setups(), st.data())
def test_a_message_lost_at_both_ends_is_found(setup: Setup, data: st.DataObject) -> None:
    """Then no half of it is left: what it brought is missing."""
    program = build("1f1b", setup)
    keys = [key for key in program.lanes if key[1] is Lane.SEND_F]
    key = data.draw(st.sampled_from(sorted(keys)))
    lost = data.draw(st.sampled_from(list(program.lanes[key])))
    other = key[0] + 1, Lane.RECV_F
    lanes = {
        **program.lanes,
        key: tuple(a for a in program.lanes[key] if a != lost),
        other: tuple(a for a in program.lanes[other] if a.micro_batch != lost.micro_batch),
    }
    rules = {finding.rule for finding in verify(replace(program, lanes=lanes)).findings}
    assert Rule.READ_BEFORE_WRITE in rules


def test_parts_received_in_another_order_are_found() -> None:
    program = of_sizes(1, 2)
    key = 1, Lane.RECV_F
    first, second, *others = program.lanes[key]
    lanes = {**program.lanes, key: (second, first, *others)}
    rules = {finding.rule for finding in verify(replace(program, lanes=lanes)).findings}
    assert {Rule.MESSAGE_ORDER, Rule.READ_BEFORE_WRITE} & rules


@pytest.mark.parametrize(
    ("word", "joined"), [("1F1", "1F0"), ("1RECV_F1", "1RECV_F0"), ("0SEND_F1", "0SEND_F0")]
)
def test_an_op_that_names_a_micro_batch_within_its_own_is_refused(word: str, joined: str) -> None:
    """Of stages that both join two, all ops are named by the first of the two."""
    stages = tuple(
        replace(stage, members=(replace(stage.only, units=stage.only.units[:1]),))
        for stage in of_joined((2, 2), 4).stages
    )
    text = write_text(build("1f1b", Setup((Replica(stages, 4),))))
    assert f" {joined} " in text or f" {joined}\n" in text
    with pytest.raises(ProgramError, match="names a micro-batch that the setup does not have"):
        verify(read_text(text.replace(f" {joined}", f" {word}", 1)))


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        (lambda: Setup((of_joined((2, 3), 6),)), "which is no multiple"),
        (lambda: Setup((of_joined((1, 4), 6),)), "leaves a rest"),
        (lambda: Setup((of_joined((1, 0), 6),)), "computes no micro-batch at once"),
        (lambda: Setup((of_joined((1, 2), 4),), together=2), "layer by layer"),
        (lambda: Setup((of_joined((1, 2), 4),), sequence_parallel=True), "hold other rows"),
    ],
)
def test_sizes_that_no_program_can_have_are_refused(setup, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        setup()


@pytest.mark.parametrize("name", ["interleaved", "layer-major-2"])
def test_an_order_without_a_place_for_joined_micro_batches_says_so(name: str) -> None:
    with pytest.raises(
        ProgramError, match=r"no order for stages that compute other|layer by layer"
    ):
        apply_strategy(
            replace(strategy("1f1b"), skeleton=name), Setup((of_joined((1, 2), 4),)), Choices()
        )


def test_an_op_is_drawn_as_long_as_its_micro_batches_one_by_one() -> None:
    cut = ((LAYER,), (LAYER,))
    stages = tuple(
        stage(rank, tuple(replace(unit, name=str(rank)) for unit in units), BOUNDARY)
        for rank, units in enumerate(cut)
    )
    first = replace(stages[0], members=(replace(stages[0].only, joined=2),))
    picture = draw(build("gpipe", Setup((Replica((first, stages[1]), 4),))))
    assert picture == [
        "time   0     2     4     6     8     10    12    14    16",
        "rank 0 F0--- F2--- .  .  .  .  .  .  B0--------- B2---------",
        "rank 1 .  .  F0 F1 F2 F3 B0--- B1--- B2--- B3--- .  .  .  .",
    ]


def test_the_schedule_files_of_pytorch_have_no_word_for_joined_micro_batches() -> None:
    with pytest.raises(ProgramError, match="has no word for a stage that computes several"):
        write_csv(of_sizes(1, 2))


@pytest.mark.parametrize("name", ["ratrain", "1f1b", "zb-h1"])
@pytest.mark.parametrize("joined", [(1, 2), (4, 1, 2), (2, 2, 4)], ids=str)
def test_a_long_program_of_joined_micro_batches_is_proved_by_a_short_one(
    joined: tuple[int, ...], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeating, "SMALL", 0)
    setup = Setup((of_joined(joined, 160, 2),))

    def make(setup: Setup) -> Program:
        return apply_strategy(strategy(name), setup, Choices())

    kept, whole = shortest(make, setup, strategy(name).skeleton), make(setup)
    assert kept is not None and kept.written_out() == whole
    verdict, long = verify(whole), proved(make, setup, strategy(name).skeleton)
    assert len(long.short.table) < len(whole.table)
    assert [b.total_bytes for b in long.verdict.bounds] == [b.total_bytes for b in verdict.bounds]


def test_a_stage_with_a_fixed_time_per_op_gains_by_joining() -> None:
    """Each op takes 1 s, however many micro-batches it computes: the stage that joins four is at
    work for a quarter of its ops."""

    def step_s(*joined: int) -> float:
        program = of_sizes(*joined)
        table = program.table
        zero = np.zeros(len(table.states.units.rank))
        work = {kind: fixed_work(zero) for kind in Kind}
        work |= {kind: fixed_work(zero + 1) for kind in (Kind.F, Kind.B)}
        return simulate(program, Costs(work, np.ones(1))).step_time_s

    # The second stage, of two layers and a head, does 6 s of ops for each of 8, or of 2.
    assert step_s(1, 1) > 8 * 6 > step_s(1, 4)
