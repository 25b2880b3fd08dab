"""What ranks do in a collective, and the order of its sums: read off its messages."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratrain.cost.algorithms import ALGORITHMS, Message, Round, declare_algorithm
from ratrain.cost.exchanges import exchange_of, order_words
from ratrain.errors import SpecError


@given(st.sampled_from(list(ALGORITHMS)), st.lists(st.integers(0, 4), min_size=2, max_size=9))
def test_both_ends_of_every_message_expect_it(name: str, hosts: list[int]) -> None:
    exchange = exchange_of(name, tuple(hosts))
    for number in range(exchange.rounds):
        turns = [turns[number] for turns in exchange.turns]
        left = {(place, p.peer, p.parts) for place, turn in enumerate(turns) for p in turn.leaving}
        came = {(p.peer, place, p.parts) for place, turn in enumerate(turns) for p in turn.arriving}
        assert left == came != set()


def test_a_direct_exchange_adds_in_the_order_of_replicas() -> None:
    assert set(exchange_of("direct", (0, 0, 1, 1)).orders) == {(0, 1, 2, 3)}
    assert order_words([("direct", (0, 0, 1, 1))]) == ""


def test_a_hierarchy_adds_each_hosts_replicas_first() -> None:
    assert order_words([("hierarchical", (0, 0, 1, 1))]) == "(0+1)+(2+3)"
    assert order_words([("hierarchical", (0, 0, 0, 1, 1))]) == "(0+1+2)+(3+4)"
    assert order_words([("ring", (0, 0, 1, 1))]) == "ring of 4"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_replicas_are_added_alike_by_all(name: str) -> None:
    assert order_words([(name, (0, 0)), (name, (0, 1))]) == ""


@pytest.mark.parametrize("hosts", [(0, 1, 2, 3), (0, 0, 0), (0, 0, 0, 1)])
def test_a_hierarchy_with_nothing_to_add_first_adds_in_the_order_of_replicas(
    hosts: tuple[int, ...],
) -> None:
    assert order_words([("hierarchical", hosts)]) == ""


# ---- algorithms that are none -----------------------------------------------------------------


def forgetful(hosts: tuple[int, ...]) -> Iterator[Round]:
    """The last rank keeps what it has."""
    n = len(hosts)
    yield Round([Message(a, b, (b,)) for a in range(n - 1) for b in range(n) if a != b])


def twice(_hosts: tuple[int, ...]) -> Iterator[Round]:
    """What was sent is sent again."""
    yield Round([Message(0, 1, (1,))])
    yield Round([Message(0, 1, (1,))])


def nowhere(hosts: tuple[int, ...]) -> Iterator[Round]:
    yield Round([Message(0, len(hosts), (0,))])


@pytest.fixture(params=[forgetful, twice, nowhere], ids=lambda each: each.__name__)
def wrong(request: pytest.FixtureRequest) -> Generator[str]:
    name = request.param.__name__
    declare_algorithm(name, request.param)
    yield name
    del ALGORITHMS[name]


def test_messages_that_are_no_reduce_scatter_are_refused_by_name(wrong: str) -> None:
    with pytest.raises(SpecError, match=f"the collective {wrong} is no reduce-scatter: it "):
        exchange_of(wrong, (0, 0, 1))
