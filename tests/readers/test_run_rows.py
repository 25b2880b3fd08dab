"""The rows of a run's metrics: each step once, with what its validation added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratrain.errors import SpecError
from ratrain.runtime.run_folder import RunFolder

NUMBERS = ("step_time_s", "compute_s", "recovery_s", "stages_s", "reduce_s", "gather_s", "update_s")
BYTES = ("ledger_peak_bytes", "allocated_peak_bytes", "resident_bytes")


def step(number: int, loss: float = 2.0) -> dict[str, Any]:
    return {
        "step": number,
        "loss": loss,
        "loss_bits": loss.hex(),
        "tokens": 64,
        "step_time_s": 0.5,
        "tokens_per_s": 128.0,
        "time_s": 1e9,
        "budget_bytes": None,
        "ranks": [{**dict.fromkeys(NUMBERS, 0.1), **dict.fromkeys(BYTES)}],
    }


def validated(number: int, **changes: Any) -> dict[str, Any]:
    row = {"step": number, "validation_loss": 1.5, "validation_tokens": 128, "time_s": 1e9}
    return {**row, **changes}


def read(folder: Path, *rows: dict[str, Any], end: str = "") -> list[dict[str, Any]]:
    text = "".join(json.dumps(row) + "\n" for row in rows) + end
    (folder / "metrics.jsonl").write_text(text)
    return RunFolder(folder).read_metrics()


def test_a_step_counts_as_it_went_last_with_its_validation(tmp_path: Path) -> None:
    rows = read(
        tmp_path, step(0), validated(0), step(1), step(1, loss=3.0), validated(9), end='{"step": 2'
    )
    assert [(row["step"], row["loss"]) for row in rows] == [(0, 2.0), (1, 3.0)]
    assert [row.get("validation_loss") for row in rows] == [1.5, None]


@pytest.mark.parametrize(
    ("row", "key"),
    [
        (validated(-1), "step"),
        (validated(1, validation_loss="low"), "validation_loss"),
        (validated(1, validation_tokens=-4), "validation_tokens"),
        (validated(1, time_s=None), "time_s"),
        ({"step": 1, "time_s": 1e9}, "step_time_s"),
    ],
)
def test_a_row_of_validation_that_is_damaged_is_told_with_line_and_key(
    tmp_path: Path, row: dict[str, Any], key: str
) -> None:
    with pytest.raises(SpecError) as error:
        read(tmp_path, step(0), row)
    assert f"metrics.jsonl:2 {key}" in str(error.value) and error.value.fix
