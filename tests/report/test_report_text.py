"""What a run's report says in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulated_runs import Size, simulated_run

from ratrain.runtime.run.reports.kind_names import kind_names
from ratrain.runtime.run.reports.report import report_of
from ratrain.runtime.run.reports.report_text import report_text


def reported(folder: Path, size: Size, *, done: int | None = None) -> dict[str, Any]:
    return report_of(simulated_run(folder, size, done=done))


def waiting_long(report: dict[str, Any]) -> dict[str, Any]:
    """The report of a run whose kinds of time all take half of a step, so that each is shown."""
    half_s = report["step_time_s"]["measured"] / 2
    return {**report, "kinds": [{**kind, "measured_s": half_s} for kind in report["kinds"]]}


def test_without_other_stages_a_run_waits_for_its_replicas(tmp_path: Path) -> None:
    report = waiting_long(reported(tmp_path / "replicas", Size(pipeline=1, data=3, steps=6)))
    assert any(line.startswith("  waiting for other replicas ") for line in report_text(report))
    assert kind_names(report["facts"])["stages"] == "waiting for other replicas"
    report = waiting_long(reported(tmp_path / "stages", Size(steps=6)))
    assert any(line.startswith("  waiting for other stages ") for line in report_text(report))
    assert kind_names(report["facts"])["stages"] == "waiting for other stages"


def test_the_verdict_comes_first_and_times_under_a_tenth_of_the_step_are_one_row(
    tmp_path: Path,
) -> None:
    report = reported(tmp_path / "run", Size(steps=6))
    whole_s = report["step_time_s"]["measured"]
    rare = {"kind": "update", "predicted_s": 0.01 * whole_s, "measured_s": 0.09 * whole_s}
    kinds = [kind for kind in report["kinds"] if kind["kind"] != "update"]
    lines = report_text({**report, "kinds": [*kinds, {**rare, "ratio": 9.0}]})
    assert lines[0].startswith("verdict: a step took ") and "predicted" in lines[0]
    assert not any(line.startswith("  waiting for optimizer updates") for line in lines)
    (rest,) = (line for line in lines if line.startswith("  the rest, each under a tenth"))
    assert rest.endswith("-")
    assert any(line.startswith("  compute") for line in lines)


def test_a_single_counted_step_is_no_median(tmp_path: Path) -> None:
    report = reported(tmp_path / "short", Size(), done=3)
    assert report["steps"]["counted"] == [3, 3]
    text = "\n".join(report_text(report))
    assert "Step 3 alone: " in text
    assert "median" not in text
    text = "\n".join(report_text(reported(tmp_path / "long", Size(steps=6))))
    assert "Step: median of steps 4 to 6 (" in text


def test_memory_at_its_peak_is_told_by_groups_and_numbers_keep_their_units(tmp_path: Path) -> None:
    report = reported(tmp_path / "run", Size(steps=6))
    lines = report_text(report)
    first = next(at for at, line in enumerate(lines) if " at its peak: " in line)
    text = " ".join(lines[first:]).split("checkpoints")[0]
    worst = max(report["memory"], key=lambda row: row["bound_bytes"])
    assert "saved activations " in text
    assert {"view", "outgrad", "sendx", "recvg"} & set(worst["bound_items"])
    assert not {"view", "outgrad", "sendx", "recvg"} & set(text.replace(",", "").split())
    assert not any(line[-1].isdigit() for line in lines[first : first + 3])


def test_what_a_rank_allocated_beyond_its_bound_is_said_and_only_then(tmp_path: Path) -> None:
    report = reported(tmp_path / "run", Size(steps=6))
    rows = [
        {**row, "allocated_peak_bytes": row["bound_bytes"] + (row["rank"] == 1) * 3_000_000}
        for row in report["memory"]
    ]
    assert "than is proved" not in " ".join(report_text(report))
    text = " ".join(report_text({**report, "memory": rows}))
    assert "rank 1 allocated 3 MB more than is proved:" in text
    unknown = [{**row, "allocated_peak_bytes": None} for row in rows]
    assert "than is proved" not in " ".join(report_text({**report, "memory": unknown}))


def test_what_products_took_for_themselves_is_said_where_they_took_something(
    tmp_path: Path,
) -> None:
    report = reported(tmp_path / "run", Size(steps=6))
    assert "matrix products took up to 4.4 MB for themselves (rank 0)" in " ".join(
        report_text(report)
    )
    for nothing in (0, None):
        rows = [{**row, "product_peak_bytes": nothing} for row in report["memory"]]
        assert "for themselves" not in " ".join(report_text({**report, "memory": rows}))


def test_the_best_checkpoint_is_marked(tmp_path: Path) -> None:
    report = reported(tmp_path / "run", Size(steps=6))
    saved = [
        {"path": "", "step": step, "complete": True, "size_bytes": 10**6} for step in (2, 4, 6)
    ]
    best = {"last": {"step": 6, "loss": 3.0}, "best": {"step": 4, "loss": 2.0}}
    text = "\n".join(report_text({**report, "checkpoints": saved, "validation": best}))
    assert "step 2 (1 MB), step 4 (1 MB, best), step 6 (1 MB)" in text
