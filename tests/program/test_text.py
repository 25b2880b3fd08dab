"""The text form reads well, parses back, and says where it is wrong."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from made import replica, small

from ratrain.errors import ProgramError
from ratrain.program.program import Program
from ratrain.program.replicas import Member, Recovery, Replica, Stage, Unit, stage
from ratrain.program.setup import Accumulation, Averages, Budget, Setup
from ratrain.program.strategies import Choices, apply_strategy, strategy
from ratrain.program.text import read_text, write_text
from ratrain.program.verify import verify

GOLDEN = Path(__file__).parent / "golden"
PROGRAMS = {
    "ratrain": small("ratrain"),
    "baseline-1f1b": small("baseline-1f1b"),
    "zb-h1": small("zb-h1", (1, 1, 1, 1)),
    "interleaved": small("interleaved", (1, 1, 1, 1)),
    "ratrain-trained": small("ratrain", clip=True, save=True),
    "ratrain-tied": small("ratrain", clip=True, save=True, tie=True),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_text_of_a_program_is_the_golden_one(name: str) -> None:
    """To renew: python tests/program/test_text.py (and read the difference)."""
    text = (GOLDEN / f"{name}.program").read_text()
    assert write_text(PROGRAMS[name]) == text
    assert read_text(text) == PROGRAMS[name]


def with_everything(member: Member, is_last: bool) -> Member:
    return replace(
        member,
        recovery=Recovery.FORWARD,
        tensor=2 if is_last else 4,
        activation_tier="host" * is_last,
    )


def test_every_field_of_the_header_survives() -> None:
    unequal = Setup((replica((2, 2), 4),)).with_members(with_everything).replicas[0]
    two = tuple(
        Stage(tuple(replace(stage.only, rank=rank, serves=serves) for rank, serves in members))
        for stage, members in zip(
            replica((2, 2), 4).stages,
            ([(0, (0, 1, 3)), (1, (2,))], [(2, (0, 2)), (3, (1, 3))]),
            strict=True,
        )
    )
    sharded = Setup(
        (replace(replica((3, 1), 4), count=3), unequal),
        sharding=2,
        accumulation=Accumulation.SHARDED,
        split_backward=True,
        recovery_buffer=5,
        transit_slots=3,
        bucket_bytes=1 << 20,
        budget_bytes=20_000_000_000,
        tier="device memory #1",
        budgets=(Budget(0, 1, "", 8_000), Budget(2, 2, "host", 1)),
    )
    tied = replace(
        sharded,
        accumulation=Accumulation.LOCAL,
        tied=True,
        sequence_parallel=True,
        arrival_places=True,
        together=4,
        gathers_per_pass=True,
        notes=("a note", "another,%"),
    )
    sending = replace(sharded, backward_sends=True, error_feedback=2)
    unlike = Setup((Replica(two, 4), replica((1, 3), 2)))
    copied = unlike.with_members(
        lambda member, _: replace(
            member, units=tuple(replace(unit, copy_bytes=9) for unit in member.units)
        )
    )
    early = replace(copied, period=3, averages=Averages.EARLY_START)
    averaging = replace(early, outer=True, average_wire="int4")
    validation = Setup((replica((2, 2), 4),), forward_only=True)
    mirrored = Setup((replica((2, 2), 4),), mirrored=True, network_in_turn=True)
    default = Setup((replica((1,), 1),))
    setups = (sharded, tied, sending, averaging, validation, mirrored)
    for field in fields(Setup):
        given = {getattr(setup, field.name) for setup in setups}
        assert given != {getattr(default, field.name)}, field.name
    for setup in setups:
        program = Program(setup, {}, ("a pass", "another"))
        assert read_text(write_text(program)) == program


def test_every_field_of_a_unit_survives() -> None:
    unit = Unit(
        "q",
        1,
        2,
        3,
        4,
        5,
        recoverable=False,
        head=True,
        scratch_bytes=6,
        scores_bytes=2,
        copy_bytes=7,
        mirror_bytes=8,
    )
    frozen = Unit("f", 1, frozen=True)  # which has no gradient
    for field in fields(Unit):
        values = {getattr(each, field.name) for each in (unit, frozen)}
        assert field.name == "name" or values != {field.default}, field.name
    program = Program(Setup((Replica((stage(0, (frozen, unit)),), 4),)), {})
    assert read_text(write_text(program)) == program


@pytest.mark.parametrize(
    "name", ["", "%", "0-3", "1..2", "a b", "x,y", "q:1", "#1", "007", "é", "7"]
)
def test_any_unit_name_survives(name: str) -> None:
    program = Program(Setup((Replica((stage(0, (Unit(name), Unit("8"))),), 1),)), {})
    assert read_text(write_text(program)) == program


def test_sixteen_equal_stages_have_a_short_header() -> None:
    program = apply_strategy(
        strategy("ratrain"), Setup((replica((4,) * 16, 8, 16, ends=True),)), Choices()
    )
    header = write_text(program).partition("\nrank ")[0].splitlines()
    assert len([line for line in header if line.startswith("stage")]) == 3
    assert len(header) < 25


def test_comments_and_blank_lines_mean_nothing_and_fields_may_be_left_out() -> None:
    text = """
    # a comment
    ratrain program 1
    unit a 1 2_0 3 4 5 yes no   # sizes in bytes

    replica 0 micro_batches 2 count 1
    stage 0 rank 0 recovery none output_bytes 0 units a:x
    rank 0 compute 0F0 0B0 0F1 0B1   # 1F1B
    rank 0 update 0UpdateShard
    """
    program = read_text(text)
    assert program.setup == Setup((Replica((stage(0, (Unit("x", 1, 20, 3, 4, 5),)),), 2),))
    assert not verify(program).findings


HEAD = """ratrain program 1
unit a 1 2 3 4 5 yes no
replica 0 micro_batches 2 count 1
stage 0 rank 0 recovery none output_bytes 0 units a:x
"""


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("", "job.program", "empty"),
        ("nonsense", "line 1", "not a program's text"),
        ("ratrain program 2", "line 1", "version 2"),
        ("ratrain program 1", "job.program", "no replica"),
        (HEAD + "rank 0 compute 0F0 0Q1", "line 5", "'0Q1'"),
        (HEAD + "rank 0 compute 0F0 F", "line 5", "'F'"),
        (HEAD + "rank 0 computer 0F0", "line 5", "'computer'"),
        (HEAD + "rank x compute 0F0", "line 5", "'x'"),
        (HEAD + "rank 0 compute 0F0\nrank 0 compute", "line 6", "given twice"),
        (HEAD + "rank 0 send_f 0.1SEND_F0", "line 5", "'0.1SEND_F0'"),
        (HEAD + "sharding two", "line 5", "'two'"),
        (HEAD + "sharding 1\nsharding 1", "line 6", "given twice"),
        (HEAD + "sharding 7", "job.program", "sharding level 7"),
        (HEAD + "speed 9", "line 5", "'speed'"),
        (HEAD + "stage 2 rank 0 recovery none output_bytes 0 units a:x", "line 5", "1 comes next"),
        (HEAD + "stage 1 rank 0 recovery soon output_bytes 0 units a:x", "line 5", "'soon'"),
        (HEAD + "stage 1 rank 0 recovery none output_bytes -1 units a:x", "line 5", "'-1'"),
        (HEAD + "stage 1 rank 0 recovery none output_bytes 0 units b:x", "line 5", "'b:x'"),
        (HEAD + "stage 1..2 rank 0..1 recovery none output_bytes 0 units a:1..3", "line", "share"),
        (HEAD + "stage 1 rank 0 output_bytes 0 units a:x", "line 5", "recovery"),
        (HEAD + "stage", "line 5", "expected rank"),
        (HEAD + "replica 2 micro_batches 2 count 1", "line 5", "1 comes next"),
        (HEAD + "unit b 1 2", "line 5", "8 values, not 3"),
        (HEAD + "rank 0", "line 5", "a rank and a lane"),
    ],
)  # fmt: skip
def test_an_error_names_the_line_and_the_word(text: str, where: str, what: str) -> None:
    with pytest.raises(ProgramError) as caught:
        read_text(text, "job.program")
    assert str(caught.value).startswith("job.program")
    assert where in str(caught.value)
    assert what in str(caught.value)


def test_a_hundred_thousand_actions_come_back_from_text_as_they_were() -> None:
    program = apply_strategy(strategy("ratrain"), Setup((replica((4,) * 16, 440, 16),)), Choices())
    assert sum(map(len, program.lanes.values())) > 100_000
    assert read_text(write_text(program)) == program


if __name__ == "__main__":
    for name, program in PROGRAMS.items():
        (GOLDEN / f"{name}.program").write_text(write_text(program))
