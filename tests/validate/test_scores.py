"""Scores, rows of tables, and the accuracy that the project promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ratrain.cli.measuring.validate import command
from ratrain.cli.programs.simulate import command as simulate_command
from ratrain.errors import SpecError
from ratrain.validate.predict import job_of, predicted_s, simulated_s
from ratrain.validate.report import reports
from ratrain.validate.rows import Run, run_of, user_runs
from ratrain.validate.score import Pair, group_regrets, rank_correlation, score
from ratrain.validate.tables import vtrain_single

TIMES = st.floats(0.01, 1e4)
ROW = {"layers": "4", "hidden": "1024", "heads": "8", "gpus": "2", "gbs": "8", "iter_s": "1"}


def test_error_and_bias_have_the_sign_of_the_prediction() -> None:
    scored = score([Pair("low", 10, 9), Pair("high", 10, 13)])
    assert scored.mean_error == pytest.approx(0.2)
    assert scored.bias == pytest.approx(0.1)
    assert scored.worst.label == "high"


@given(st.lists(TIMES, min_size=3, max_size=20, unique=True))
def test_rank_correlation_sees_order_alone(values: list[float]) -> None:
    assert rank_correlation(values, [v**3 for v in values]) == pytest.approx(1)
    assert rank_correlation(values, [-v for v in values]) == pytest.approx(-1)


def test_rank_correlation_of_a_flat_prediction_is_unknown() -> None:
    assert rank_correlation([1, 2, 3], [5, 5, 5]) is None


def test_regret_is_what_the_wrong_pick_costs() -> None:
    same = ("model",)
    pairs = [Pair("best", 10, 12, True, same), Pair("picked", 11, 9, True, same)]
    assert group_regrets(pairs) == [pytest.approx(0.1)]


@given(st.lists(st.tuples(TIMES, TIMES), min_size=2, max_size=10))
def test_regret_is_never_negative_and_zero_for_a_perfect_model(
    times: list[tuple[float, float]],
) -> None:
    same = ("model",)
    assert min(group_regrets([Pair("", m, p, True, same) for m, p in times])) >= 0
    assert group_regrets([Pair("", m, m, True, same) for m, _ in times]) == [0]


def test_rows_with_another_batch_are_no_alternatives() -> None:
    smaller, larger = run_of({**ROW, "gbs": "8"}), run_of({**ROW, "gbs": "16"})
    assert smaller.choice != larger.choice
    assert smaller.choice == run_of({**ROW, "tp": "2"}).choice


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("layer,gpus\n1,2\n", "layer"),
        ("gpus,gbs,iter_s,model\n8,8,x,gpt-22b\n", "iter_s"),
        ("gpus,gbs,iter_s,model,tp\n8,8,1,gpt-22b,3\n", "gpus"),
        ("gpus,gbs,iter_s,model,recompute\n8,8,1,gpt-22b,some\n", "recompute"),
        ("gpus,gbs,iter_s\n", "no rows"),
        ("gpus,gbs,iter_s,layers,hidden,heads\n8,8,1,2,100,3\n", "heads"),
        ("plan,iter_s,tp\na.json,1,2\n", "tp: "),
        ("plan,iter_s\na.json,1\n", "a.json"),
        ("plan,iter_s\na.toml,1\n", "ratrain plan"),
    ],
)
def test_a_wrong_table_names_what_is_wrong(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as error:
        user_runs(path, job_of)
    assert problem in str(error.value)
    assert "mine.csv" in str(error.value)


def test_a_table_of_ones_own_is_scored(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("gpus,gbs,mbs,tp,iter_s,model\n8,4,4,8,1.42,gpt-22b\n", encoding="utf-8")
    result = CliRunner().invoke(command, [str(path), "--json"])
    assert result.exit_code == 0, result.output
    table = json.loads(result.stdout)["tables"][0]
    assert table["score"]["rows"] == 1
    assert table["rows"][0]["held_out"]
    assert abs(table["rows"][0]["error"]) < 0.1


PLAN = Path(__file__).parents[2] / "examples" / "unequal-replicas.json"


def test_a_row_with_a_plan_file_is_predicted_as_simulate_predicts_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"plan,iter_s\n{PLAN},20\n", encoding="utf-8")
    (report,) = reports((str(path),))
    simulated = json.loads(CliRunner().invoke(simulate_command, [str(PLAN), "--json"]).stdout)
    (pair,) = report.pairs
    assert pair.label == "unequal-replicas"
    assert pair.predicted == simulated["step_time_s"]


def test_plan_files_of_one_job_are_alternatives(tmp_path: Path) -> None:
    """Two shares of one batch on the same devices, and a row of another batch."""
    text = PLAN.read_text(encoding="utf-8")
    plan = json.loads(text)
    fast, slow = (replica["micro_batches"] for replica in plan["replicas"])
    for name, first in (("a", fast), ("b", fast + 1)):
        plan["replicas"][0]["micro_batches"] = first
        plan["replicas"][1]["micro_batches"] = fast + slow - first
        (tmp_path / f"{name}.json").write_text(json.dumps(plan), encoding="utf-8")
    path = tmp_path / "mine.csv"
    path.write_text("plan,iter_s,held_out\na.json,20,\nb.json,19,no\n", encoding="utf-8")
    first, second = (row.run for row in user_runs(path, job_of))
    assert first.choice == second.choice
    assert first.label != second.label


def test_an_unknown_table_names_the_nearest() -> None:
    with pytest.raises(SpecError, match="vtrain_multi_node"):
        list(reports(("vtrain_multi",)))


def test_drawing_a_step_out_agrees_with_simulating_all_of_it() -> None:
    runs = [row.run for row in vtrain_single() if isinstance(row.run, Run)]
    run = next(r for r in runs if r.pipeline == 4 and r.sequences == 16)
    assert run.micro_batch == 1
    assert simulated_s(run, 16) == pytest.approx(predicted_s(run), rel=0.01)
    longer = run_of({**ROW, "gpus": "4", "pp": "4", "gbs": "64"})
    assert simulated_s(longer, 64) == pytest.approx(predicted_s(longer), rel=0.002)


LIMITS = {
    "megatron_sc21_table1": 0.08,
    "korthikanti_iteration": 0.04,
    "vtrain_multi_node": 0.085,
    "vtrain_single_node": 0.084,
    "amp_t4": 0.07,
    "sailor_gh200": 0.08,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITS)
def test_step_times_keep_their_accuracy(name: str) -> None:
    (report,) = reports((name,))
    assert report.all.mean_error <= LIMITS[name]
