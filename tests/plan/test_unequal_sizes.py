"""The planner's own sizes for stages: what it proposes is faster, fits, and cannot be had by one
more doubling or halving."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from random_plans import random_plan
from test_left_out import job_file

from ratrain.cli.main import ratrain
from ratrain.describe.job import JobSpec
from ratrain.errors import RatrainError, SpecError
from ratrain.plan.case.case import Case
from ratrain.plan.file.form import file_of_plan, parse_plan, write_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.jobs import load_job, load_job_to_plan
from ratrain.plan.price.places import costs_of
from ratrain.plan.price.trial import least_step_s
from ratrain.plan.search.every_plan import case_of_job, every_plan
from ratrain.plan.search.plan_moves import improved
from ratrain.plan.search.tried import Timed, timed_plan
from ratrain.program.replicas import Recovery
from ratrain.simulate.long import simulate_proved


def large_and_small(folder: Path) -> Path:
    """Two kinds as fast as each other: one of 30 MB, and one of 12 MB, which has no room for as
    many sequences at once."""
    path = job_file(folder, 32, large=(100, 1), small=(100, 1))
    cluster = folder / "cluster.toml"
    text = cluster.read_text().replace("2GB", "30MB", 1)
    cluster.write_text(text.replace("2GB", "12MB"))
    return path


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    return load_job(large_and_small(tmp_path))


def begins() -> None:
    """Nobody counts."""


@pytest.mark.slow
def test_with_more_memory_no_plan_of_the_example_is_slower() -> None:
    example = Path(__file__).parents[2] / "examples" / "unequal.toml"
    steps_s: list[float] = []
    for budget in ("24MB", "26MB", "28MB", "30MB", "32MB", "40MB", "48MB", "64MB"):
        given = (f"schedule.memory_budget={budget}", "schedule.replicas=any")
        steps_s.append(every_plan(load_job_to_plan(example, given)).chosen.step_s)
    assert steps_s == sorted(steps_s, reverse=True)
    assert steps_s[0] > steps_s[-1]


def test_a_kind_with_more_memory_computes_more_sequences_at_once(spec: JobSpec) -> None:
    best = every_plan(spec).best
    assert isinstance(best, Timed) and not best.refusals
    (replica,) = best.plan.replicas
    sizes = dict(zip(replica.kinds, replica.sizes, strict=True))
    assert sizes["large"] > sizes["small"]
    case = Case(best.plan)
    assert case.proved.verdict.sound
    assert simulate_proved(case.proved, case.costs).step_time_s == pytest.approx(best.step_s)
    for size in set(replica.sizes):
        one_size = replace(best.plan, replicas=(replica.computing((size,) * replica.ranks),))
        timed, short = timed_plan(best.draft, one_size, float("inf"))
        assert short or (timed is not None and timed.step_s > best.step_s)
    assert list(improved(best, begins)) == []


def test_a_stage_in_a_smaller_size_keeps_what_it_recomputed_for_want_of_memory(
    spec: JobSpec,
) -> None:
    best = every_plan(spec).best
    assert isinstance(best, Timed)
    (replica,) = best.plan.replicas
    assert set(replica.recovery) == {Recovery.NONE}
    again = replace(replica.computing((4, 4)), recovery=(Recovery.NONE, Recovery.BACKWARD))
    start, _ = timed_plan(best.draft, replace(best.plan, replicas=(again,)), float("inf"))
    assert start is not None
    *_, last = improved(start, begins)
    assert last.plan.replicas == best.plan.replicas


@pytest.mark.slow
def test_no_other_cut_order_sizes_or_recovery_of_the_pipeline_is_faster(spec: JobSpec) -> None:
    best = every_plan(spec).best
    assert isinstance(best, Timed)
    (replica,) = best.plan.replicas
    modes = product((Recovery.NONE, Recovery.FORWARD, Recovery.BACKWARD), repeat=2)
    sizes = product((1, 2, 4, 8, 16), repeat=2)
    fitting = 0
    for layers, turned, sized, recovery in product(((1, 3), (2, 2), (3, 1)), (0, 1), sizes, modes):
        layout = replace(replica.layout, layers=layers)
        groups = tuple(group[::-1] if turned else group for group in replica.groups)
        seats = replace(replica.seats, groups=groups)
        other = replace(replica.computing(sized), layout=layout, seats=seats, recovery=recovery)
        timed, _ = timed_plan(best.draft, replace(best.plan, replicas=(other,)), float("inf"))
        if timed is not None:
            fitting += 1
            assert timed.step_s >= best.step_s * (1 - 1e-9), (layers, turned, sized, recovery)
    assert fitting > 50


def test_such_a_plan_is_written_read_back_and_simulated_alike(spec: JobSpec) -> None:
    best = every_plan(spec).best
    assert isinstance(best, Timed)
    text = write_plan(file_of_plan(best.plan))
    again = plan_of_file(parse_plan(text, "p.json"), "p.json")
    assert again.setup == best.plan.setup
    assert write_plan(file_of_plan(again)) == text


@pytest.mark.slow
def test_explain_and_simulate_say_each_stage_s_size(tmp_path: Path) -> None:
    path, plan = large_and_small(tmp_path), tmp_path / "plan.json"
    run = CliRunner().invoke(ratrain, ["plan", str(path), "-o", str(plan)])
    assert run.exit_code == 0, run.output
    assert "sequences at once per rank 4, 2" in run.output.replace("\n  ", " ")
    explained = CliRunner().invoke(ratrain, ["explain", str(plan)])
    assert explained.exit_code == 0, explained.output
    assert "micro-batches of 2, 4 sequences at once" in explained.output.replace(
        "\n          ", " "
    )
    simulated = CliRunner().invoke(ratrain, ["simulate", str(plan), "--json"])
    assert json.loads(simulated.output)["job"]["replicas"][0]["micro_batch_of_ranks"] == [4, 2]


@pytest.mark.slow
def test_no_step_of_a_random_unequal_plan_is_shorter_than_its_lower_bound() -> None:
    """With stages that recover and join as they like."""
    bounded = 0
    for seed in range(120):
        text = json.dumps(random_plan(Random(seed)))
        try:
            plan = plan_of_file(parse_plan(text, "p.json"), "p.json")
            proved = Case(plan).proved
        except RatrainError:
            continue
        costs = costs_of(plan, plan.setup)
        least_s = least_step_s(plan.strategy, plan.setup, plan.choices, costs)
        step_s = simulate_proved(proved, costs_of(plan, proved.short.setup)).step_time_s
        assert least_s <= step_s * (1 + 1e-9), seed
        bounded += least_s > 0
    assert bounded > 30


# ---- said by the job ----------------------------------------------------------------------


def joining(folder: Path, joined: str, more: str = "") -> Path:
    """A job of two stages and two replicas, 16 micro-batches each."""
    path = job_file(folder, 32, fast=(40, 2), slow=(20, 2))
    layout = f"[layout]\npipeline = 2\ndata = 2\njoined = {joined}\n{more}"
    path.write_text(path.read_text().replace("[schedule]", f"{layout}[schedule]"))
    return path


def test_a_job_says_how_many_micro_batches_each_stage_joins(tmp_path: Path) -> None:
    case = case_of_job(load_job(joining(tmp_path, "[4, 1]")))
    assert isinstance(case, Case)
    assert [m.joined for m in case.setup.members] == [4, 1]
    assert case.setup.replicas[0].micro_batches == 16 and case.setup.data == 2
    assert case.proved.verdict.sound
    assert isinstance(case_of_job(load_job(joining(tmp_path, "[1, 1]"))), Case)


def test_stages_whose_joined_micro_batches_do_not_fit_recover(tmp_path: Path) -> None:
    def modes(budget: str) -> list[Recovery]:
        path = joining(tmp_path, "[8, 1]")
        path.write_text(path.read_text() + f'memory_budget = "{budget}"\n')
        case = case_of_job(load_job(path))
        assert case.proved.verdict.sound
        return [member.recovery for member in case.proved.short.setup.members]

    assert modes("1GB") == [Recovery.NONE, Recovery.NONE]
    assert modes("26MB") == [Recovery.FORWARD, Recovery.NONE]


@pytest.mark.parametrize(
    ("joined", "more", "says"),
    [
        ("[2, 1, 1]", "", "3 numbers for 2 stages"),
        ("[2, 4]", "", "every stage joins 2 micro-batches or more"),
        ("[3, 1]", "", "16 micro-batches are no multiple of 3"),
        ("[0, 1]", "", "0 is below the smallest allowed"),
        ("[2, 1]", "tensor = 1\nsequence_parallel = true\n", "divide the rows"),
    ],
)
def test_what_a_job_cannot_join_is_refused_at_its_key(
    joined: str, more: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as error:
        load_job(joining(tmp_path, joined, more))
    assert says in str(error.value)
    assert "layout" in str(error.value) and "joined" in str(error.value)


def test_an_order_that_cannot_join_is_refused_and_schedules_says_so_too(tmp_path: Path) -> None:
    path = str(joining(tmp_path, "[2, 1]"))
    for arguments, says in (
        (("simulate", path, "--schedule", "interleaved"), "no place for stages whose micro_batch"),
        (("schedules", path), "cannot be compared here"),
    ):
        error = CliRunner().invoke(ratrain, arguments).exception
        assert isinstance(error, SpecError)
        assert says in error.what and "[layout] joined" in error.place and error.fix
