"""The zero-bubble paper's computed rates."""

from __future__ import annotations

import pytest

from ratrain.program.verify import Rule, verify
from ratrain.reproduce.zero_bubble import Setting, bubble_rate, plain, settings, waits_left_out

rows = pytest.mark.parametrize(
    "row", settings(), ids=lambda row: f"{row.model}-{row.micro_batches}"
)


@rows
@pytest.mark.parametrize("skeleton", ["1f1b", "zb-h1"])
def test_rates_of_1f1b_and_zb_h1_meet_the_published_four_decimals(
    row: Setting, skeleton: str
) -> None:
    assert round(bubble_rate(row, skeleton), 4) == row.published[skeleton]


@rows
def test_interleaved_meets_four_decimals_with_the_waits_that_the_paper_leaves_out(
    row: Setting,
) -> None:
    ours = bubble_rate(row, "interleaved", as_published=True)
    assert round(ours, 4) == row.published["interleaved"]


@rows
def test_interleaved_with_all_its_waits_costs_at_most_one_message_a_rank_more(
    row: Setting,
) -> None:
    def span_s(rate: float) -> float:
        return row.busy_s / (1 - rate)

    more_s = span_s(bubble_rate(row, "interleaved"))
    more_s -= span_s(bubble_rate(row, "interleaved", as_published=True))
    assert 0 < more_s <= row.ranks * row.message_s * (1 + 1e-9)


def test_the_verifier_refuses_the_program_that_leaves_waits_out() -> None:
    verdict = verify(waits_left_out(plain(settings()[0], "interleaved")))
    assert {finding.rule for finding in verdict.findings} == {Rule.READ_BEFORE_WRITE}
