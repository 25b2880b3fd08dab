"""Long programs that are kept short: the same programs, the same proofs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import Case, cases, replica

from ratrain.errors import ProgramError
from ratrain.program import repeating as module
from ratrain.program.repeating import Repeating, shortest, with_micro_batches
from ratrain.program.settled import Proved, proved
from ratrain.program.setup import Setup
from ratrain.program.strategies import Choices, apply_strategy, strategy
from ratrain.program.text import read_any, write_text
from ratrain.program.verify import verify

general = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def made_by(case: Case, setup: Setup):
    return apply_strategy(case.strategy, setup, case.choices)


@pytest.fixture(autouse=True)
def small_programs_are_kept_short_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise no program here would be large enough."""
    monkeypatch.setattr(module, "SMALL", 0)


def of_many(case: Case, rounds: int) -> Setup:
    """The case's setup with as many micro-batches for every replica: some rounds of the ranks."""
    ranks = max(replica.ranks for replica in case.setup.replicas)
    single = replace(case.setup, replicas=case.setup.replicas[:1])
    return with_micro_batches(single, lambda _: ranks * rounds)


@general
@given(cases(), st.integers(15, 40))
def test_a_long_program_kept_short_is_the_one_that_would_be_written_out(
    case: Case, rounds: int
) -> None:
    setup = of_many(case, rounds)
    kept = shortest(lambda s: made_by(case, s), setup, case.strategy.skeleton)
    if kept is not None:
        whole = made_by(case, setup)
        assert kept.setup == whole.setup
        assert kept.written_out() == whole
        assert kept.ops == len(whole.table)


@pytest.mark.slow
@general
@given(cases(), st.integers(20, 60))
def test_what_is_proved_of_a_short_program_is_what_is_proved_of_the_long_one(
    case: Case, rounds: int
) -> None:
    setup = of_many(case, rounds)
    short = proved(lambda s: made_by(case, s), setup, case.strategy.skeleton)
    whole = verify(made_by(case, setup))
    assert [(b.total_bytes, b.by_family) for b in short.verdict.bounds] == [
        (b.total_bytes, b.by_family) for b in whole.bounds
    ]
    assert short.verdict.sound == whole.sound


def proved_long(micro_batches: int) -> Proved:
    """A long program with its verdict."""
    setup = Setup((replica((2,) * 8, micro_batches, 4, ends=True),))
    return proved(lambda s: apply_strategy(strategy("ratrain"), s, Choices()), setup, "1f1b")


def long_program(micro_batches: int = 5000) -> Repeating:
    program = proved_long(micro_batches).program
    assert isinstance(program, Repeating)
    return program


def test_a_million_micro_batches_are_proved_by_a_few_dozen() -> None:
    long = proved_long(1_000_000)
    assert isinstance(long.program, Repeating)
    assert long.program.ops > 5 * 10**7
    assert long.short.setup.replicas[0].micro_batches < 100
    assert long.verdict.sound


@pytest.mark.parametrize(
    ("was", "now", "says", "fix"),
    [
        ("repeats 1 ", "repeats 1 2 ", "not 3 words", "repeats 1 998"),
        ("repeats 1 ", "repeats 1 3\nrepeats 1 ", "given twice", "leave one of them out"),
        ("repeats 1 ", "repeats 0 ", "later micro-batches", "above 0"),
        ("repeats 1 ", "repeats 999999 ", "at most 1,000,000 are read", "repeats"),
        ("repeats 1 ", "# ", "no line above says how often", "repeats 1 998"),
        (" ) ", " ", "in one ( and one )", "each of them once"),
        (" ( ", " ( ( ", "in one ( and one )", "each of them once"),
    ],
)
def test_a_wrong_repetition_is_told_with_its_place_and_fix(
    was: str, now: str, says: str, fix: str
) -> None:
    text = write_text(long_program())
    with pytest.raises(ProgramError) as caught:
        read_any(text.replace(was, now, 1), "long.program")
    assert says in caught.value.what
    assert fix in caught.value.fix
    assert caught.value.place.startswith("long.program")


def test_a_program_of_too_many_ops_is_not_written_out() -> None:
    program = long_program(1_000_000)
    with pytest.raises(ProgramError, match="at most 10,000,000"):
        program.written_out()
