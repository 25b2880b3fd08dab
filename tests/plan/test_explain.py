"""`plan` and `explain`: words that agree with numbers, on 80 columns, and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratrain.cli.main import ratrain

JOB = """
[model]
name = "small-qwen"
sequence_length = 512
[cluster]
name = "cpu-lab"
devices = 4
[batch]
sequences = 8
[schedule]
memory_budget = "{budget}"
dtype = "fp32"
"""


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(ratrain, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    job, plan = tmp_path / "job.toml", tmp_path / "plan.json"
    job.write_text(JOB.format(budget="400MB"))
    assert run("plan", job, "-o", plan)[0] == 0
    return plan


def test_a_job_without_a_layout_simulates_as_its_plan(tmp_path: Path, planned: Path) -> None:
    by_job = json.loads(run("simulate", tmp_path / "job.toml", "--json")[1])
    by_plan = json.loads(run("simulate", planned, "--json")[1])
    assert by_job["step_time_s"] == by_plan["step_time_s"]
    assert by_plan["bound_bytes"]["RAM"] <= 400_000_000


def test_explain_says_memory_time_what_binds_and_what_came_next(planned: Path) -> None:
    status, said = run("explain", planned)
    assert status == 0
    parts = ("Proven peak memory", "Memory by item", "a step takes", "What binds", "do not fit")
    assert [part for part in parts if part not in said] == []
    assert max(len(line) for line in said.splitlines()) <= 80


def test_explain_as_json_adds_up(planned: Path) -> None:
    said = json.loads(run("explain", planned, "--json")[1])
    assert said["feasible"]
    for rank in said["memory"]:
        assert sum(rank["items_bytes"].values()) == rank["bound_bytes"]
    plans = said["search"]["plans"]
    assert said["step_time_s"] == pytest.approx(plans[0]["step_time_s"], rel=0.01)
    assert all(rejected["missing_bytes"] > 0 for rejected in said["rejected"])


def test_a_rejected_plan_fits_once_it_has_the_bytes_it_misses(
    tmp_path: Path, planned: Path
) -> None:
    near = json.loads(run("explain", planned, "--json")[1])["rejected"][0]
    job = tmp_path / "more.toml"
    job.write_text(JOB.format(budget=f"{400_000_000 + near['missing_bytes']}B"))
    best = json.loads(run("plan", job, "--json")[1])["plans"][0]
    assert best["step_time_s"] <= 1.2 * near["estimate_s"]


def test_explain_of_a_plan_that_does_not_fit_says_so(tmp_path: Path, planned: Path) -> None:
    table = json.loads(planned.read_text())
    table["memory_budget"] = "250MB"
    for stage in table["replicas"][0]["stages"]:
        stage["recovery"] = "none"
        stage["sharding"] = min(stage["sharding"], 1)
    table["accumulation"] = "local"
    tight = tmp_path / "tight.json"
    tight.write_text(json.dumps(table))
    status, said = run("explain", tight)
    assert status == 3
    assert "OVER" in said and "over its budget" in said


def test_plan_prints_its_table_on_80_columns(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB.format(budget="400MB"))
    status, said = run("plan", tmp_path / "job.toml", "--top", 3)
    assert status == 0 and "slower" in said
    assert max(len(line) for line in said.splitlines()) <= 80
