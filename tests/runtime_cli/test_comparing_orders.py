"""`ratrain compare` of runs whose collectives add replicas in different orders."""

from __future__ import annotations

import pytest

from ratrain.cli.trained.compare import lines_of
from ratrain.runtime.run.reports.run_pair import LossDifference, RunPair


def pair_of(sum_orders: tuple[str, str], largest: float) -> RunPair:
    losses = LossDifference(8, 5, 3, largest)
    return RunPair(losses, None, None, "no checkpoint", ("fp32", "fp32"), sum_orders, (1.0, 1.0))


@pytest.mark.parametrize(
    ("second", "largest", "agrees"),
    [("(0+1)+(2+3)", 1e-6, True), ("(0+1)+(2+3)", 1e-2, False), ("", 1e-6, False)],
)
def test_losses_of_another_order_are_held_to_a_tolerance_and_no_others(
    second: str, largest: float, *, agrees: bool
) -> None:
    assert pair_of(("", second), largest).agrees == agrees


def test_two_orders_are_said_before_the_losses() -> None:
    said = list(lines_of(pair_of(("", "(0+1)+(2+3)"), 1e-6)))
    assert said[0].startswith("sums     gradients added in the order of replicas; (0+1)+(2+3)")
    assert not any("sums " in line for line in lines_of(pair_of(("", ""), 1e-6)))
