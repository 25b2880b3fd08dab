"""An order found by search, on real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import ratrain, write_job

pytestmark = pytest.mark.slow


def test_an_order_found_by_search_trains_to_the_same_bits_as_1f1b(tmp_path: Path) -> None:
    write_job(tmp_path)
    words = ("--search", "--evaluations", "200", "--save", "mine.csv", "--json")
    searched = ratrain(tmp_path, "schedules", "job.toml", *words)
    assert searched.status == 0, searched.err
    order = searched.body["search"]["order"]
    settings = [word for setting in order["settings"] for word in ("--set", setting)]
    trained = ratrain(tmp_path, "train", "job.toml", "--run", "found", *settings, "--no-calibrate")
    plain = ratrain(
        tmp_path, "train", "job.toml", "--run", "plain", "--schedule", "1f1b", "--no-calibrate"
    )
    assert trained.status == plain.status == 0, trained.err + plain.err
    compared = ratrain(tmp_path, "compare", "found", "plain", "--json")
    assert compared.status == 0, compared.err
    assert compared.body["identical"] and compared.body["losses"]["differing"] == 0
    assert compared.body["checkpoint_step"] == 8
    assert "W" in (tmp_path / "mine.csv").read_text()  # another order than 1F1B: backward is split
