"""Views that are sharded, on real processes that measure their times first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import ratrain, write_job

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("schedule", ["pe-zero", "zero3-heavy"])
def test_views_that_come_and_go_are_timed_and_trained_to_the_same_bits(
    schedule: str, tmp_path: Path
) -> None:
    write_job(tmp_path, pipeline=1)
    timed = ratrain(tmp_path, "train", "job.toml", "--run", "timed", "--schedule", schedule)
    assert timed.status == 0, timed.err
    plain = ratrain(tmp_path, "train", "job.toml", "--run", "plain", "--no-calibrate")
    assert plain.status == 0, plain.err
    compared = ratrain(tmp_path, "compare", "timed", "plain", "--json")
    assert compared.body["identical"] and compared.body["losses"]["differing"] == 0
    times = json.loads((tmp_path / "timed" / "prediction.json").read_text())
    assert times["step_time_s"] > 0
