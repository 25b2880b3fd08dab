"""What is promised for the loss of a rank or a host."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from made import replica

from ratrain.program.promise import buddies, loss_words, needed_hosts
from ratrain.program.setup import Setup

HOSTS = st.lists(st.integers(0, 3), min_size=2, max_size=9)


@given(HOSTS)
def test_states_outlive_a_host_where_every_part_of_it_is_elsewhere_too(hosts: list[int]) -> None:
    kept_by = [{hosts[place], hosts[buddies(hosts, place)[0]]} for place in range(len(hosts))]
    lost = {host for host in hosts if any(not keepers - {host} for keepers in kept_by)}
    assert needed_hosts([hosts], divided=True) == lost
    assert needed_hosts([hosts], divided=False) == (set(hosts) if len(set(hosts)) == 1 else set())


@given(HOSTS)
def test_two_equal_hosts_outlive_each_other(first: list[int]) -> None:
    assert not needed_hosts([[*([0] * len(first)), *([1] * len(first))]], divided=True)


def test_the_promise_names_hosts_that_are_needed() -> None:
    setup = Setup((replica((2,), 4, count=4),), sharding=1, mirrored=True)
    assert loss_words(setup) == "no step is lost with one rank"
    assert loss_words(setup, [0, 1], [[0, 1]]) == "no step is lost with one rank"
    both = loss_words(setup, [0, 0, 1, 1], [[0, 0, 1, 1]])
    assert both == "no step is lost with one rank, or with one host"
    assert loss_words(setup, [0, 0, 0, 1], [[0, 0, 0, 1]]) == (
        "no step is lost with one rank; with a host of ranks 0-2 the steps since the latest "
        "checkpoint are"
    )
    assert "latest checkpoint are lost" in loss_words(replace(setup, mirrored=False))
