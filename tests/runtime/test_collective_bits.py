"""Collectives of several rounds between ranks: right sums in the order that is said, right gathers,
the bytes that the formula gives, within the memory that the proof counts."""

from __future__ import annotations

import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from in_one_process import close_all, networks, on_all, replicas
from torch import Tensor

from ratrain.cost.algorithms import ALGORITHMS
from ratrain.cost.exchanges import Order, exchange_of
from ratrain.cost.scratch import CHUNK_BYTES, reduction_chunks
from ratrain.errors import PeerDown
from ratrain.program.kind import Lane
from ratrain.runtime.step.exchange import collective
from ratrain.runtime.step.network.links import Routes
from ratrain.runtime.step.network.socket_network import SocketNetwork

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
UNEVEN = [(0, 0, 1, 1), (0, 0, 0, 1, 1), (0, 0, 0, 1, 1, 1, 2, 2), (0, 1, 0, 1), (0, 1, 1, 1)]
PIECE = collective.CHUNK_BYTES // 4


@contextmanager
def crowd_on(hosts: tuple[int, ...]) -> Generator[list[SocketNetwork]]:
    everybody = tuple(range(len(hosts)))
    crowd = networks(replicas(len(hosts)), Routes((), (everybody,)), hosts)
    try:
        yield crowd
    finally:
        close_all(crowd)


def values(place: int, elements: int, dtype: torch.dtype) -> Tensor:
    """A replica's numbers, so unlike in size that the order of a sum shows in its bits."""
    generator = torch.Generator().manual_seed(place)
    scale = torch.randint(-6, 7, (elements,), generator=generator)
    return (torch.randn(elements, generator=generator) * 2.0**scale).to(dtype)


def summed(order: Order, terms: list[Tensor]) -> Tensor:
    """A sum in fp32 in an order as it is said: numbers of places, and tuples from left to right."""
    if isinstance(order, int):
        return terms[order].float()
    total = summed(order[0], terms)
    for term in order[1:]:
        total = total + summed(term, terms)
    return total


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def check(name: str, hosts: tuple[int, ...], part: int, dtype: torch.dtype, *, alias: bool) -> None:
    n, everybody = len(hosts), tuple(range(len(hosts)))
    given_values = [values(place, n * part, dtype) for place in range(n)]
    whole = values(99, n * part, dtype)
    orders = exchange_of(name, hosts).orders

    def work(rank: int, network: SocketNetwork) -> None:
        part_here = slice(rank * part, (rank + 1) * part)
        flat = given_values[rank].clone()
        out = flat[part_here] if alias else torch.empty(part, dtype=dtype)
        network.reduce(flat, out, everybody, name)
        expected = summed(orders[rank], [each[part_here] for each in given_values]).to(dtype)
        assert torch.equal(bits(out), bits(expected))
        flat[part_here] = given_values[rank][part_here]
        assert torch.equal(bits(flat), bits(given_values[rank])), "others' parts were written"
        flat = torch.full_like(whole, float("nan"))
        flat[part_here] = whole[part_here]
        network.gather(Lane.GATHER, flat, everybody, name)
        assert torch.equal(bits(flat), bits(whole))

    with crowd_on(hosts) as crowd:
        on_all(crowd, work)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(list(ALGORITHMS)),
    st.lists(st.integers(0, 3), min_size=2, max_size=8).map(tuple),
    st.integers(1, 300),
    st.sampled_from(DTYPES),
    st.booleans(),
    st.integers(40, 200),
)
def test_any_group_sums_in_the_order_that_is_said_and_gathers_every_part(
    name: str,
    hosts: tuple[int, ...],
    part: int,
    dtype: torch.dtype,
    alias: bool,
    piece: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collective, "_piece_elements", lambda _: piece)
        check(name, hosts, part, dtype, alias=alias)


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("hosts", UNEVEN, ids=str)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_states_of_several_pieces_are_summed_and_gathered(
    name: str, hosts: tuple[int, ...]
) -> None:
    check(name, hosts, 2 * PIECE + 77, torch.float32, alias=True)


def test_the_order_of_a_sum_can_be_seen_in_these_numbers() -> None:
    terms = [values(place, 64, torch.float32) for place in range(4)]
    assert not torch.equal(summed((0, 1, 2, 3), terms), summed(((0, 1), (2, 3)), terms))


# ---- bytes on the line ----------------------------------------------------------------------


