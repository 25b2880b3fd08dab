"""Plan files: what is written is read back, what is edited wrongly is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from random_jobs import candidates, job

from ratrain.cli.main import ratrain
from ratrain.describe.ranges import read_ranges, write_ranges
from ratrain.errors import SpecError
from ratrain.plan.case.case import Case
from ratrain.plan.file.form import file_of_plan, parse_plan, write_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.search.layouts import search_layouts
from ratrain.simulate.simulate import simulate

SMALL = job("small-llama", "cpu-lab", 4, 8, budget_bytes=200_000_000)


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(candidates())
def test_a_plan_written_and_read_back_is_the_same_program(row) -> None:
    candidate = row[1]
    again = plan_of_file(parse_plan(write_plan(file_of_plan(candidate)), "a.json"), "a.json")
    assert again.layout.layers == candidate.layout.layers
    assert Case(again).program == Case(candidate).program


@pytest.fixture(scope="module")
def written() -> str:
    return write_plan(file_of_plan(search_layouts(SMALL).best.plan))


def test_a_plan_simulates_as_the_search_said() -> None:
    best = search_layouts(SMALL).best
    case = Case(best.plan)
    simulated = simulate(case.program, case.costs)
    assert simulated.feasible
    assert simulated.bound_bytes == best.bound_bytes
    assert simulated.step_time_s == pytest.approx(best.step_s, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"accumulaton": "local"}, "unknown key"),
        ({"sequences": 7}, "sequences"),
        ({"schedule": "ratrian"}, "ratrain"),
        ({"skeleton": "zbh1"}, "skeleton"),
        ({"prefetch": False}, "prefetch"),
        ({"format": "ratrain plan 0"}, "format"),
        ({"memory_budget": 5}, "memory_budget"),
        ({"replicas": []}, "stages"),
    ],
)
def test_a_wrong_key_or_value_is_named(written: str, change: dict, says: str) -> None:
    table = {**json.loads(written), **change}
    with pytest.raises(SpecError) as error:
        plan_of_file(parse_plan(json.dumps(table), "p.json"), "p.json")
    assert "p.json" in str(error.value)
    assert says in str(error.value)


def test_unequal_sharding_is_refused(written: str) -> None:
    table = json.loads(written)
    stages = table["replicas"][0]["stages"]
    if len(stages) == 1:
        stages.append(dict(stages[0]))
    stages[1]["sharding"] = (stages[0]["sharding"] + 1) % 4
    with pytest.raises(SpecError, match="one for the whole plan"):
        plan_of_file(parse_plan(json.dumps(table), "p.json"), "p.json")


def test_micro_batches_without_an_order_are_refused_where_they_are_counted() -> None:
    plan = json.loads(write_plan(file_of_plan(search_layouts(SMALL).best.plan)))
    stage = plan["replicas"][0]["stages"][0]
    stages = [
        {**stage, "devices": device, "layers": 4, "micro_batch": 1} for device in ("0, 2", "1, 3")
    ]
    plan["replicas"] = [{"count": 2, "micro_batches": 3, "stages": stages}]
    plan |= {"sequences": 6, "schedule": "interleaved", "skeleton": "interleaved"}
    plan |= {"prefetch": False}
    with pytest.raises(SpecError, match="multiples of 2 ranks, not 3") as refused:
        plan_of_file(parse_plan(json.dumps(plan), "a.json"), "a.json")
    assert refused.value.place == "a.json [replicas.0] micro_batches"
    assert refused.value.fix == "use 4 micro-batches"


def test_a_device_used_twice_is_refused(written: str) -> None:
    table = json.loads(written)
    last = table["replicas"][0]["stages"][-1]
    last["devices"] = ", ".join(["0"] * len(read_ranges(last["devices"], "", 4)))
    with pytest.raises(SpecError):
        plan_of_file(parse_plan(json.dumps(table), "p.json"), "p.json")


def test_text_that_is_no_plan_is_refused() -> None:
    for text in ("", "[]", "3", "{", '{"format": "ratrain plan 1"}'):
        with pytest.raises(SpecError):
            parse_plan(text, "p.json")


def test_ranges_read_back() -> None:
    assert write_ranges([0, 1, 2, 7, 9, 10]) == "0-2, 7, 9-10"
    assert read_ranges("0-2, 7, 9-10", "", 11) == [0, 1, 2, 7, 9, 10]
    for wrong in ("", "a", "3-1", "0-11", "-1", "1--2", "²", "0-²", "0-٣", "9" * 5000):
        with pytest.raises(SpecError):
            read_ranges(wrong, "here", 11)


def test_an_edited_plan_runs_through_the_command_line(written: str, tmp_path: Path) -> None:
    table = json.loads(written)
    for stage in table["replicas"][0]["stages"]:
        stage["recovery"] = "backward"
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(table))
    run = CliRunner().invoke(ratrain, ["simulate", str(path), "--json"])
    assert run.exit_code == 0
    assert json.loads(run.output)["job"]["activations"].startswith("recovered when backward")
