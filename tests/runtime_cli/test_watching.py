"""The parts that watch and tell: metrics as they grow, names of runs, merging, itemising."""

from __future__ import annotations

import itertools
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from costs_made import random_costs
from hypothesis import given, settings
from hypothesis import strategies as st
from made import small
from rich.console import Console

from ratrain.cli.runs.train_view import StepTable
from ratrain.errors import SpecError
from ratrain.program.kind import Waiting
from ratrain.program.text import write_text
from ratrain.runtime.rank import trackers
from ratrain.runtime.rank.progress import (
    Progress,
    ProgressMeter,
    RankMemory,
    plain_line,
    validation_line,
)
from ratrain.runtime.run.reports.counted import counted_of
from ratrain.runtime.run.reports.itemise import KINDS, measured_kinds
from ratrain.runtime.run.reports.merge import merge_records
from ratrain.runtime.run.resume import fresh_run, newest_run
from ratrain.runtime.run.watch import Follower
from ratrain.runtime.run_folder import RunFolder, RunSpec
from ratrain.runtime.seats import Seats
from ratrain.simulate.simulate import simulate, timeline_of
from ratrain.timeline.compare import one_step, step_times, typical_step

ROW = {
    "step": 0,
    "loss": 2.0,
    "tokens_per_s": 100.0,
    "step_time_s": 2.0,
    "time_s": 10.0,
    "budget_bytes": 1000,
    "ranks": [
        {
            "step_time_s": 2.0,
            "reduce_s": 0.1,
            "gather_s": 0.2,
            "update_s": 0.1,
            "allocated_peak_bytes": peak,
            "ledger_peak_bytes": 300.0,
        }
        for peak in (500.0, 0.0)
    ],
}


# ---- metrics as they grow ---------------------------------------------------------------


