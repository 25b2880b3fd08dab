"""Every schedule of the registry on one job: proved, simulated, in one table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratrain.cli.programs.schedules import command
from ratrain.plan.case.case import case_of
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.orders import schedules
from ratrain.plan.orders.schedules import Comparison, compare, laid_out
from ratrain.plan.words.orders import compared_text
from ratrain.program.skeletons import SKELETONS
from ratrain.program.strategies import STRATEGIES
from ratrain.simulate.simulate import simulate

EXAMPLES = Path(__file__).parents[2] / "examples"
JOB = EXAMPLES / "small.toml"


@pytest.fixture(scope="module")
def compared() -> Comparison:
    return compare(laid_out(load_job(JOB)))


def test_every_strategy_and_every_compute_order_has_a_row(compared: Comparison) -> None:
    assert {row.name for row in compared.rows} == set(STRATEGIES)
    orders = {name for name, skeleton in SKELETONS.items() if skeleton.together == 1}
    assert {row.order for row in compared.rows if row.predicted} == orders


@pytest.mark.parametrize("name", ["ratrain", "gpipe", "zb-h1", "baseline-1f1b"])
def test_a_row_has_the_figures_of_simulate(compared: Comparison, name: str) -> None:
    (row,) = (row for row in compared.rows if row.name == name)
    job = load_job(JOB)
    if name != "ratrain":  # the job's own wish for recovery is meant for its own schedule
        job = replace(job, schedule=replace(job.schedule, name=name, recovery="auto"))
    case = case_of(job)
    simulation = simulate(case.program, case.costs)
    assert row.predicted is not None
    assert row.predicted.step_s == pytest.approx(simulation.step_time_s)
    assert row.predicted.bound_bytes == simulation.bound_bytes
    assert row.predicted.fits


def test_those_that_fit_come_first_and_the_fastest_first_of_all(compared: Comparison) -> None:
    known = [row.predicted for row in compared.rows if row.predicted]
    keys = [(not order.fits, order.step_s) for order in known]
    assert keys == sorted(keys)
    assert compared.fastest_s == known[0].step_s


def test_what_a_schedule_cannot_run_is_said_and_the_rest_goes_on(compared: Comparison) -> None:
    (row,) = (row for row in compared.rows if row.name == "tensor-parallel-heavy")
    assert row.predicted is None
    assert "tensor = 1" in row.problem


@pytest.mark.slow
def test_the_table_fits_eighty_columns_and_json_has_the_same_rows(compared: Comparison) -> None:
    ran = CliRunner().invoke(command, [str(JOB)])
    assert ran.exit_code == 0, ran.output
    lines = ran.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    body = json.loads(CliRunner().invoke(command, [str(JOB), "--json"]).stdout)
    names = [row["schedule"] for row in body["schedules"]]
    assert names == [row.name for row in compared.rows]
    shown = [
        line.removeprefix("*").split()[0] for line in lines if line[1:].startswith(tuple(names))
    ]
    assert shown == names


def test_too_small_a_budget_is_told_row_by_row(tmp_path: Path) -> None:
    job = tmp_path / "tight.toml"
    text = JOB.read_text().replace("[schedule]", '[schedule]\nmemory_budget = "250MB"')
    job.write_text(text)
    rows = {row.name: row for row in compare(laid_out(load_job(job))).rows}
    known = {name: row.predicted for name, row in rows.items() if row.predicted}
    assert known["ratrain"].fits
    assert not known["gpipe"].fits
    assert all(order.fits == (order.bound_bytes <= 250_000_000) for order in known.values())


def test_an_order_that_does_not_repeat_is_not_written_out_for_a_long_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedules, "MOST_OPS", 10)
    rows = {row.name: row for row in compare(laid_out(load_job(JOB))).rows}
    assert "a comparison allows 10" in rows["gpipe"].problem
    assert rows["1f1b"].predicted is not None


def test_a_job_s_own_order_is_that_of_its_own_row_alone() -> None:
    job = load_job(JOB)
    job = replace(job, schedule=replace(job.schedule, skeleton="gpipe", recovery="auto"))
    orders = {row.name: row.order for row in compare(laid_out(job)).rows if row.predicted}
    assert orders["ratrain"] == "gpipe"
    assert orders["1f1b"] == "1f1b" and orders["zb-h1"] == "zb-h1"


def test_every_name_of_the_registry_stands_whole_in_its_row(compared: Comparison) -> None:
    predicted = compared.rows[0].predicted
    assert predicted is not None
    wide = replace(predicted, step_s=123456.0, stages_per_rank=2)
    rows = tuple(replace(row, predicted=row.predicted and wide) for row in compared.rows)
    lines = list(compared_text(replace(compared, rows=rows)))
    assert max(map(len, lines)) <= 80
    words = {line.lstrip("*").split()[0] for line in lines if line.strip()}
    assert set(STRATEGIES) <= words
