"""What becomes of a host's ranks when who started them is lost. With real processes: `test_launch`
(of `runtime_cli`)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import cast

import pytest

from ratrain.runtime.run.host_ranks import END, STOP, Following
from ratrain.runtime.run.processes import RankProcesses


@dataclass
class Ranks:
    """What is asked of ranks then. Without a line to them nobody hears that they train."""

    train: bool
    failed: bool = False


@pytest.mark.parametrize(
    ("order", "goes_on", "train", "asked"),
    [
        ("", True, True, 1),
        ("", True, False, 2),  # nothing to save, and their place is needed
        ("", False, False, 1),  # they may train
        (STOP, True, False, 1),
        (END, False, False, 2),
    ],
)
def test_ranks_that_may_train_save_and_those_that_begin_end_at_once(
    order: str, goes_on: bool, train: bool, asked: int
) -> None:
    interrupts = count()
    ranks = cast(RankProcesses, Ranks(train))

    def one_more() -> None:
        next(interrupts)

    Following(ranks, None, None, goes_on=goes_on, interrupt=one_more).take(order)
    assert next(interrupts) == asked
