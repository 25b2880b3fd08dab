"""Replicas that average their weights every few steps, as processes: whatever step the run ends at,
it reports, compares, and goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from crew import Crew
from launched import (
    assert_same_end,
    cut_short,
    killer,
    loss_bits,
    made,
    meanwhile,
    saved_steps,
    start,
    steps_done,
)
from runs_made import Setting
from training import train

from ratrain.errors import RunFailed
from ratrain.report.facts.run import contents_of_run
from ratrain.runtime.run.reports.difference import difference_of
from ratrain.runtime.run.reports.report import report_of, write_report
from ratrain.runtime.run.reports.report_text import report_text
from ratrain.runtime.run.reports.run_pair import compare_runs
from ratrain.runtime.run_folder import RunFolder
from ratrain.timeline.timeline import read_timeline

SETTING = Setting("ratrain", pipeline=2, data=2, recovery="everywhere")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("every", "steps"), [(2, 7), (3, 8), (4, 3)])
def test_a_run_reports_whatever_step_it_ends_at(every: int, steps: int, tmp_path: Path) -> None:
    setting = replace(SETTING, average_every=every, steps=steps)
    folder = made(tmp_path, setting, calibrate=True)
    start(folder)
    assert saved_steps(folder) == [steps]
    report = write_report(folder)
    whole = steps >= every
    period = report["period"]
    assert (period["steps"], period["whole"]) == (every, whole)
    step, rows = report["step_time_s"], folder.read_metrics()
    times = [row["step_time_s"] for row in rows]
    last = steps - steps % every
    if whole:
        assert report["steps"]["counted"][1] == last
        assert step["measured"] <= period["slowest_measured_s"] <= max(times)
        first = report["steps"]["counted"][0] - 1
        means = [np.mean(times[at : at + every]) for at in range(first, last, every)]
        assert step["measured"] == pytest.approx(float(np.median(means)))
        shown = report["kinds_step"]
        assert (shown["step"], shown["steps"]) == (last, every)
        measured = sum(kind["measured_s"] for kind in report["kinds"])
        recorded = read_timeline(folder.measured).spans
        ends = [
            [
                max(s.end_s for s in recorded if (s.rank, s.step, s.lane) == (rank, at, "compute"))
                for at in (last - every - 1, last - 1)
            ]
            for rank in range(4)
        ]
        spent = np.mean([until - since for since, until in ends]) / every
        assert measured == pytest.approx(float(spent)), "it all is some kind of time"
    predicted = sum(kind["predicted_s"] for kind in report["kinds"])
    assert predicted == pytest.approx(step["predicted"], rel=1e-6)
    assert f"period of {every} steps" in " ".join(report_text(report)).replace("periods", "period")
    assert compare_runs(folder, folder).step_time_s == (step["measured"],) * 2
    for number in range(2, steps + 1):
        difference = difference_of(folder, number)
        assert not difference.ops.missing and not difference.ops.extra, number
        averages = {op.word for op in difference.ops.ops if "AverageW" in op.word}
        assert bool(averages) == (number == steps or number % every == 0), number
    assert contents_of_run(folder.path).times is not None


def test_the_last_steps_of_a_run_are_a_shorter_period_that_ends_with_an_average(
    crew: Crew, tmp_path: Path
) -> None:
    setting = Setting("1f1b", 2, 2, average_every=4, steps=3)
    together = train(crew, setting, tmp_path / "together")
    alone = [
        train(crew, Setting("1f1b", 2, 1, sequences=4, first=first), tmp_path / str(first))
        for first in (0, 4)
    ]
    for unit, buffers in together.units.items():
        for kind, mean in enumerate(buffers):
            a, b = (result.units[unit][kind] for result in alone)
            assert np.array_equal(mean, (a + b) / np.float32(2)), (unit, kind)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """11 steps, averaged after 3, 6, 9 and 11."""
    folder = made(tmp_path_factory.mktemp("whole"), LONG)
    start(folder)
    assert saved_steps(folder) == [3, 6, 9, 11]
    return folder


LONG = replace(SETTING, average_every=3, steps=11, every=3, keep=9)


@pytest.mark.parametrize("upto", [6, 9])
def test_a_run_goes_on_bit_by_bit_from_between_two_averages_and_before_its_last_steps(
    upto: int, whole: RunFolder, tmp_path: Path
) -> None:
    folder = cut_short(whole, tmp_path, LONG, upto)
    start(folder)
    assert loss_bits(folder) == loss_bits(whole)
    assert_same_end(folder, whole)
    assert report_of(folder)["steps"]["done"] == 11


def test_a_finished_run_that_goes_on_finishes_the_period_it_is_in(
    whole: RunFolder, tmp_path: Path
) -> None:
    """Its last average, after step 11, was of a shorter period; the next ones are after 12, 15."""
    folder = cut_short(whole, tmp_path, replace(LONG, steps=16), 11)
    start(folder)
    assert loss_bits(folder)[:11] == loss_bits(whole)
    assert saved_steps(folder) == [3, 6, 9, 11, 12, 15, 16]
    report = report_of(folder)
    assert report["steps"]["counted"] == [7, 15] and report["period"]["whole"]


def test_a_killed_rank_leaves_a_run_that_reports_and_goes_on_bit_by_bit(
    whole: RunFolder, tmp_path: Path
) -> None:
    folder = made(tmp_path, LONG)
    with meanwhile(killer(folder, 1, lambda: steps_done(folder) >= 5)), pytest.raises(RunFailed):
        start(folder)
    report = report_of(folder)
    assert report["kinds_step"] is None and report["step_time_s"]["measured"] > 0
    start(folder)
    assert loss_bits(folder) == loss_bits(whole)
    assert_same_end(folder, whole)
    assert report_of(folder)["steps"]["done"] == 11
