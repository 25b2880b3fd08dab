"""Control rounds by themselves: what rank 0 answers, and how much is sent for it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

import pytest
from torch import Tensor

from ratrain.runtime.rank.control import Control, RankReport, Round, in_one, sums_of_groups
from ratrain.runtime.rank.metrics import loss_of
from ratrain.runtime.rank.rows import exposed_fraction
from ratrain.runtime.step.network.broadcast import Broadcast, By, combined
from ratrain.runtime.step.network.connection import Connection

T = TypeVar("T")
NAN = float("nan")
PATIENCE_S = 60.0
QUIET = RankReport(**dict.fromkeys((field.name for field in fields(RankReport)), 0.0))


class Rounds:
    """What control needs of a rank's network."""

    def __init__(self, broadcast: Broadcast) -> None:
        self._broadcast = broadcast

    def combine(self, _lane: object, values: Tensor, by: By) -> Tensor:
        return combined(self._broadcast, values, by)


def broadcasts(ranks: int) -> tuple[list[Broadcast], list[Connection]]:
    pairs = [socket.socketpair() for _ in range(1, ranks)]
    upper = {rank: Connection(a, 0, rank, PATIENCE_S) for rank, (a, _) in enumerate(pairs, 1)}
    lower = [Connection(b, rank, 0, PATIENCE_S) for rank, (_, b) in enumerate(pairs, 1)]
    others = [Broadcast(rank, ranks, {0: end}) for rank, end in enumerate(lower, 1)]
    return [Broadcast(0, ranks, upper), *others], [*upper.values(), *lower]


def on_all(made: Sequence[Broadcast], work: Callable[[int, Broadcast], T]) -> list[T]:
    answers: dict[int, T] = {}
    threads = [
        threading.Thread(target=lambda r=rank, c=broadcast: answers.update({r: work(r, c)}))
        for rank, broadcast in enumerate(made)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return [answers[rank] for rank in range(len(made))]


def rounds_of(
    reports: Sequence[RankReport], groups: Sequence[int]
) -> tuple[list[tuple[Round, int]], list[int], int]:
    """What each rank hears in one round, where each then ends, and the bytes sent by all."""
    made, ends = broadcasts(len(reports))
    heard: dict[int, tuple[Round, int]] = {}
    problems: list[BaseException] = []
    controls = [
        Control(
            cast("Any", Rounds(broadcast)),
            first_step=0,
            end_step=1,
            period=1,
            groups=groups,
            on_round=lambda _, reports, ahead, rank=rank: heard.update({rank: (reports, ahead)}),
            fail=problems.append,
        )
        for rank, broadcast in enumerate(made)
    ]
    for control, report in zip(controls, reports, strict=True):
        control.post(0, report)
    for control in controls:
        control.finish()
    assert not problems
    sent = sum(end.sent_bytes for end in ends)
    for end in ends:
        end.close()
    return [heard[rank] for rank in range(len(reports))], [c.end_step for c in controls], sent


def test_rank_0_hears_every_report_and_the_others_one_that_stands_for_all() -> None:
    reports = [
        replace(QUIET, step_time_s=2.0, counted_ahead=NAN, loss_sum=NAN, counted=NAN, reduce_s=1.0),
        replace(QUIET, step_time_s=4.0, counted_ahead=3.0, loss_sum=5.0, counted=4.0),
        replace(QUIET, step_time_s=1.0, counted_ahead=NAN, loss_sum=NAN, counted=NAN),
        replace(QUIET, step_time_s=3.0, counted_ahead=9.0, loss_sum=7.0, counted=8.0),
    ]
    reports[2] = replace(reports[2], allocated_peak_bytes=70.0, ledger_peak_bytes=60.0)
    heard, _, _ = rounds_of(reports, groups=[0, 0, 1, 1])
    assert [ahead for _, ahead in heard] == [3, 3, 9, 9]
    whole, *others = (round_ for round_, _ in heard)
    assert repr(whole) == repr(tuple(reports))
    for (one,) in others:
        assert one.step_time_s == 4.0 and loss_of((one,)) == loss_of(whole) == 1.0
        assert (one.allocated_peak_bytes, one.ledger_peak_bytes) == (70.0, 60.0)
        worst = max(exposed_fraction(vars(report)) for report in whole)
        assert exposed_fraction(vars(one)) == pytest.approx(worst) and worst == 0.5
    assert in_one(tuple(reports)).stop == 0.0


def test_tokens_of_a_group_are_counted_for_each_of_its_ranks() -> None:
    assert sums_of_groups([4.0, NAN, 6.0, NAN], [0, 0, 0, 0]) == [10.0] * 4
    assert sums_of_groups([4.0, NAN, NAN, 6.0], [0, 0, 1, 1]) == [4.0, 4.0, 6.0, 6.0]


def test_whoever_asks_to_stop_stops_all_behind_the_same_step() -> None:
    made, ends = broadcasts(3)
    controls = [
        Control(
            cast("Any", Rounds(broadcast)),
            first_step=0,
            end_step=50,
            period=4,
            groups=[0, 0, 0],
            on_round=lambda *_: None,
            fail=lambda _: None,
        )
        for broadcast in made
    ]
    for step in range(8):
        for rank, control in enumerate(controls):
            control.post(step, replace(QUIET, stop=float(rank == 2 and step == 3)))
    for control in controls:
        control.finish()
    assert [control.end_step for control in controls] == [8, 8, 8]
    for end in ends:
        end.close()


def test_what_a_round_sends_grows_with_the_ranks_and_not_with_their_square() -> None:
    few, many = (rounds_of([QUIET] * ranks, [0] * ranks)[2] for ranks in (8, 64))
    assert few < 8 * 400 and many < 64 * 400 and many < 10 * few, (few, many)


def test_words_to_some_ranks_reach_these_alone_and_a_table_is_compressed() -> None:
    made, ends = broadcasts(40)
    words = [b"the same words of every rank, " * 20 + bytes([rank]) for rank in range(40)]
    heard = on_all(made, lambda rank, broadcast: broadcast.exchange(words[rank], hearers=(0, 7)))
    assert heard[0] == heard[7] == words
    assert all(not row for rank, row in enumerate(heard) if rank not in (0, 7))
    sent = sum(end.sent_bytes for end in ends)
    assert on_all(made, lambda rank, broadcast: broadcast.exchange(words[rank])) == [words] * 40
    whole = sum(map(len, words))
    assert sum(end.sent_bytes for end in ends) - sent < 8 * whole, "not 40 times"
    for end in ends:
        end.close()