def crossing(name: str, hosts: tuple[int, ...], dtype: torch.dtype) -> tuple[list[int], list[int]]:
    """Bytes that leave each host in a reduction, and in a gather, of a MB for each rank."""
    n, everybody = len(hosts), tuple(range(len(hosts)))
    elements = (1 << 20) // dtype.itemsize

    def work(_rank: int, network: SocketNetwork) -> tuple[dict[int, int], dict[int, int]]:
        flat = torch.ones(n * elements, dtype=dtype)
        before = network.sent_to()
        network.reduce(flat, flat[:elements].clone(), everybody, name)
        between = network.sent_to()
        network.gather(Lane.GATHER, flat, everybody, name)
        after = network.sent_to()
        reduced = {peer: between[peer] - before[peer] for peer in between}
        return reduced, {peer: after[peer] - between[peer] for peer in after}

    with crowd_on(hosts) as crowd:
        sent = on_all(crowd, work)

    def across(which: int) -> list[int]:
        return [
            sum(
                size
                for rank in everybody
                for peer, size in sent[rank][which].items()
                if hosts[rank] == host != hosts[peer]
            )
            for host in sorted(set(hosts))
        ]

    return across(0), across(1)


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0,) * 4 + (1,) * 4, (0, 0, 1, 1, 2, 2)], ids=str)
def test_a_hierarchy_sends_one_part_in_so_many_as_a_host_has_ranks_across(
    hosts: tuple[int, ...],
) -> None:
    size = hosts.count(0)
    for direct, less in zip(
        crossing("direct", hosts, torch.float32),
        crossing("hierarchical", hosts, torch.float32),
        strict=True,
    ):
        n = len(hosts)
        assert direct == pytest.approx([size * (n - size) << 20] * len(set(hosts)), rel=1e-3)
        assert less == pytest.approx([each / size for each in direct], rel=1e-3)


def test_hosts_of_unequal_size_send_what_the_others_own() -> None:
    """3 + 2: each host sends its sum of every part that the other owns, once."""
    reduced, gathered = crossing("hierarchical", (0, 0, 0, 1, 1), torch.float32)
    assert reduced == pytest.approx([2 << 20, 3 << 20], rel=1e-3)
    assert gathered == pytest.approx([3 << 20, 2 << 20], rel=1e-3)


def test_sums_of_16_bit_gradients_cross_in_fp32_and_gathers_do_not() -> None:
    reduced, gathered = crossing("hierarchical", (0, 0, 1, 1), torch.bfloat16)
    assert reduced == pytest.approx([4 << 20] * 2, rel=1e-3)
    assert gathered == pytest.approx([2 << 20] * 2, rel=1e-3)


# ---- memory ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hosts", [*UNEVEN, (0,) * 4 + (1,) * 4, tuple(range(8))], ids=str)
@pytest.mark.parametrize("name", ["ring", "hierarchical"])
def test_a_reduction_holds_no_more_than_the_proof_counts(
    name: str, hosts: tuple[int, ...], dtype: torch.dtype
) -> None:
    held, peak = 0, 0
    make = torch.empty_like

    def let_go(size: int) -> None:
        nonlocal held
        held -= size

    def counted(*args: Any, **options: Any) -> Tensor:
        nonlocal held, peak
        made = make(*args, **options)
        held += made.nbytes
        peak = max(peak, held)
        weakref.finalize(made, let_go, made.nbytes)
        return made

    exchange, n = exchange_of(name, hosts), len(hosts)
    flat = torch.ones(n * 4 * PIECE, dtype=dtype)
    # One rank alone, whose peers' numbers are what its memory happens to hold.
    for place in range(n):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "empty_like", counted)
            out = torch.empty(len(flat) // n, dtype=dtype)
            collective.reduce_by(exchange, place, flat, out, lambda _leaving, _landing: None)
    assert 0 < peak <= reduction_chunks(n) * CHUNK_BYTES
    assert peak > reduction_chunks(n) * CHUNK_BYTES / 8, "pieces are needlessly small"
    assert held == 0


# ---- faults ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_peer_that_is_gone_is_named(name: str) -> None:
    hosts, everybody = (0, 0, 1, 1), (0, 1, 2, 3)

    def work(rank: int, network: SocketNetwork) -> str:
        flat = torch.ones(4 * PIECE)
        try:
            if rank != 2:
                network.reduce(flat, flat[:PIECE].clone(), everybody, name)
                return ""
        except PeerDown as error:
            return error.what
        finally:
            network.close()
        return ""

    with crowd_on(hosts) as crowd:
        told = on_all(crowd, work)
    assert any("lost its connection to rank 2" in each for each in told)
    assert all("lost its connection to rank" in told[rank] for rank in (0, 1, 3))