@given(st.lists(st.integers(0, 60), max_size=6))
@settings(max_examples=30, deadline=None)
def test_every_row_is_read_once_however_its_line_is_cut(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    text = "".join(json.dumps({"step": step, "loss": 0.5}) + "\n" for step in range(3))
    follower, rows = Follower(folder), []
    edges = [0, *sorted(cuts), len(text)]
    with folder.metrics.open("a") as file:
        for begin, end in itertools.pairwise(edges):
            file.write(text[begin:end])
            file.flush()
            rows += follower.new_rows()
    assert [row["step"] for row in rows] == [0, 1, 2]


def test_progress_shows_the_last_validation_beside_the_best() -> None:
    meter = ProgressMeter(end_step=11, best=(1, 2.5))
    assert meter.take({"step": 1, "validation_loss": 2.75}) is None, "no step is known yet"
    shown: list[str] = []
    for step, loss in ((3, 2.25), (5, 2.375)):
        meter.take({**ROW, "step": step})
        progress = meter.take({"step": step, "validation_loss": loss})
        assert progress is not None and progress.step == step + 1
        shown.append(validation_line(progress))
    assert shown == [
        "validation loss 2.2500 after step 4, the best so far",
        "validation loss 2.3750 after step 6, best 2.2500 after step 4",
    ]


def test_progress_shows_the_fullest_rank_and_the_time_left() -> None:
    progress = ProgressMeter(end_step=11).take(ROW)
    assert progress is not None
    assert (progress.step, progress.left_s) == (1, 20.0)
    assert progress.exposed_fraction == pytest.approx(0.2)
    assert [memory.peak_bytes for memory in progress.memory] == [
        500,
        300,
    ]  # no allocator: the ledger
    assert progress.fullest.fraction == 0.5


def counted_steps(rows: list[dict[str, Any]], period: int = 1) -> list[int]:
    counted = counted_of(rows, None, period)
    return [row["step"] for rows in counted.periods for row in rows] if counted else []


def test_a_report_counts_the_last_half_without_the_first_two_steps() -> None:
    rows = [{"step": step, "time_s": float(step)} for step in range(10)]
    assert counted_steps(rows) == [5, 6, 7, 8, 9]
    assert counted_steps(rows[:3]) == [2]
    assert counted_steps(rows[:1]) == [0]
    assert counted_steps([]) == []


def test_of_steps_between_averages_a_report_counts_whole_periods_and_their_means() -> None:
    rows = [
        {"step": step, "time_s": float(step), "step_time_s": 4.0 if step % 3 == 0 else 1.0}
        for step in range(11)
    ]
    assert counted_steps(rows, 3) == [3, 4, 5, 6, 7, 8]
    assert counted_steps(rows[4:], 3) == [6, 7, 8], "it began in the middle of a period"
    whole, short = counted_of(rows, None, 3), counted_of(rows[:2], None, 3)
    assert whole is not None and (whole.step_s, whole.slowest_s) == (2.0, 4.0)
    assert short is not None and not short.whole and short.step_s == 1.0


# ---- names of runs ----------------------------------------------------------------------


def test_runs_of_one_name_are_numbered(tmp_path: Path) -> None:
    assert fresh_run(tmp_path, "job") == tmp_path / "job"
    for name in ("job-2", "job-10", "job-other", "jobs"):
        (tmp_path / name).mkdir()
    assert newest_run(tmp_path, "job") == tmp_path / "job-10"
    assert fresh_run(tmp_path, "job") == tmp_path / "job-11"
    assert (tmp_path / "job-11").is_dir(), "nobody else may choose it from now on"
    with pytest.raises(SpecError, match="no run to resume"):
        newest_run(tmp_path, "nothing")


# ---- trackers ---------------------------------------------------------------------------


def test_weights_and_biases_is_used_only_where_installed_and_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(trackers.WANDB_PROJECT, "ours")
    assert trackers.wandb_project() == ""  # not installed here
    (tmp_path / "wandb.py").write_text("")  # stands in for the package, for this check alone
    monkeypatch.syspath_prepend(tmp_path)
    assert trackers.wandb_project() == "ours"
    monkeypatch.delenv(trackers.WANDB_PROJECT)
    assert trackers.wandb_project() == ""


def test_mlflow_is_used_only_where_installed_and_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(trackers.MLFLOW_URI, "file:///nowhere")
    assert trackers.mlflow_uri() == ""  # not installed here
    (tmp_path / "mlflow.py").write_text("")  # stands in for the package, for this check alone
    monkeypatch.syspath_prepend(tmp_path)
    assert trackers.mlflow_uri() == "file:///nowhere"
    monkeypatch.delenv(trackers.MLFLOW_URI)
    assert trackers.mlflow_uri() == ""


# ---- merging and itemising --------------------------------------------------------------


def write_records(
    folder: RunFolder, rows: dict[int, list[list[object]]], cut: tuple[int, ...] = (2, 2)
) -> None:
    """Ranks' records, and the program that they ran; each rank's own clock is a second ahead of the
    one before."""
    (folder.path / "ranks").mkdir()
    folder.program.write_text(write_text(small("1f1b", cut)))
    for rank, own_rows in rows.items():
        body = {"rank": rank, "clock_s": -float(rank), "rows": own_rows}
        for row in own_rows:
            row[3:] = [float(value) + rank for value in row[3:]]  # type: ignore[arg-type]
        folder.rank_file(rank, "records").write_text(json.dumps(body))


def spec_of(pipeline: int, data: int) -> RunSpec:
    return RunSpec("job.toml", pipeline, data, (0,) * data, (0,), 1, "fp32", 1, 2)


def test_a_message_begins_when_both_of_its_ends_are_there(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_records(
        folder,
        {
            0: [[0, "send_f", "0SEND_F0", 0.0, 5.0, 6.0]],
            1: [[0, "recv_f", "1RECV_F0", 0.0, 1.0, 6.5]],
        },
    )
    timeline = merge_records(folder, spec_of(2, 1))
    assert timeline is not None
    times = {span.word: (span.start_s, span.end_s) for span in timeline.spans}
    assert times == {"0SEND_F0": (0.0, 1.0), "1RECV_F0": (0.0, 1.5)}


def test_a_collective_begins_when_its_last_replica_is_there(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    rows = {rank: [[0, "reduce", "0.1GradSync", 0.0, 1.0 + 3 * rank, 6.0]] for rank in (0, 1)}
    write_records(folder, rows, (4,))  # type: ignore[arg-type]
    timeline = merge_records(folder, spec_of(1, 2))
    assert timeline is not None
    assert [(span.start_s, span.end_s) for span in timeline.spans] == [(0.0, 2.0)] * 2


def test_records_of_some_ranks_alone_are_no_timeline(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_records(folder, {0: [[0, "compute", "0.0F0", 0.0, 1.0, 2.0]]})
    assert merge_records(folder, spec_of(2, 1)) is None


@given(
    st.sampled_from(["ratrain", "baseline-1f1b", "gpipe", "1f1b", "full-save"]),
    st.integers(0, 10**6),
)
@settings(max_examples=40, deadline=None)
def test_a_simulated_timeline_is_itemised_as_the_simulator_does(name: str, seed: int) -> None:
    program = small(name)
    simulation = simulate(program, random_costs(program.table, seed, interrupts=False))
    ranks = program.setup.ranks
    seats = Seats(pipeline=ranks, data=1, replica_class=(0,), first_rank=(0,))
    kinds = measured_kinds(program, seats, timeline_of(simulation), 1)
    for measured, theirs in zip(kinds, simulation.ranks, strict=True):
        waited = theirs.waiting_s
        assert measured["compute"] == pytest.approx(theirs.compute_s)
        assert measured["recovery"] == pytest.approx(theirs.recovery_s)
        for kind in ("reduce", "gather", "update"):
            assert measured[kind] == pytest.approx(waited[Waiting(kind)], abs=1e-9)


@given(st.sampled_from(["ratrain", "zero3-heavy", "zb-h1"]), st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_kinds_add_up_to_the_time_between_two_steps_last_ops(name: str, seed: int) -> None:
    program = small(name)
    timeline = timeline_of(simulate(program, random_costs(program.table, seed)))
    seats = Seats(program.setup.ranks, 1, (0,), (0,))
    for rank, measured in enumerate(measured_kinds(program, seats, timeline, 1)):
        ends = [
            max(
                span.end_s
                for span in timeline.spans
                if (span.rank, span.step, span.lane) == (rank, step, "compute")
            )
            for step in (0, 1)
        ]
        assert sum(measured[kind] for kind in KINDS) == pytest.approx(ends[1] - ends[0])


def test_a_timelines_steps_are_as_long_as_the_simulators() -> None:
    program = small("ratrain")
    simulation = simulate(program, random_costs(program.table, 7))
    timeline = timeline_of(simulation)
    assert step_times(timeline)[1] == pytest.approx(simulation.step_time_s)
    assert typical_step(timeline) == 1  # the first one's length is not known
    second = one_step(timeline, 1, ranks={1: 0}, as_step=5)
    assert {(span.step, span.rank) for span in second.spans} == {(5, 0)}
    assert min(span.start_s for span in second.spans if span.lane == "compute") == 0


@given(st.integers(1, 99_999), st.floats(0, 99), st.floats(1, 1e9), st.floats(0, 35_000))
def test_a_line_of_progress_fits_eighty_columns(
    step: int, loss: float, rate: float, left_s: float
) -> None:
    memory = (RankMemory(30_900_000, 40_000_000),)
    line = plain_line(Progress(step, 99_999, loss, rate, 1.0, 1.0, memory, left_s))
    assert len(line) <= 80
    assert "mem 77%" in line


def test_the_live_table_has_a_row_for_each_rank_and_says_when_it_stops() -> None:
    table, screen = StepTable(), Console(width=80, record=True, file=StringIO())
    screen.print(table.picture(79))
    assert "starting the ranks" in screen.export_text()
    table.take(ProgressMeter(end_step=11).take(ROW), True)
    table.take(None, True)
    screen.print(table.picture(79))
    text = screen.export_text()
    for words in ("1/11", "2.0000", "20.0%", "0:20", "rank 0", "500 B of 1 kB", "stopping"):
        assert words in text


@pytest.mark.parametrize("change", [{"of_a_later_version": 1}, {"replica_class": None}])
def test_a_run_of_another_version_is_one_clear_error(
    change: dict[str, object], tmp_path: Path
) -> None:
    body = {"format": "ratrain run 1", "replica_class": [0], "first_rank": [0], **change}
    (tmp_path / "run.json").write_text(json.dumps(body))
    with pytest.raises(SpecError, match="not a run of this version"):
        RunFolder(tmp_path).read_spec()
