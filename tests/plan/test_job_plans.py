"""A job without a layout is one plan, in every command: the one that `plan` writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

import ratrain
from ratrain.cli.main import ratrain as command
from ratrain.plan.case.case import Case, case_of_plan
from ratrain.plan.file.form import is_uneven, load_plan, parse_plan, write_plan
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.search.every_plan import EveryPlan, case_of_job, every_plan
from ratrain.program.text import write_text
from ratrain.simulate.long import simulate_proved

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "unequal"
EXAMPLES = Path(__file__).parents[2] / "examples"
ONE_FAST = EXAMPLES / "one-fast.toml"
IDENTICAL = "schedule.replicas=identical"


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The benchmarks' random clusters, a module that stands in no package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield import_module("random_clusters")
    sys.modules.pop("random_clusters", None)


def random_job(clusters: Any, folder: Path, seed: int, most: int) -> Path:
    """The job of a random cluster of several kinds; of every other one in any order."""
    path = clusters.write_job(folder, clusters.random_cluster(Random(seed), most))
    if seed % 2:
        path.write_text(path.read_text().replace('skeleton = "1f1b"\n', ""))
    return path


def output(*arguments: object) -> str:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def of_file(plans: EveryPlan) -> Case:
    """The case of the plan file that `plan -o` writes."""
    return case_of_plan(parse_plan(write_plan(plans.file(fastest=False)), "plan.json"), "plan.json")


def require_one_plan(path: Path) -> Case:
    """The job's case, which has the program, the step and the facts of the plan's file."""
    spec = load_job(path)
    of_job, of_plan = case_of_job(spec), of_file(every_plan(spec))
    assert type(of_job) is type(of_plan)
    assert write_text(of_job.proved.program) == write_text(of_plan.proved.program)
    job_s, plan_s = (simulate_proved(c.proved, c.costs).step_time_s for c in (of_job, of_plan))
    assert job_s == plan_s
    assert of_job.facts() == of_plan.facts()
    beside = len(of_job.headline()) - len(of_plan.headline())
    assert of_job.headline()[: len(of_plan.headline())] == of_plan.headline() and beside in (
        0,
        1,
        2,
    )
    return of_job


@pytest.mark.parametrize("seed", range(0, 12, 4))
@pytest.mark.slow
def test_a_random_job_and_its_plan_file_have_the_same_program_and_step_to_the_bit(
    seed: int, clusters: Any, tmp_path: Path
) -> None:
    require_one_plan(random_job(clusters, tmp_path, seed, most=4))


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("first", range(100, 136, 12))
def test_so_have_many_random_jobs_of_whom_replicas_differ_in_several(
    first: int, clusters: Any, tmp_path: Path
) -> None:
    uneven = 0
    for seed in range(first, first + 12):
        folder = tmp_path / str(seed)
        folder.mkdir()
        case = require_one_plan(random_job(clusters, folder, seed, most=6))
        uneven += isinstance(case, Case)
    assert uneven > 1


@pytest.mark.slow
def test_a_job_that_was_changed_in_python_is_planned_as_it_is() -> None:
    spec = load_job(ONE_FAST)
    cluster = replace(spec.cluster.spec, name="another")
    case = case_of_job(replace(spec, cluster=replace(spec.cluster, spec=cluster)))
    assert isinstance(case, Case)
    assert case.facts()["cluster"] == "another"


@pytest.mark.slow
def test_every_command_takes_a_job_as_it_takes_its_plan(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    output("plan", ONE_FAST, "-o", plan)
    assert is_uneven(load_plan(plan))
    for verb in (["simulate"], ["verify"], ["program", "--form", "text"], ["schedules"]):
        of_job, of_plan = (json.loads(output(*verb, file, "--json")) for file in (ONE_FAST, plan))
        for body in (of_job, of_plan):
            body.pop("wall_time_s", None)
        assert of_job == of_plan, verb
    pages = [
        json.loads(output("report", file, "-o", tmp_path / "page.html", "--json"))
        for file in (ONE_FAST, plan)
    ]
    assert pages[0]["figures"] == pages[1]["figures"]


@pytest.mark.slow
def test_functions_take_a_job_as_they_take_its_plan(tmp_path: Path) -> None:
    job = ratrain.load_job(ONE_FAST)
    plans = ratrain.plan(job)
    assert plans.best == plans[0] and len(plans) > 1
    steps_s = [plan.step_time_s for plan in plans]
    assert steps_s == sorted(steps_s) and plans.best.step_time_s == steps_s[0]
    plans.best.save(tmp_path / "plan.json")
    simulated = [ratrain.simulate(s).step_time_s for s in (job, plans.best, tmp_path / "plan.json")]
    assert len(set(simulated)) == 1
    built, saved = (ratrain.build(s).to_dict() for s in (job, tmp_path / "plan.json"))
    assert built == saved
    assert plans.to_dict()["unequal"]["trainable"][0]["step_time_s"] == steps_s[0]
    assert json.dumps(plans.best.to_dict()) and "<table>" in str(plans._markup())
    orders = ratrain.schedules(job)
    assert orders.to_dict()["plan"] == saved
    assert max(map(len, repr(plans).splitlines())) <= 80


@pytest.mark.slow
def test_the_headline_says_what_identical_replicas_would_take() -> None:
    words = " ".join(" ".join(case_of_job(load_job(ONE_FAST)).headline()).split())
    assert "the fastest plan with identical replicas takes 12 s, 33.1 % more" in words
    assert '[schedule] replicas = "identical"' in words


def test_a_job_that_asks_for_identical_replicas_gets_them() -> None:
    spec = load_job(ONE_FAST, [IDENTICAL])
    plans = every_plan(spec)
    assert plans.unequal is None and plans.alike is not None
    case = case_of_job(spec)
    assert isinstance(case, Case) and not case.beside
    assert "identical" not in " ".join(case.headline())
