"""What `explain` says of periods: time against how long replicas drift apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ratrain.plan import case_of, load_job
from ratrain.plan.layout.plan import Plan
from ratrain.plan.words.averages import HIDDEN, periods, periods_text

EXAMPLE = "examples/quickstart.toml"


def plan(averages: str, every: int = 4) -> Plan:
    asked = f"schedule.average_every={every}", f"schedule.averages={averages}"
    return case_of(load_job(EXAMPLE, (*asked, "checkpoint.every=0"))).plan


@pytest.mark.parametrize("averages", ["local-sgd", "dreamddp", "early-start"])
def test_the_longer_a_period_the_less_is_exposed_and_no_step_beats_the_limit(averages: str) -> None:
    found = periods(plan(averages, 5))
    assert [each.steps for each in found] == sorted({1, 2, 4, 5, 8, 16, 32, 64})
    exposed_s = [each.exposed_s for each in found if each.steps & (each.steps - 1) == 0]
    assert exposed_s[0] == max(exposed_s) and exposed_s[-1] == min(exposed_s)
    assert all(each.limit_s <= each.step_s * (1 + 1e-9) for each in found)
    text = list(periods_text(found, 5))
    assert all(len(line) <= 80 for line in text) and sum(" *" in line for line in text) >= 1
    least = next((p.steps for p in found if p.exposed_s <= HIDDEN * p.step_s), None)
    said = f"average_every = {least}" in " ".join(" ".join(text).split())
    assert said == (least is not None)


def test_an_early_start_hides_most_and_local_sgd_least() -> None:
    step_s = {
        averages: periods(plan(averages))[2].step_s
        for averages in ("local-sgd", "dreamddp", "early-start")
    }
    assert step_s["early-start"] < step_s["dreamddp"] < step_s["local-sgd"], step_s


def test_one_replica_or_turns_that_are_asked_for_have_no_other_period() -> None:
    asked = plan("early-start")
    job = replace(asked.job, schedule=replace(asked.job.schedule, average_every=None))
    assert periods(replace(asked, job=job)) == ()
