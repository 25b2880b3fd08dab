"""Means of what replicas learnt, sent as integers with error feedback, over real connections."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from in_one_process import close_all, networks, on_all, replicas
from torch import Tensor

from ratrain.cost.scratch import RESIDUAL_ELEMENTS
from ratrain.describe.average_wires import AVERAGE_WIRES, BLOCK
from ratrain.errors import RatrainError, RunFailed, TransportError
from ratrain.program.kind import Lane
from ratrain.runtime.step.exchange.integers import INTEGERS, Averaging, Integers
from ratrain.runtime.step.network.links import Routes
from ratrain.runtime.step.network.socket_network import SocketNetwork

wires = pytest.mark.parametrize("integers", INTEGERS.values(), ids=INTEGERS)


@contextmanager
def meeting(count: int) -> Generator[list[SocketNetwork]]:
    crowd = networks(replicas(count), Routes((), (tuple(range(count)),)), tuple(range(count)))
    try:
        yield crowd
    finally:
        close_all(crowd)


def drawn(elements: int, seed: int) -> Tensor:
    """Numbers of unlike size in each block, some blocks of zeros."""
    dice = torch.Generator().manual_seed(seed)
    sizes = torch.randint(-20, 3, (elements // BLOCK, 1), generator=dice).float().exp2()
    rows = torch.randn(elements // BLOCK, BLOCK, generator=dice) * sizes
    return rows.where(torch.rand(elements // BLOCK, 1, generator=dice) > 0.1, 0.0).flatten()


def averaged(
    crowd: list[SocketNetwork], integers: Integers, learnt: list[Tensor], kept: list[Tensor]
) -> None:
    everybody = tuple(range(len(crowd)))

    def work(rank: int, network: SocketNetwork) -> None:
        Averaging(network, Lane.REDUCE, everybody, rank).average(integers, learnt[rank], kept[rank])

    on_all(crowd, work)


@wires
@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 999))
def test_all_have_the_same_mean_and_what_nobody_was_told_is_kept(
    integers: Integers, count: int, blocks: int, seed: int
) -> None:
    """Over several meetings: the means that were told, and the mean of what is kept, are together
    the mean of all that was learnt."""
    elements = count * blocks * BLOCK
    kept = [torch.zeros(elements) for _ in range(count)]
    told, meant = (torch.zeros(elements, dtype=torch.float64) for _ in range(2))
    with meeting(count) as crowd:
        for turn in range(5):
            learnt = [drawn(elements, 100 * seed + 10 * turn + rank) for rank in range(count)]
            meant += sum(each.double() for each in learnt) / count
            averaged(crowd, integers, learnt, kept)
            assert all(torch.equal(each, learnt[0]) for each in learnt), "one meaning"
            told += learnt[0]
    left = sum(each.double() for each in kept) / count
    torch.testing.assert_close(told + left, meant, rtol=0, atol=1e-5)


@wires
def test_errors_do_not_add_up_with_feedback_and_do_without(integers: Integers) -> None:
    """Two replicas that learn the same little step in every period, beside a large one in the same
    block, of which rounding would leave nothing."""
    step = torch.full((2 * BLOCK,), 1e-3 / integers.top)
    step[::BLOCK] = 1.0
    missing: dict[bool, list[float]] = {True: [], False: []}
    with meeting(2) as crowd:
        for feeds_back, found in missing.items():
            kept, told = [torch.zeros_like(step) for _ in range(2)], torch.zeros_like(step)
            for turn in range(1, 41):
                learnt = [step.clone() for _ in range(2)]
                averaged(crowd, integers, learnt, kept)
                told += learnt[0]
                found.append(float((told - turn * step)[1:BLOCK].abs().max()))
                if not feeds_back:
                    kept = [torch.zeros_like(step) for _ in range(2)]
    assert max(missing[True]) < 3 / integers.top, "never more than some steps of the block's scale"
    assert missing[False][-1] == pytest.approx(40 * float(step[1])), "all of it is lost"
    longer = [missing[False][turn] - missing[False][turn // 2] for turn in (19, 39)]
    assert longer[1] > 1.9 * longer[0] > 0


@wires
def test_units_of_many_pieces_send_the_bytes_that_their_wire_is_priced_with(
    integers: Integers,
) -> None:
    elements = 2 * (RESIDUAL_ELEMENTS + 3 * BLOCK)
    with meeting(2) as crowd:
        learnt, kept = ([drawn(elements, k + s) for k in range(2)] for s in (0, 9))
        expected = sum(each.double() for each in (*learnt, *kept)) / 2
        before = [network.sent_bytes for network in crowd]
        averaged(crowd, integers, learnt, kept)
        sent = [network.sent_bytes - had for network, had in zip(crowd, before, strict=True)]
    assert torch.equal(learnt[0], learnt[1])
    left = (kept[0].double() + kept[1].double()) / 2
    torch.testing.assert_close(learnt[0] + left, expected, rtol=0, atol=1e-5)
    wire = AVERAGE_WIRES["int8" if integers.bits == 8 else "int4"]
    for each in sent:  # both halves of an exchange of two, and frames
        assert each == pytest.approx(wire.bytes_per_param * elements, rel=1e-3)


@wires
def test_every_integer_is_read_as_it_was_rounded(integers: Integers) -> None:
    values = drawn(64 * BLOCK, 5)
    coded = torch.zeros(integers.size_bytes(len(values)), dtype=torch.uint8)
    sent = integers.encode(values, coded)
    assert torch.equal(integers.decode(coded, 0), sent)
    largest = values.view(-1, BLOCK).abs().amax(1)
    errors = (sent - values).view(-1, BLOCK).abs().amax(1)
    assert (errors <= 0.51 * largest / integers.top + 1e-30).all()
    assert not sent[values == 0].any()


def test_numbers_too_small_for_a_scale_wait() -> None:
    integers, kept = INTEGERS["int8"], torch.full((BLOCK,), 1e-44)
    coded = torch.zeros(integers.size_bytes(BLOCK), dtype=torch.uint8)
    before = kept.clone()
    integers.send(kept, coded)
    assert torch.equal(kept, before) and not integers.decode(coded, 0).any()


# ---- what goes wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"\xff\xff", b"\x80\x7f", b"\x80\xbf"], ids=str)
def test_bytes_that_are_no_blocks_are_one_clear_message(damage: bytes) -> None:
    """Scales that are not finite, or negative."""
    integers = INTEGERS["int8"]
    coded = torch.zeros(integers.size_bytes(4 * BLOCK), dtype=torch.uint8)
    integers.encode(drawn(4 * BLOCK, 1), coded)
    coded[66:68] = torch.tensor(list(damage), dtype=torch.uint8)
    with pytest.raises(TransportError, match="rank 7 sent averages that are no blocks of int8"):
        integers.decode(coded, 7)


@wires
def test_an_integer_that_no_one_writes_is_refused(integers: Integers) -> None:
    coded = torch.zeros(integers.size_bytes(BLOCK), dtype=torch.uint8)
    coded[9] = 0x80 if integers.bits == 8 else 0x0F
    with pytest.raises(TransportError, match="are no blocks of"):
        integers.decode(coded, 1)


def test_a_peer_that_sends_another_wire_is_named() -> None:
    def work(rank: int, network: SocketNetwork) -> None:
        integers = list(INTEGERS.values())[rank]
        learnt, kept = drawn(2 * BLOCK, rank), torch.zeros(2 * BLOCK)
        Averaging(network, Lane.REDUCE, (0, 1), rank).average(integers, learnt, kept)

    with meeting(2) as crowd, pytest.raises(RatrainError, match=r"bytes where .* were expected"):
        on_all(crowd, work)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_ends_the_run_where_it_is(value: float) -> None:
    integers, kept = INTEGERS["int4"], torch.zeros(BLOCK)
    kept[3] = value
    with pytest.raises(RunFailed, match="not finite"):
        integers.send(kept, torch.zeros(integers.size_bytes(BLOCK), dtype=torch.uint8))
