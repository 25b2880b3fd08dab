"""Text in lines of 80 columns."""

from __future__ import annotations

import pytest

from ratrain.describe.lines import wrapped
from ratrain.describe.units import format_bytes, format_bytes_rate, format_flops_rate, format_time


@pytest.mark.parametrize(
    "quantity",
    [
        *(format_time(time_s) for time_s in (2e-9, 3e-6, 0.0192, 1704)),
        *(format_bytes(size) for size in (12, 1500, 2e8, 2e10)),
        *(format_bytes_rate(3.7e9), format_flops_rate(8.1e12)),
        *("15.6 %", "2 h", "30 min", "4,923.2 tokens/s", "64 KiB", "1 GiB/s"),
    ],
)
def test_a_line_never_breaks_between_a_number_and_its_unit(quantity: str) -> None:
    for before in range(60, 82):
        lines = wrapped(f"{'x' * before} {quantity}; and more words behind it")
        assert any(quantity in line for line in lines), lines


def test_other_words_after_a_number_may_stand_on_the_next_line() -> None:
    assert wrapped("x" * 77 + " 4 stages") == ["x" * 77 + " 4", "  stages"]


def test_what_is_short_or_empty_is_one_line_as_it_was() -> None:
    assert wrapped("step 19.2 ms") == ["step 19.2 ms"]
    assert wrapped("") == [""]
