"""Processes take the program's ranks: by disk, then by kind, then in order."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from ratrain.engines.seating import Arrival, PlannedRank, seats
from ratrain.errors import Infeasible

UNEQUAL = [
    PlannedRank(0, "old"),
    PlannedRank(1, "old"),
    PlannedRank(2, "new"),
    PlannedRank(3, "new"),
]


def hosts(*names: str, **kinds: str) -> list[Arrival]:
    return [Arrival(name, tuple(kinds.get(name, "").split())) for name in names]


def test_hosts_that_say_nothing_are_taken_in_order() -> None:
    assert seats(UNEQUAL, hosts("d", "c", "b", "a")) == [0, 1, 2, 3]


def test_kinds_that_come_in_another_order_are_seated_as_planned() -> None:
    arrived = hosts("a", "b", "c", "d", a="new", b="new", c="old", d="old")
    assert seats(UNEQUAL, arrived) == [2, 3, 0, 1]


def test_kinds_that_are_not_the_plans_are_refused_by_name() -> None:
    arrived = hosts("a", "b", "c", "d", a="new", b="new", c="new", d="old")
    with pytest.raises(
        Infeasible, match=r"2 on old, 2 on new; .*3 on new \(a, b, c\); 1 on old \(d\)"
    ):
        seats(UNEQUAL, arrived)


def test_a_host_without_a_kind_takes_the_seat_that_is_left() -> None:
    arrived = hosts("a", "b", "c", "d", a="new", c="old", d="new")
    assert seats(UNEQUAL, arrived) == [2, 0, 1, 3]


def test_a_host_of_two_kinds_leaves_the_rarer_seats_to_others() -> None:
    arrived = hosts("a", "b", "c", "d", a="old new", b="old", c="old", d="new")
    given = seats(UNEQUAL, arrived)
    assert {given[1], given[2]} == {0, 1} and {given[0], given[3]} == {2, 3}


def test_ranks_of_a_planned_host_stay_together() -> None:
    planned = [PlannedRank(0, "x"), PlannedRank(1, "x"), PlannedRank(0, "x"), PlannedRank(1, "x")]
    assert seats(planned, hosts("a", "a", "b", "b")) == [0, 2, 1, 3]


def test_ranks_are_seated_one_by_one_where_hosts_are_not_as_large_as_planned() -> None:
    arrived = hosts("a", "a", "a", "b", a="new old", b="new")
    assert sorted(seats(UNEQUAL, arrived)) == [0, 1, 2, 3]
    assert seats(UNEQUAL, arrived)[3] in (2, 3)


def test_what_lies_on_a_disk_comes_before_order() -> None:
    planned = [PlannedRank(number, "x") for number in range(3)]
    arrived = [
        Arrival("a", (), frozenset({2})),
        Arrival("b", (), frozenset({0})),
        Arrival("c", (), frozenset({1})),
    ]
    assert seats(planned, arrived) == [2, 0, 1]


def test_disks_that_fit_no_order_are_left_to_the_checkpoint_reader() -> None:
    planned = [PlannedRank(number, "x") for number in range(2)]
    assert seats(planned, [Arrival("a", (), frozenset({1})), Arrival("b", (), frozenset())]) == [
        0,
        1,
    ]


@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_the_planned_hosts_seats_every_rank_on_its_kind_and_disk(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [draw.choice((1, 2, 4)) for _ in range(draw.randint(1, 8))]
    kinds = [draw.choice(("old", "new", "third")) for _ in sizes]
    order = [host for host, size in enumerate(sizes) for _ in range(size)]
    draw.shuffle(order)
    planned = [PlannedRank(host, kinds[host]) for host in order]
    held = {host: frozenset(r for r, p in enumerate(planned) if p.host == host) for host in order}
    has_disks = draw.random() < 0.5
    came = list(range(len(sizes)))
    draw.shuffle(came)
    arrived = [
        Arrival(f"h{host}", (kinds[host],), held[host] if has_disks else None)
        for host in came
        for _ in range(sizes[host])
    ]
    given = seats(planned, arrived)
    assert sorted(given) == list(range(len(planned)))
    for arrival, rank in zip(arrived, given, strict=True):
        assert planned[rank].kind in arrival.kinds
        assert arrival.holds is None or rank in arrival.holds
    together = Counter((a.host, planned[r].host) for a, r in zip(arrived, given, strict=True))
    assert len(together) == len(sizes)  # each planned host is one of those that came
