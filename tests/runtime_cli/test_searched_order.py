"""An order found by search, on real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import ratrain, write_job

from ratrain.plan.case.case import case_of
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.orders.board import Board
from ratrain.program.kind import Kind

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


def test_an_order_of_layers_and_gathers_trains_to_the_same_bits_as_1f1b(tmp_path: Path) -> None:
    job = load_job(write_job(tmp_path, pipeline=1))
    board = Board(case_of(job), split=False)
    units, micro_batches = range(board.pipelines[0].stages), range(board.pipelines[0].micro_batches)
    forward = [(Kind.F, unit, m) for unit in units for m in micro_batches]
    layers = (*forward, *((Kind.B, unit, m) for unit in reversed(units) for m in micro_batches))
    proved = board.proved((layers,))
    assert proved is not None
    _, reductions, gathers = proved.orders
    text = board.csv((layers, reductions, gathers[::-1]))
    assert "0.1F0" in text and "0.1PrefetchW,0.0PrefetchW" in text
    (tmp_path / "mine.csv").write_text(text)
    order = ("--set", "schedule.skeleton=mine.csv")
    mine = ratrain(tmp_path, "train", "job.toml", "--run", "mine", *order, "--no-calibrate")
    plain = ratrain(
        tmp_path, "train", "job.toml", "--run", "plain", "--schedule", "1f1b", "--no-calibrate"
    )
    assert mine.status == plain.status == 0, mine.err + plain.err
    program = (tmp_path / "mine" / "program.txt").read_text()
    assert "0.1PrefetchW 0.0PrefetchW" in program
    compared = ratrain(tmp_path, "compare", "mine", "plain", "--json")
    assert compared.body["identical"] and compared.body["losses"]["differing"] == 0
