"""Memory scored on what the product itself builds, proves and bills, with a framework's bytes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from ratrain.cli.measuring.validate import command
from ratrain.plan.case.case import case_of
from ratrain.plan.layout.enumerate import kinds_of_block
from ratrain.plan.layout.sizes import passed_bytes, unit_of
from ratrain.program.replicas import Unit
from ratrain.program.verify import verify
from ratrain.validate.frameworks import MEGATRON, held_units
from ratrain.validate.memory import predicted_peak
from ratrain.validate.peaks import PEAK_TABLES, korthikanti, megatron_15b, zero_bubble
from ratrain.validate.predict import job_of
from ratrain.validate.report import reports
from ratrain.validate.rows import run_of, shipped_cells

LIMITS = {
    "korthikanti_memory_gib": 0.02,
    "zero_bubble_memory": 0.04,
    "megatron_peak_memory": 0.06,
    "sailor_gh200_memory": 0.11,
}


def layer_of(model: str, micro_batch: int, recompute: str, divided: bool) -> Unit:
    """A layer on one of eight ranks, as Megatron-LM holds it, with dropout."""
    cells = {"model": model, "tp": "8", "dp": "1", "mbs": str(micro_batch), "gbs": "8"}
    words = {"recompute": recompute, "sequence_parallel": "yes" if divided else "no"}
    job = job_of(run_of({**cells, **words}))
    layout = job.layout
    assert layout is not None
    block = kinds_of_block(job)[1]
    unit = unit_of(job, layout, block, passed_bytes(job, layout))
    return held_units(MEGATRON, (unit,), (block,), job, dropout=True)[0]


@pytest.mark.parametrize(
    "row", shipped_cells("korthikanti_activation_pct"), ids=lambda r: r["model"]
)
def test_what_a_layer_keeps_agrees_with_the_published_percentages(row: dict[str, str]) -> None:
    """Figure 7 of arXiv 2205.05198: kept activations as a share of keeping everything."""
    model, size = ("gpt-22b", 4) if row["model"] == "22B" else ("gpt-175b", 1)

    def kept(recompute: str, divided: bool) -> int:
        unit = layer_of(model, size, recompute, divided)
        if recompute == "full":
            return unit.input_bytes
        freed = unit.scores_bytes if recompute == "selective" else 0
        return unit.input_bytes + unit.saved_bytes - freed

    whole = kept("none", False)
    ours = {
        "sp": kept("none", True),
        "selective": kept("selective", False),
        "selective_sp": kept("selective", True),
        "full": kept("full", False),
    }
    for column, size_bytes in ours.items():
        assert 100 * size_bytes / whole == pytest.approx(float(row[column]), abs=0.1)


def test_a_peak_is_the_bound_of_the_very_program_that_the_job_builds() -> None:
    """With a framework that holds what we hold, nothing is added and nothing lost."""
    peak = next(row for row in zero_bubble() if "interleaved" not in row.label)
    (run,) = peak.runs
    own_verdict = verify(case_of(job_of(run)).program)
    predicted = predicted_peak(peak, run)
    assert predicted.own_bytes == max(bound.total_bytes for bound in own_verdict.bounds)
    assert predicted.proof_bytes > predicted.own_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["korthikanti_memory_gib", "zero_bubble_memory"])
def test_the_bill_of_a_row_is_never_below_its_proof(name: str) -> None:
    for row in PEAK_TABLES[name][1]():
        for run in row.runs:
            predicted = predicted_peak(row, run)
            assert predicted.proof_bytes <= predicted.bill_bytes <= 1.02 * predicted.proof_bytes


@pytest.mark.slow
def test_where_devices_are_not_stated_every_possible_number_counts() -> None:
    rows = {row.label: row for row in megatron_15b()}
    degrees = [run.data for run in rows["15B A100"].runs]
    assert degrees == [32, 48, 96]
    assert all(96 % degree == 0 for degree in degrees)
    assert [run.data for run in rows["15B H100"].runs] == [16, 24, *degrees]
    (report,) = reports(("megatron_peak_memory",))
    for pair in report.pairs:
        assert pair.between is not None, pair.label
        low, high = pair.between
        assert low < high
        assert pair.predicted == max((low, high), key=lambda size: abs(size - pair.measured))


def test_a_head_tied_to_an_embedding_on_its_own_rank_is_held_once() -> None:
    cells = {"model": "gpt-22b", "tp": "8", "dp": "1", "mbs": "4", "gbs": "8"}
    job = job_of(run_of({**cells, "recompute": "none"}))
    assert job.layout is not None
    block = kinds_of_block(job)[2]
    unit = unit_of(job, job.layout, block, passed_bytes(job, job.layout))
    (alone,) = held_units(MEGATRON, (unit,), (block,), job, dropout=True)
    apart = replace(job, layout=replace(job.layout, pipeline=2))
    (last,) = held_units(MEGATRON, (unit,), (block,), apart, dropout=True)
    matrix = block.model.vocab * block.model.hidden // 8
    assert last.view_bytes - alone.view_bytes == MEGATRON.standing_bytes * matrix


@pytest.mark.slow
def test_all_rows_of_a_table_share_one_framework() -> None:
    for _, rows in PEAK_TABLES.values():
        assert len({row.framework for row in rows()}) == 1


def test_published_states_leave_out_the_embedding_that_we_count() -> None:
    """Figure 1 of arXiv 2205.05198 is 18 bytes for each weight of the layers' matrices alone."""
    for row in korthikanti():
        if "states" not in row.label:
            continue
        (run,) = row.runs
        model = run.model
        layers = 18 * 12 * model.hidden**2 * model.layers / (run.tensor * run.pipeline)
        assert row.measured_bytes == pytest.approx(layers, rel=1e-6)
        assert predicted_peak(row, run).proof_bytes > layers


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITS)
def test_memory_keeps_its_accuracy(name: str) -> None:
    (report,) = reports((name,))
    assert report.all.mean_error <= LIMITS[name]
    assert report.beside["bill"].mean_error <= LIMITS[name] + 0.005


@pytest.mark.slow
def test_a_memory_table_shows_the_bill_and_our_own_program_beside_the_proof() -> None:
    result = CliRunner().invoke(command, ["zero_bubble_memory", "--rows"])
    assert result.exit_code == 0, result.output
    assert "bill" in result.stdout and "ours" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    body = json.loads(CliRunner().invoke(command, ["megatron_peak_memory", "--json"]).stdout)
    (table,) = body["tables"]
    assert set(table["beside"]) == {"bill", "own program"}
    assert table["framework"]["gradient_bytes"] == 4
    assert len(table["rows"][0]["between"]) == 2
