"""Collectives as messages: what each algorithm sends, and what that takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratrain.cost.algorithms import (
    ALGORITHMS,
    AUTO,
    Group,
    counted_loads,
    half,
    loads,
    of_messages,
    ring,
)
from ratrain.cost.collectives import Loss, ring_half
from ratrain.describe.cluster import Link, SizePoint

FAST = Link(5e-6, 50e9, "a test")
SLOW = Link(1e-4, 1e9, "a test", shared_by="host", overhead_s=1e-6, collective_s=2e-5)
BY_SIZE = Link(1e-4, 1e9, "a test", by_size=(SizePoint(1000, 1e7), SizePoint(10**6, 1e9)))


def group(per_host: int, hosts: int, across: Link = SLOW, sharing: float = 1.0) -> Group:
    members = tuple(host for host in range(hosts) for _ in range(per_host))
    if hosts == 1:
        return Group(members, FAST, FAST, FAST)
    shared = across.divided(sharing) if across.shared_by == "host" else across
    return Group(members, shared, across, FAST, sharing)


@pytest.mark.parametrize("name", ALGORITHMS)
@given(per_host=st.integers(1, 6), hosts=st.integers(1, 6))
def test_each_rank_sends_all_but_its_own_part_of_a_state(
    name: str, per_host: int, hosts: int
) -> None:
    members = group(per_host, hosts).hosts
    sent, received = Counter[int](), Counter[int]()
    for round_ in ALGORITHMS[name](members):
        for source, target, parts in round_.messages:
            sent[source] += len(parts)
            received[target] += len(parts)
    n = len(members)
    for ends in (sent, received):
        assert [ends[rank] for rank in range(n)] == [n - 1] * n


@pytest.mark.parametrize("name", ALGORITHMS)
@given(per_host=st.integers(1, 6), hosts=st.integers(1, 6))
def test_processors_move_the_same_bytes_inside_hosts_as_between_them(
    name: str, per_host: int, hosts: int
) -> None:
    n = per_host * hosts
    moved_bytes = half(name, 1e6, group(per_host, hosts)).moved_bytes
    assert moved_bytes == pytest.approx(1e6 * (n - 1) / n)


@pytest.mark.parametrize("name", ["direct", "hierarchical"])
@given(
    hosts=st.lists(st.integers(0, 4), min_size=2, max_size=12).map(tuple),
    widened=st.sampled_from([1.0, 2.0]),
)
def test_loads_in_closed_form_are_those_of_the_messages(
    name: str, hosts: tuple[int, ...], widened: float
) -> None:
    closed = loads(ALGORITHMS[name], hosts, widened)
    counted = counted_loads(ALGORITHMS[name], hosts, widened)
    assert len(closed) == len(counted)
    for load, other in zip(closed, counted, strict=True):
        for level, same in ((load.inside, other.inside), (load.across, other.across)):
            assert astuple(level) == pytest.approx(astuple(same))


@pytest.mark.parametrize("name", [AUTO, *ALGORITHMS])
def test_a_large_group_is_priced_as_fast_as_a_small_one(name: str) -> None:
    """65,536 ranks, of whose messages there are too many to count."""
    assert half(name, 1e6, group(8, 8192), 2.0).alone_s(1e9) > 0


@pytest.mark.parametrize("per_host", [1, 2, 4])
def test_sums_of_narrow_elements_cross_in_wide_ones(per_host: int) -> None:
    """What a rank has of its own leaves as it is, and what a host has summed is twice as long."""
    here = group(per_host, 2)
    narrow, wide = (half("hierarchical", 1e6, here, widened) for widened in (1.0, 2.0))
    assert wide.volume_bytes == pytest.approx(narrow.volume_bytes * (1 if per_host == 1 else 2))
    assert half("direct", 1e6, here, 2.0) == half("direct", 1e6, here)


@given(
    st.integers(2, 8),
    st.sampled_from([SLOW, BY_SIZE]),
    st.sampled_from([1.0, 2.0, 8.0]),
    st.floats(1, 1e10),
    st.sampled_from([1.0, 2.0]),
)
def test_a_rings_messages_come_to_its_closed_formula(
    hosts: int, across: Link, sharing: float, size_bytes: float, widened: float
) -> None:
    here = group(1, hosts, across, sharing)
    by_messages, closed = (
        of_messages(ring, size_bytes, here, widened),
        ring_half(size_bytes, hosts, here.link, widened),
    )
    assert by_messages.volume_bytes == pytest.approx(closed.volume_bytes)
    assert by_messages.latency_s == pytest.approx(closed.latency_s)
    assert by_messages.driving_s == pytest.approx(closed.driving_s)


def test_ranks_of_one_host_use_the_links_inside_it() -> None:
    sent = of_messages(ring, 1e9, group(4, 1))
    assert sent.alone_s(FAST.bandwidth_bytes_per_s) == pytest.approx(3 * (5e-6 + 0.25e9 / 50e9))


def test_across_hosts_a_hierarchy_sends_what_one_host_needs() -> None:
    """Two hosts of four: 1/8 from each rank, in place of 7/8 through each host's link."""
    here = group(4, 2)
    whole = 1e9
    assert half("ring", whole, here).volume_bytes == pytest.approx(7 / 8 * whole)
    assert half("hierarchical", whole, here).volume_bytes == pytest.approx(4 / 8 * whole)
    assert half("direct", whole, here).volume_bytes == pytest.approx(16 / 8 * whole)


def test_direct_exchange_is_fast_for_small_states_and_slow_for_large_ones() -> None:
    here = group(1, 16)
    assert half("direct", 1e3, here).alone_s(1e9) < half("ring", 1e3, here).alone_s(1e9) / 5
    many = group(4, 4)
    assert half("direct", 1e9, many).alone_s(1e9) > half("hierarchical", 1e9, many).alone_s(1e9)


@given(st.integers(1, 6), st.integers(1, 6), st.floats(1, 1e10))
def test_auto_is_the_fastest_of_all(per_host: int, hosts: int, size_bytes: float) -> None:
    """With what driving its messages takes from compute."""
    here = replace(group(per_host, hosts), loss=Loss(1e-3, 1e-9))

    def time_s(name: str) -> float:
        sent = here.loss.driven(half(name, size_bytes, here))
        return sent.alone_s(here.link.bandwidth_bytes_per_s) + sent.driving_s

    assert time_s(AUTO) == min(map(time_s, ALGORITHMS))


def test_a_group_of_one_sends_nothing() -> None:
    for name in ALGORITHMS:
        sent = half(name, 1e9, group(1, 1))
        assert (sent.latency_s, sent.volume_bytes, sent.driving_s) == (0, 0, 0)
