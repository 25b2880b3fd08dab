"""How many processors a rank has, and what work beside compute takes from it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratrain.profile.processor import (
    Processor,
    processor_share,
    with_processors,
    working,
)

SHARES = st.floats(0.05, 64.0)
BUSY = st.floats(0.0, 64.0)


@pytest.mark.parametrize(
    ("share", "busy", "delay"),
    [
        (0.5, 0.5, 2.0),  # half a processor: a second of it is two of waiting
        (1.0, 1.0, 1.0),
        (2.0, 1.0, 0.0),  # one to spare
        (3.0, 2.0, 0.0),
        (0.5, 0.0, 0.0),  # compute is elsewhere
    ],
)
def test_compute_stands_still_where_the_processors_are_shared(
    share: float, busy: float, delay: float
) -> None:
    assert Processor(share, busy).delay_s_per_cpu_s == delay


@given(share=SHARES, busy=BUSY)
def test_work_beside_compute_never_costs_more_than_all_of_the_share(
    share: float, busy: float
) -> None:
    assert 0.0 <= Processor(share, busy).delay_s_per_cpu_s <= 1.0 / share


@given(share=SHARES, more=st.floats(0.0, 4.0), busy=BUSY)
def test_more_processors_never_delay_compute_more(share: float, more: float, busy: float) -> None:
    few, many = Processor(share, busy), Processor(share + more, busy)
    assert many.delay_s_per_cpu_s <= few.delay_s_per_cpu_s


def test_a_sleeping_process_keeps_no_processor_busy_and_a_working_one_does() -> None:
    _, idle = with_processors(lambda: time.sleep(0.1))

    def work() -> None:
        with working(1):
            time.sleep(0.1)

    assert idle < with_processors(work)[1]


def test_a_share_is_no_more_than_was_wanted() -> None:
    assert 0.0 < processor_share(1) <= 1.0
