"""`explain` of a job speaks of the plan that `plan` writes, also where its replicas differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ratrain.cli.main import ratrain

pytestmark = pytest.mark.slow  # each plans a job, and again with more devices
ONE_FAST = Path(__file__).parents[2] / "examples" / "one-fast.toml"
SHAPES = ("layers_per_stage", "device_kinds", "micro_batch", "micro_batches", "count")


def run(*arguments: object) -> str:
    result = CliRunner().invoke(ratrain, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The plan file that is written for the job, and what is printed of it."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    return path, json.loads(run("plan", ONE_FAST, "-o", path, "--json"))


@pytest.fixture(scope="module")
def of_job() -> dict[str, Any]:
    return json.loads(run("explain", ONE_FAST, "--json"))


def test_a_job_is_explained_by_the_unequal_plan_that_plan_writes(
    plan: tuple[Path, dict[str, Any]], of_job: dict[str, Any]
) -> None:
    best = plan[1]["unequal"]["trainable"][0]
    assert of_job["step_time_s"] == best["step_time_s"]
    explained, written = (
        [{key: replica[key] for key in SHAPES} for replica in said["replicas"]]
        for said in (of_job["plan"], best["plan"])
    )
    assert explained == written
    assert len({replica["micro_batch"] * replica["micro_batches"] for replica in explained}) == 2


def test_a_job_and_its_plan_file_are_explained_alike(
    plan: tuple[Path, dict[str, Any]], of_job: dict[str, Any]
) -> None:
    of_file = json.loads(run("explain", plan[0], "--json"))
    for key in ("plan", "step_time_s", "memory", "time", "kinds", "speedup", "added", "binding"):
        assert of_file[key] == of_job[key], key
    steps = [
        [plan["step_time_s"] for plan in said["search"]["plans"] + said["unequal"]["trainable"]]
        for said in (of_file, of_job)
    ]
    assert steps[0] == steps[1]


def test_it_says_how_much_less_time_an_unequal_plan_takes_than_identical_replicas() -> None:
    explained = run("explain", ONE_FAST)
    said = " ".join(explained.split())
    assert "less time than the best plan with identical replicas" in said
    assert "-0.0 %" not in said and "-0.00 %" not in said


def test_a_plan_of_identical_replicas_is_set_beside_faster_unequal_ones(
    tmp_path: Path, plan: tuple[Path, dict[str, Any]]
) -> None:
    table = json.loads(plan[0].read_text())
    shares = [replica["count"] * replica["micro_batches"] for replica in table["replicas"]]
    assert len(shares) == 2
    stages = table["replicas"][0]["stages"][0] | {"devices": "0-3", "micro_batch": 3}
    table["replicas"] = [{"count": 4, "micro_batches": 2, "stages": [stages]}]
    alike = tmp_path / "alike.json"
    alike.write_text(json.dumps(table))
    said = run("explain", alike)
    assert "whose stages or replicas differ would be faster:" in said
    assert max(map(len, said.splitlines())) <= 80
