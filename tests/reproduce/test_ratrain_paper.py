"""The paper's tables through the simulator: what must hold of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratrain.cli.measuring.reproduce import command
from ratrain.reproduce.published import MAIN, SCALE_OUT, SMALLEST
from ratrain.reproduce.ratrain_paper import SECTIONS, Row


@cache
def rows(section: str) -> dict[str, Row]:
    """A section's rows by label."""
    return {row.label: row for row in SECTIONS[section]()}


def ours(section: str, label: str) -> float:
    """Our value of a row that has one."""
    value = rows(section)[label].ours
    assert value is not None
    return value


@pytest.mark.slow
@pytest.mark.parametrize("model", ["baichuan2-13b", "qwen2.5-32b"])
def test_strategies_stand_in_the_published_order(model: str) -> None:
    with_times = [row for row in MAIN if row.model == model and row.step_s is not None]
    published = sorted(with_times, key=lambda row: row.step_s or 0.0)
    times_s = [ours("main", f"{model} {row.strategy}") for row in published]
    assert times_s == sorted(times_s)
    assert len(set(times_s)) == len(times_s)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["backward-checkpoint", "tuned"])
def test_the_headline_ratio_lies_between_1_30_and_1_40(strategy: str) -> None:
    assert 1.30 <= ours("main", f"qwen2.5-32b {strategy} / ratrain") <= 1.40


@pytest.mark.slow
def test_keeping_all_activations_runs_out_of_memory_as_published() -> None:
    row = rows("main")["qwen2.5-32b full-save"]
    assert row.ours is None
    assert "over its budget" in row.note
    assert "rank 0" in row.note


@pytest.mark.slow
def test_every_pass_left_out_costs_step_time_and_recovery_costs_most() -> None:
    steps = {label: row.ours for label, row in rows("ablation").items() if label.startswith("step")}
    assert all(value is not None and value > 1 for value in steps.values())
    assert max(steps, key=lambda label: steps[label] or 0) == "step without forward-recovery"
    tails = [
        ours("ablation", f"tail without {name}")
        for name in ("forward-recovery", "update-prefetch", "layerwise-state-pipeline")
    ]
    assert tails == sorted(tails)


@pytest.mark.slow
@pytest.mark.parametrize("row", SMALLEST, ids=lambda row: row.model)
def test_the_smallest_scales_peak_within_three_percent(row) -> None:  # pyright: ignore
    difference = rows("memory")[f"{row.model} on {row.clusters}"].difference
    assert difference is not None
    assert abs(difference) <= 0.03


@pytest.mark.slow
@pytest.mark.parametrize("row", SMALLEST, ids=lambda row: row.model)
def test_half_the_scale_does_not_fit_with_stage_and_item_named(row) -> None:  # pyright: ignore
    row_found = rows("memory")[f"{row.model} on {row.too_few}"]
    assert row_found.ours is None
    assert "does not fit" in row_found.note
    assert "on stage" in row_found.note
    assert "optimizer" in row_found.note


@pytest.mark.slow
@pytest.mark.parametrize("clusters", SCALE_OUT)
def test_scale_out_is_within_three_percent_and_0_3_points(clusters: int) -> None:
    tokens = rows("scale-out")[f"{clusters} clusters"].difference
    assert tokens is not None
    assert abs(tokens) <= 0.03
    efficiency = rows("scale-out")[f"{clusters} clusters, efficiency"]
    assert efficiency.published is not None
    assert efficiency.ours is not None
    assert abs(efficiency.ours - efficiency.published) <= 0.3


def test_the_published_scale_out_loses_one_percent_a_step_exactly() -> None:
    per_cluster = [tokens / clusters for clusters, tokens in SCALE_OUT.items()]
    assert [round(each / per_cluster[0], 4) for each in per_cluster] == [1.0, 0.99, 0.98, 0.97]


def test_no_published_row_is_left_out() -> None:
    assert {row.model for row in SMALLEST} == {
        "llama-2-7b",
        "baichuan2-13b",
        "qwen2.5-32b",
        "llama-2-70b",
    }
    assert len(MAIN) == 11
    assert SECTIONS.keys() >= {"main", "ablation", "memory", "scale-out"}


@pytest.mark.slow
def test_the_page_shows_every_row_as_it_would_be_trained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "notes" / "reproduction.md").read_text()
    for row in SECTIONS["as-trained"]():
        assert row.ours is not None
        assert f"{row.ours:.2f} {'GB' if row.unit == 'GB' else 'x'}" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "unit", "form"),
    [
        ("main", "s", "{:,.2f}"),
        ("ablation", "x", "{:.3f}"),
        ("memory", "GB", "{:.2f}"),
        ("planner", "s", "{:.1f}"),
    ],
)
def test_the_first_table_of_the_page_has_the_figures_that_are_printed(
    section: str, unit: str, form: str
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "notes" / "reproduction.md").read_text()
    table = page[page.index("| what |") : page.index("## What is assumed")].replace("|", " ")
    figures = table.split()
    for row in rows(section).values():
        if row.unit == unit and row.ours is not None and row.label != "qwen2.5-32b tuned":
            assert form.format(row.ours) in figures, row.label


@pytest.mark.parametrize(
    ("table", "label", "is_fit"),
    [
        ("main", "qwen2.5-32b ratrain", True),
        ("main", "baichuan2-13b backward-checkpoint / ratrain", True),
        ("main", "qwen2.5-32b zero3-heavy / ratrain", False),
        ("main", "qwen2.5-32b tuned / ratrain", False),
        ("ablation", "tail without layerwise-state-pipeline", False),
        ("ablation", "step without forward-recovery", True),
        ("memory", "llama-2-7b on 8", True),
        ("memory", "llama-2-7b on 4", False),
        ("scale-out", "512 clusters, efficiency", True),
        ("scale-out", "512 clusters", False),
        ("planner", "llama-2-7b, 2048 sequences", True),
        ("as-trained", "llama-2-70b on 96, gradients whole, proven peak", False),
    ],
)
def test_a_row_says_whether_anything_was_chosen_by_it(table: str, label: str, is_fit: bool) -> None:
    assert bool(Row(table, label, "s", 1.0, 1.0).fit) is is_fit


@pytest.mark.slow
def test_rows_that_are_fits_are_marked_and_scored_apart() -> None:
    ran = CliRunner().invoke(command, ["memory"])
    assert "* llama-2-7b on 8 [GB]" in ran.output
    assert "  llama-2-7b on 4 [GB]" in ran.output
    assert "4 fits, marked *: mean error 1.5%, bias +0.3%" in ran.output
    assert "worst +2.4%: memory, llama-2-70b on 96" in ran.output
