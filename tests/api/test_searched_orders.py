"""`ratrain.schedules` and the order that its search finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ratrain
from ratrain.errors import SpecError

JOB = """
[model]
name = "tiny-llama"
sequence_length = 64
[cluster]
name = "cpu-lab"
devices = 2
[batch]
sequences = 8
micro_batch = 2
[layout]
pipeline = 2
[schedule]
dtype = "fp32"
"""


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> ratrain.Schedules:
    file = tmp_path_factory.mktemp("job") / "job.toml"
    file.write_text(JOB)
    return ratrain.schedules(ratrain.load_job(file, "batch.sequences=12"))


@pytest.fixture(scope="module")
def improved(compared: ratrain.Schedules) -> ratrain.OrderSearch:
    return compared.search(evaluations=300, seed=1)


def test_schedules_are_those_of_the_command_line_and_print_in_eighty_columns(
    compared: ratrain.Schedules,
) -> None:
    assert "zb-h1" in compared.predicted
    assert {row["schedule"] for row in compared.to_dict()["schedules"]} >= set(compared.predicted)
    assert max(map(len, repr(compared).splitlines())) <= 80


def test_an_order_found_is_faster_than_every_named_one_and_the_same_again(
    compared: ratrain.Schedules, improved: ratrain.OrderSearch
) -> None:
    assert improved.improved
    assert all(improved.step_time_s < p.step_s for p in compared.predicted.values() if p.fits)
    again = compared.search(evaluations=300, seed=1)
    assert again.result.order is not None and improved.result.order is not None
    assert again.result.order.csv == improved.result.order.csv
    assert json.dumps(improved.to_dict()) and max(map(len, repr(improved).splitlines())) <= 80


def test_the_job_of_an_order_found_has_its_step_and_its_proof(
    improved: ratrain.OrderSearch, tmp_path: Path
) -> None:
    mine = improved.job(tmp_path / "mine.csv")
    assert mine.spec.batch.sequences == 12  # the values given to load_job stay
    assert ratrain.simulate(mine).step_time_s == improved.step_time_s
    assert ratrain.verify(mine).sound


def test_an_order_is_saved_only_as_a_file_that_a_job_takes(
    improved: ratrain.OrderSearch, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=r"does not end in \.csv"):
        improved.save(tmp_path / "mine.txt")
    assert not list(tmp_path.iterdir())
