"""The quick start's own job in its own budget: what the math library takes beside tensors too."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import ratrain

QUICK_START = Path(__file__).parents[2] / "examples" / "quickstart.toml"

pytestmark = pytest.mark.slow


def test_no_rank_allocates_more_than_was_proved(tmp_path: Path) -> None:
    text = tmp_path / "text.jsonl"
    assert ratrain(tmp_path, "data", "--sample-text", text).status == 0
    ran = ratrain(
        tmp_path, "train", QUICK_START, "--steps", "2", "--run", "run", "--no-calibrate", "--json",
        "--set", f'data.files=["{text}"]',
    )  # fmt: skip
    assert ran.status == 0, ran.err
    for rank in ran.body["memory"]:
        assert rank["allocated_peak_bytes"] <= rank["bound_bytes"], rank
