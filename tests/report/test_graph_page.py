"""The page of a graph's training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratrain.errors import SpecError
from ratrain.readers.writing import write_whole
from ratrain.report.page import page
from ratrain.report.read import contents_of
from ratrain.timeline.timeline import Span, Timeline, write_timeline

EPOCHS = 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As `ratrain graph train` leaves it; tests/graph/test_run.py has one of a real run."""
    plan = {
        "mode": "bypass",
        "group": 2,
        "read_bytes": 9_000_000,
        "written_bytes": 4_000_000,
        "sent_bytes": 0,
        "peak_bytes": 290_000_000,
        "budget_bytes": 300_000_000,
        "in_memory_bytes": 900_000_000,
        "epoch_s": 1.5,
    }
    measured = {
        "epoch_s": 2.0,
        "slowest_epoch_s": 2.5,
        "waited_s": 0.5,
        "peak_bytes": 280_000_000,
        "read_bytes": 9_000_000,
        "written_bytes": 4_100_000,
        "sent_bytes": 0,
    }
    graph = {
        "nodes": 2000,
        "edges": 9000,
        "parts": 4,
        "partitioner": "own",
        "expansion_ratio": 2.5,
    }
    tried = [
        {"mode": "cache", "group": 1, "read_bytes": 10, "written_bytes": 0, "problem": None},
        {"mode": "packed", "group": 1, "read_bytes": None, "written_bytes": None, "problem": "big"},
    ]
    body = {"graph": graph, "plan": plan, "measured": measured, "tried": tried, "kinds": []}
    write_whole(tmp_path / "report.json", json.dumps(body))
    rows = [{"epoch": n + 1, "loss": 2.0 - n / 2, "time_s": 2.0} for n in range(EPOCHS)]
    write_whole(tmp_path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    words = [
        ("disk read", "read activation.0.1"),
        ("compute", "add 1.0 <- 1"),
        ("compute", "F 1.0"),
        ("disk write", "write activation.1.0"),
    ]
    spans = tuple(Span(0, 0, lane, word, n, n + 1) for n, (lane, word) in enumerate(words))
    write_timeline(Timeline("runtime", spans), tmp_path / "timeline.json")
    return tmp_path


def test_it_says_memory_bytes_and_times_against_the_plan(folder: Path) -> None:
    contents = contents_of(folder)
    tiles = {tile.label: (tile.value, tile.note) for tile in contents.tiles}
    assert contents.verdict.tone == "good"
    assert "Trained 3 epochs; loss 2 to 1." in contents.verdict.text
    assert tiles["Memory, measured"][0] == "280 MB"
    assert tiles["Read an epoch"] == ("9 MB", "as planned")
    assert tiles["Written an epoch"][1] == "planned 4,000,000 bytes"
    assert "packed, 1 sums open: does not fit" in " ".join(contents.left_out)
    text = page(contents)
    assert "3 epochs of 2,000 nodes" in text
    assert "Nodes per second" in text
    assert "sum over neighbours" in text


def test_more_memory_than_the_budget_is_said_first(folder: Path) -> None:
    body = json.loads((folder / "report.json").read_text())
    body["measured"]["peak_bytes"] = 310_000_000
    write_whole(folder / "report.json", json.dumps(body))
    verdict = contents_of(folder).verdict
    assert verdict.tone == "plain"
    assert "310 MB, more than the budget" in verdict.text


def test_a_folder_of_neither_a_graph_nor_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        contents_of(tmp_path)
