"""What `explain` says of periods: time against how long replicas drift apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ratrain.describe.average_wires import AVERAGE_WIRES
from ratrain.describe.job import JobSpec
from ratrain.errors import SpecError
from ratrain.plan import case_of, load_job
from ratrain.plan.layout.plan import Plan
from ratrain.plan.search.every_plan import case_of_job, every_plan
from ratrain.plan.search.periods import HIDDEN, periods
from ratrain.plan.words import every_text
from ratrain.plan.words.planned import periods_text
from ratrain.program.kind import Kind

EXAMPLE = "examples/quickstart.toml"
ROOMY = "schedule.memory_budget=500MB", "checkpoint.every=0"
EARLY = ("schedule.averages=early-start",)


def plan(averages: str, every: int = 4) -> Plan:
    asked = f"schedule.average_every={every}", f"schedule.averages={averages}"
    return case_of(load_job(EXAMPLE, (*asked, *ROOMY))).plan


@pytest.mark.parametrize("averages", ["local-sgd", "dreamddp", "early-start"])
def test_the_longer_a_period_the_less_is_exposed_and_no_step_beats_the_limit(averages: str) -> None:
    found = periods(plan(averages, 5))
    assert [each.steps for each in found] == sorted({1, 2, 4, 5, 8, 16, 32, 64})
    exposed_s = [each.exposed_s for each in found if each.steps & (each.steps - 1) == 0]
    assert exposed_s[0] == max(exposed_s) and exposed_s[-1] == min(exposed_s)
    assert all(each.limit_s <= each.step_s * (1 + 1e-9) for each in found)
    text = list(periods_text(found, plan(averages, 5).job.schedule))
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


OUTER = (*EARLY, "train.outer_learning_rate=0.7")


def test_a_narrower_wire_takes_its_part_of_the_line_and_processors_for_it() -> None:
    asked = (*OUTER, "schedule.average_every=4", *ROOMY)
    found = {p.wire: p for p in periods(case_of(load_job(EXAMPLE, asked)).plan) if p.steps == 4}
    assert [*found] == [*AVERAGE_WIRES]
    for wire, form in AVERAGE_WIRES.items():
        part = found[wire].sent_s / found["fp32"].sent_s
        assert part == pytest.approx(form.bytes_per_param / 4, rel=1e-6)
    costs = [
        case_of(load_job(EXAMPLE, (*asked, f"schedule.average_wire={wire}"))).costs
        for wire in ("bf16", "int8")
    ]
    fixed, taken = (
        [float(getattr(of.work[Kind.AverageCopy], name).sum()) for of in costs]
        for name in ("fixed_s", "interrupt_s")
    )
    assert fixed[1] > fixed[0] and taken[1] >= 0


# ---- left to the planner ------------------------------------------------------------------------


def left_open(exposed: float, *more: str) -> JobSpec:
    return load_job(EXAMPLE, (*more, f"schedule.average_exposed={exposed}", "checkpoint.every=0"))


@pytest.mark.parametrize(
    "exposed", [0.02, *(pytest.param(each, marks=pytest.mark.slow) for each in (0.0, 0.2, 1.0))]
)
@pytest.mark.parametrize("more", [EARLY, (*OUTER, "schedule.average_wire=auto")])
def test_the_shortest_period_that_hides_is_chosen_then_the_widest_wire(
    more: tuple[str, ...], exposed: float
) -> None:
    case = case_of_job(left_open(exposed, *more))
    every, wire = case.job.schedule.average_every, case.job.schedule.average_wire
    compared = periods(case.plan)
    (own,) = [p for p in compared if (p.steps, p.wire) == (every, wire)]
    shorter = compared[: compared.index(own)]
    if own.hides(exposed):
        assert not any(p.hides(exposed) for p in shorter)
    else:
        assert not any(p.hides(exposed) for p in compared)
    said = " ".join(" ".join(case.headline()).split())
    assert f'average_every = {every}, average_wire = "{wire}"' in said


@pytest.mark.slow
def test_what_changes_numbers_is_printed_first_of_a_plan_with_its_alternatives() -> None:
    job = left_open(0.05, *OUTER, "schedule.average_wire=auto", "schedule.replicas=identical")
    plans = every_plan(replace(job, layout=None))
    lines = every_text(plans, 3)
    chosen = plans.chosen.plan.job.schedule
    if not plans.periods:  # the best plan has one replica
        return
    assert lines[0].startswith("Chosen, which changes what training computes: average_every")
    assert f"average_every = {chosen.average_every}" in " ".join(lines[:3])
    assert {p.wire for p in plans.periods} == {*AVERAGE_WIRES}
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("schedule.average_every=4", "schedule.average_wire=auto"), "average_exposed = 0.05"),
        (
            ("schedule.average_every=4", "schedule.average_exposed=0.1",
             "schedule.average_wire=auto"),
            "leave average_every out",
        ),
        (("schedule.average_exposed=0.1", "schedule.dtype=fp32", "schedule.gradient_wire=bf16"),
         "or average_every"),
    ],
)  # fmt: skip
def test_what_is_said_is_not_left_open_too(asked: tuple[str, ...], words: str) -> None:
    with pytest.raises(SpecError) as refused:
        load_job(EXAMPLE, asked)
    assert words in refused.value.fix, refused.value


def test_who_asks_no_planner_is_told_to_name_a_period() -> None:
    with pytest.raises(SpecError, match="was not asked here") as refused:
        case_of(left_open(0.1, *EARLY))
    assert "set average_every" in refused.value.fix


def test_one_replica_or_turns_that_are_asked_for_have_no_other_period() -> None:
    asked = plan("early-start")
    job = replace(asked.job, schedule=replace(asked.job.schedule, average_every=None))
    assert periods(replace(asked, job=job)) == ()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("schedule.averages=dreamddp",), "set average_every"),
        (("schedule.average_every=4", "schedule.average_turns.e=1"), "leave it out, or set"),
        (("schedule.average_every=4", "train.outer_learning_rate=0.7"), 'averages = "early-start"'),
        (
            ("schedule.average_every=4", *EARLY, "schedule.average_wire=bf16"),
            "set [train] outer_learning_rate",
        ),
        (
            (
                "schedule.average_every=4",
                *OUTER,
                "schedule.average_wire=int8",
                "schedule.collective=ring",
            ),
            'collective = "direct"',
        ),
        (("schedule.average_every=4", *EARLY, "schedule.average_turns.x=1"), "give it a step"),
        (("schedule.average_every=4", *EARLY, "schedule.optimizer_tier=host"), "average_every"),
        (("schedule.average_every=4", *EARLY, "schedule.sharding=2"), "leave sharding"),
    ],
)
def test_what_cannot_be_averaged_so_is_refused_with_its_fix(
    asked: tuple[str, ...], words: str
) -> None:
    with pytest.raises(SpecError) as refused:
        case_of(load_job(EXAMPLE, (*asked, "checkpoint.every=0"))).choices  # noqa: B018
    assert words in refused.value.fix, refused.value
